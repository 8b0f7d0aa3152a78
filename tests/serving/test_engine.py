"""What a worker makes of a batch."""

import itertools
import os
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from PIL.WebPImagePlugin import WebPImageFile
from tests.trusting import with_trust

import vitrail
from conftest import Clock
from serving.conftest import encode
from vitrail.data.pixels import prepare_array
from vitrail.errors import WeightsError
from vitrail.prediction.steps import numbers_of
from vitrail.serving import engine as engine_module
from vitrail.serving.engine import Engine, checksum, choose_batch, choose_wait, measure
from vitrail.serving.frames import Frame
from vitrail.weights.resolve import bundled_path


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine("cifar10", "torch", "float32", 10_000)


def test_a_batch_of_everything(engine: Engine) -> None:
    tensor = np.zeros((3, 32, 32), dtype=np.float32)
    blobs = [
        encode(),
        encode("GIF"),
        encode("PNG", (101, 100)),
        tensor.tobytes(),
        np.full_like(tensor, 3e38).tobytes(),
    ]
    items = [{"want": "top", "top_k": 2, "name": f"picture {index}"} for index in range(3)]
    items += [{"want": "scores", "tensor": True, "name": "t"}] * 2
    answer = engine.run(Frame({"id": 7, "kind": "logits", "items": items}, blobs))
    entries = answer.facts["items"]
    assert answer.facts["id"] == 7
    assert [label for label, _, _ in entries[0]["labels"]] == list(vitrail.load().predict(blobs[0], top_k=2).labels)
    assert "not a picture of a known format" in entries[1]["error"]["message"]
    assert "over the limit of 10,000" in entries[2]["error"]["message"]
    assert [entry.get("error", {}).get("code") for entry in entries] == [
        None,
        "unreadable_picture",
        "unreadable_picture",
        None,
        "invalid_argument",
    ]
    assert entries[4]["error"]["message"] == "t has numbers up to ±3e+38, too large for the model; normalise it first."
    logits, scores = (np.frombuffer(blob, dtype=np.float32) for blob in answer.blobs)
    assert scores.sum() == pytest.approx(1)
    assert engine.predictor.label(int(logits.argmax())) == entries[3]["label"]


def test_one_picture_does_not_spoil_the_answers_of_others(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def poisoned(facts: Any, runtime: Any, images: np.ndarray, wanted: Any) -> np.ndarray:
        if (images == 7).all(axis=(1, 2, 3)).any():
            raise RuntimeError("a detail that is nobody's business")
        return numbers_of(facts, runtime, images, wanted)

    monkeypatch.setattr("vitrail.prediction.steps.numbers_of", poisoned)
    tensors = [np.full((3, 32, 32), value, dtype=np.float32).tobytes() for value in (1, 7, 2)]
    items = [{"want": "scores", "tensor": True, "name": "t"}] * 3
    answer = engine.run(Frame({"id": 1, "kind": "logits", "items": items}, tensors))
    failed = {"error": {"code": "model_failed", "message": "the model failed to compute this: RuntimeError."}}
    assert [entry == failed for entry in answer.facts["items"]] == [False, True, False]
    assert len(answer.blobs) == 4
    with pytest.raises(RuntimeError):
        engine.run(Frame({"id": 1, "kind": "logits", "items": items[:1]}, tensors[1:2]))


def test_no_finite_answer_to_ordinary_numbers_is_the_models_failure(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = "vitrail.prediction.steps.numbers_of"
    monkeypatch.setattr(nothing, lambda _facts, _runtime, images, _wanted: np.full((len(images), 10), np.nan))
    items = [{"want": "scores", "tensor": True, "name": "t"}, {"want": "top", "top_k": 1, "name": "p"}]
    frame = Frame({"id": 1, "kind": "logits", "items": items}, [bytes(4 * 3 * 32 * 32), encode()])
    assert [entry["error"]["code"] for entry in engine.run(frame).facts["items"]] == ["model_failed"] * 2


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_a_damaged_picture_is_called_by_its_number(engine: Engine, kind: str) -> None:
    items = [{"want": "top", "top_k": 1, "name": "picture 3"}] * 2
    whole = encode(kind)
    frame = Frame({"id": 1, "kind": "logits", "items": items}, [whole[: len(whole) // 2], whole[:35]])
    for entry in engine.run(frame).facts["items"]:
        assert entry["error"]["message"].startswith("picture 3: ")


def test_a_tensor_for_the_model_of_before(engine: Engine) -> None:
    """It waited while a model with another size of pictures took over."""
    item = {"want": "scores", "tensor": True, "name": "images[0]"}
    frame = Frame({"id": 1, "kind": "logits", "items": [item]}, [np.zeros((3, 8, 8), dtype=np.float32).tobytes()])
    (entry,) = engine.run(frame).facts["items"]
    assert entry["error"]["code"] == "invalid_argument"
    assert "now takes [3, 32, 32]" in entry["error"]["message"]


def test_a_calibrated_model_says_how_far_to_trust_it(engine: Engine) -> None:
    calibrated = copy(engine)
    calibrated.predictor = with_trust(engine.predictor)
    picture = encode()
    expected = calibrated.predictor.predict(picture, top_k=2, coverage=0.9)
    items = [{"want": "top", "top_k": 2, "coverage": 0.9, "name": "p"}, {"want": "scores", "name": "p"}]
    answer = calibrated.run(Frame({"id": 1, "kind": "logits", "items": items}, [picture, picture]))
    entry = answer.facts["items"][0]
    assert tuple(entry["label_set"]) == expected.label_set
    assert entry["familiarity"] == pytest.approx(expected.familiarity)
    assert entry["familiar"] == expected.familiar
    assert [score for _, _, score in entry["labels"]] == pytest.approx(list(expected.scores))
    assert calibrated.describe()["temperature"] == 1.5
    logits, scores = (np.frombuffer(blob, dtype=np.float32) for blob in answer.blobs)
    assert len(logits) == len(scores) == 10
    calibrated.predictor = replace(engine.predictor, trust=None)
    entry = calibrated.run(Frame({"id": 1, "kind": "logits", "items": items[:1]}, [picture])).facts["items"][0]
    assert entry["error"]["code"] == "invalid_argument"
    assert "needs a calibrated model" in entry["error"]["message"]


def test_what_is_told_about_a_model(engine: Engine) -> None:
    facts = engine.describe()
    assert facts["sha256"] == checksum(bundled_path("cifar10"))
    assert facts["version"] == facts["sha256"][:12]
    assert (facts["classes"], facts["grid"], facts["explains"]) == (10, [8, 8], True)
    assert facts["labels"][3] == "cat"


def test_the_checksum_is_that_of_the_files(tmp_path: Path) -> None:
    (tmp_path / "model.xml").write_text("a")
    (tmp_path / "model.bin").write_text("b")
    both = checksum(tmp_path / "model.xml")
    assert both == checksum(tmp_path)
    (tmp_path / "model.bin").write_text("c")
    assert checksum(tmp_path) != both


@pytest.fixture
def float32_file(tmp_path: Path) -> Path:
    """The bundled model in float32, as it is computed: nothing has to be cast, so that the file could be mapped."""
    path = tmp_path / "it.safetensors"
    vitrail.load().save(path)
    return path


def test_a_file_may_be_overwritten_while_it_is_served(float32_file: Path) -> None:
    engine = Engine(str(float32_file), "torch", "float32", 10_000)
    image = np.random.default_rng(0).standard_normal((1, 3, 32, 32), dtype=np.float32)
    before = engine.predictor.runtime.logits(image)
    with float32_file.open("r+b") as stream:  # truncating it would end this process, had it mapped the file
        stream.write(bytes(float32_file.stat().st_size))
    assert (engine.predictor.runtime.logits(image) == before).all()


def test_the_checksum_is_that_of_what_was_loaded(float32_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = bundled_path("cifar10").read_bytes()

    def load_late(source: str) -> vitrail.Predictor:
        if float32_file.stat().st_size != len(other):
            float32_file.write_bytes(other)
        return vitrail.load(source)

    monkeypatch.setattr(engine_module, "load", load_late)
    assert Engine(str(float32_file), "torch", "float32", 10_000).sha256 == checksum(bundled_path("cifar10"))


def test_a_file_that_never_rests_is_not_served(float32_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, times = float32_file, itertools.count(1)
    monkeypatch.setattr(engine_module, "load", lambda source: os.utime(path, (0, next(times))) or vitrail.load(source))
    with pytest.raises(WeightsError, match="changes while it is read"):
        Engine(str(path), "torch", "float32", 10_000)


def test_explanations_of_what_cannot_be_explained(engine: Engine) -> None:
    options = {"method": "relevance", "layer": None, "head": None, "target": "unicorn", "as_png": True}
    answer = engine.run(Frame({"id": 1, "kind": "explain", "options": options}, [encode()]))
    assert answer.facts["error"]["code"] == "invalid_argument"
    answer = engine.run(Frame({"id": 1, "kind": "explain", "options": {**options, "target": None}}, [encode()[:100]]))
    assert answer.facts["error"]["code"] == "unreadable_picture"


@pytest.mark.parametrize(
    ("seconds", "batch", "wait"),
    [
        ({1: 0.040, 2: 0.080, 4: 0.160}, 1, 0.0),  # nothing is gained
        ({1: 0.001, 2: 0.002, 4: 0.004, 8: 0.008, 16: 0.016}, 16, 0.0),  # nothing but fewer calls
        ({1: 0.010, 2: 0.012, 4: 0.016, 8: 0.024, 16: 0.047}, 8, 2.5),  # gains, until they end
        ({1: 0.010, 2: 0.018, 4: 0.030, 8: 0.060}, 4, 0.0),  # gains, but not enough to wait for
        ({1: 0.300, 2: 0.310}, 1, 75.0),  # a larger batch would keep the others waiting
        ({1: 0.010}, 1, 0.0),
    ],
)
def test_choices(seconds: dict[int, float], batch: int, wait: float) -> None:
    assert choose_batch(seconds) == batch
    assert choose_wait(seconds) == wait


def test_measuring_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr("vitrail.timing.time", clock)
    images = np.zeros((64, 1, 1, 1), dtype=np.float32)

    def compute(batch: np.ndarray) -> np.ndarray:
        clock.sleep(0.02 * len(batch))
        return batch

    seconds = measure(compute, images)
    assert clock.now < 2
    assert list(seconds)[:3] == [1, 2, 4]
    assert seconds[1] == pytest.approx(0.02)


def test_large_webp_pictures_are_decoded_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow would hold up everybody else's answers meanwhile; the pixels are those that it would have read here."""
    engine = Engine("cifar10", "torch", "float32", 2_000_000)
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned
    blobs = [
        encode("WEBP", (1100, 1000), exif=exif, lossless=True, method=0),
        encode("WEBP", (1001, 1050), "RGBA", seed=1, method=0),
    ]
    items = [{"want": "scores", "name": f"picture {index}"} for index in range(len(blobs))]
    options = {"method": "occlusion", "layer": None, "head": None, "target": None, "as_png": True}
    question = Frame({"id": 2, "kind": "explain", "options": options}, blobs[:1])
    expected = np.empty((2, 3, *engine.predictor.preprocess.size), dtype=np.float32)
    for blob, image in zip(blobs, expected, strict=True):
        prepare_array(blob, engine.predictor.preprocess, image)
    monkeypatch.setattr(WebPImageFile, "load", lambda self: pytest.fail("decoded here"))
    for blob, image in zip(blobs, expected, strict=True):
        np.testing.assert_array_equal(engine._prepare([{"name": "it"}], [blob])[0][0], image)
    assert engine.run(question).blobs[0].startswith(b"\x89PNG")
    damaged = bytearray(blobs[0])
    start = damaged.index(b"VP8L") + 20  # behind its size
    damaged[start : start + 200] = b"\xff" * 200
    frame = Frame({"id": 3, "kind": "logits", "items": items}, [bytes(damaged), blobs[1]])
    broken, whole = engine.run(frame).facts["items"]
    assert broken["error"]["code"] == "unreadable_picture"
    assert broken["error"]["message"].startswith("picture 0: damaged or truncated (")
    assert engine.decoder.process is not None
    engine.decoder.process.kill()  # as a picture could that takes up all memory
    frame = Frame({"id": 4, "kind": "logits", "items": items[1:]}, blobs[1:])
    (lost,), (again,) = (engine.run(frame).facts["items"] for _ in range(2))
    assert lost["error"]["message"] == "picture 1: damaged, or too large to decode."
    assert again == whole
    engine.decoder.stop()
