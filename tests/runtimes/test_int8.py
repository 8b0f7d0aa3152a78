"""int8: what is accepted, what is refused, and on which pictures that is decided."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vitrail
from conftest import TINY, randomize
from fuzzing import in_fuzz_only
from vitrail.data.preprocess import preset
from vitrail.errors import ConfigError, DataError, WeightsError
from vitrail.model import ViT
from vitrail.runtimes import int8
from vitrail.runtimes.exporter import Exported, prepare_export
from vitrail.runtimes.graph import GraphOptions
from vitrail.runtimes.int8 import OPENVINO, PLAIN, Int8Job, Method, accepts, quantize
from vitrail.runtimes.int8_trials import (
    ByteImages,
    CalibrationSet,
    Candidate,
    Goal,
    Trial,
    check_telling,
    format_trials,
)
from vitrail.runtimes.openvino_runtime import write_export
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.metadata import Metadata

CLASSES = ("ant", "bee", "cat", "dog")
SPEC = preset("timm", (32, 32), 3)


def draw(count: int, seed: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Smooth pictures of four kinds, each a little different from the others of its kind: bytes and classes."""
    rng = np.random.default_rng(seed)
    kinds = np.random.default_rng(0).uniform(40, 215, (4, 3, 4, 4)).repeat(8, axis=2).repeat(8, axis=3)
    targets = np.arange(count) % 4
    noise = rng.normal(0, 12, (count, 3, 8, 8)).repeat(4, axis=2).repeat(4, axis=3)
    return np.clip(kinds[targets] + noise, 0, 255).astype(np.uint8), targets


def pictures(count: int, seed: int) -> ByteImages:
    pixels, targets = draw(count, seed)
    return ByteImages(pixels=pixels, spec=SPEC, targets=targets)


def make_checkpoint() -> Checkpoint:
    """A tiny random ViT whose head names the nearest of four centres: its answers are decisive and right."""
    config = replace(TINY, depth=2, num_classes=4, class_token=False, pooling="mean")
    model = randomize(ViT(config)).eval()
    known = pictures(64, 1)
    with torch.inference_mode():
        features = model.features(torch.from_numpy(next(known.batches(64))))
    assert known.targets is not None
    centres = torch.stack([features[torch.from_numpy(known.targets) == kind].mean(dim=0) for kind in range(4)])
    apart = centres - centres.mean(dim=0)
    bias = -apart @ centres.mean(dim=0) - (apart**2).sum(dim=1) / 2
    tensors = {**model.state_dict(), "head.weight": apart, "head.bias": bias}
    return Checkpoint(config=config, tensors=tensors, preprocess=SPEC, classes=CLASSES)


@dataclass(frozen=True)
class Plain:
    """The float32 export in both kinds."""

    exported: Exported
    folder: Path

    def path(self, target: str) -> Path:
        return self.folder / ("float32" if target == "openvino" else "graph.onnx")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Plain:
    folder = tmp_path_factory.mktemp("plain")
    exported = prepare_export(make_checkpoint(), GraphOptions())
    write_export(exported, folder / "float32")  # which leaves its ONNX graph beside it
    return Plain(exported, folder)


CALIBRATION = CalibrationSet(ranges=pictures(24, 2), choosing=pictures(40, 3), accepting=pictures(40, 4))


def close_calls(seed: int) -> ByteImages:
    """Mixtures of two kinds, on which the slightest change of a number changes the answer."""
    pixels = draw(32, seed)[0].astype(float)
    first, second = pixels[0::4], pixels[1::4]
    mixed = [(1 - share) * first + share * second for share in np.linspace(0.3, 0.7, 5)]
    return ByteImages(pixels=np.concatenate(mixed).astype(np.uint8), spec=SPEC)


BLACK = ByteImages(pixels=np.zeros((8, 3, 32, 32), dtype=np.uint8), spec=SPEC)


@pytest.mark.parametrize(("target", "name"), [("openvino", "q"), ("onnx", "q.onnx")])
def test_what_is_accepted_loads_and_agrees(plain: Plain, tmp_path: Path, target: str, name: str) -> None:
    draft = tmp_path / name
    result = quantize(plain.exported.manifest, plain.path(target), draft, target, CALIBRATION, Goal())
    assert [trial.part for trial in result.trials] == [
        "choosing",
        "accepting",
        "choosing",
        "accepting",
    ]  # stopped early
    before, after = result.trials[1], result.trials[-1]
    assert before.method == "float32"
    assert before.accuracy == 1
    assert after.agreement == result.manifest.agreement == result.agreement.top1 >= 0.99
    assert after.megabytes < before.megabytes
    assert after.milliseconds > 0
    assert 0 < result.agreement.relative < 0.2, "8 bits cannot give the same numbers"
    assert [item.name for item in tmp_path.iterdir()] == [name], "candidates must not stay"

    loaded = vitrail.load(draft)
    assert loaded.runtime.manifest.precision == "int8"  # pyright: ignore[reportAttributeAccessIssue]
    fresh = pictures(20, 9)
    answers = loaded.runtime.logits(next(fresh.batches(20))).argmax(axis=1)
    assert (answers == fresh.targets).mean() >= 0.95


def test_weights_are_really_in_8_bits(plain: Plain, tmp_path: Path) -> None:
    import onnx

    draft = tmp_path / "q.onnx"
    quantize(plain.exported.manifest, plain.path("onnx"), draft, "onnx", CALIBRATION, Goal())
    weights = onnx.load(str(draft)).graph.initializer
    in_int8 = sum(np.prod(tensor.dims) for tensor in weights if tensor.data_type == onnx.TensorProto.INT8)
    assert in_int8 >= 2 * (4 * 32 * 32 + 2 * 32 * 64)  # all matrices of both blocks
    assert all(tensor.HasField("raw_data") for tensor in weights), "the checksum covers raw bytes only"


@pytest.mark.parametrize(("target", "name"), [("openvino", "q"), ("onnx", "q.onnx")])
def test_what_changes_the_answers_is_refused_with_the_table(
    plain: Plain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, name: str
) -> None:
    methods = (PLAIN, Method(name="int8, SmoothQuant 0.5", smoothing=0.5))[: 2 if target == "openvino" else 1]
    monkeypatch.setattr(int8, target.upper(), replace(getattr(int8, target.upper()), methods=methods))
    monkeypatch.setattr(int8, "NEAR", 0.0)  # nothing is put back to float32
    hard = CalibrationSet(ranges=BLACK, choosing=close_calls(6), accepting=close_calls(7))
    with pytest.raises(WeightsError) as caught:
        quantize(plain.exported.manifest, plain.path(target), tmp_path / name, target, hard, Goal())
    message = str(caught.value)
    assert "no int8 export reached an agreement of at least 99.00%; nothing was written" in message
    assert "calibrated on 8 pictures, chosen on 40 others, accepted on 40 others again" in message
    lines = message.splitlines()
    assert lines[1].split() == ["method", "pictures", "agreement", "accuracy", "MB", "ms"]
    assert [line.split("  ")[0] for line in lines[2 : 4 + len(methods)]] == [
        "float32",
        "float32",
        *(method.name for method in methods),
    ]
    assert sum("accepting" in line for line in lines[2:]) == 2, "only float32 and the best are measured there"
    assert not list(tmp_path.iterdir())


@in_fuzz_only
def test_layers_that_hurt_go_back_to_float32(plain: Plain, tmp_path: Path) -> None:
    """Accuracy control, where 8 bits change the answers."""
    close = close_calls(6)
    few = replace(close, pixels=close.pixels[::4])
    bad = CalibrationSet(ranges=BLACK, choosing=few, accepting=few)
    job = Int8Job(
        plain=plain.path("openvino"),
        folder=tmp_path,
        target="openvino",
        manifest=plain.exported.manifest,
        calibration=bad,
        goal=Goal(agreement=1.0),
    )
    assert OPENVINO.write_controlled is not None
    path = job.write(OPENVINO.write_controlled, PLAIN)
    expected = Candidate("float32", job.plain, "openvino", job.manifest).logits(bad.choosing)
    worse = job.write(OPENVINO.write, PLAIN)
    before, _ = Candidate("int8", worse, "openvino", job.manifest).try_on(few, "choosing", expected)
    assert before.agreement < 1, "there was nothing to mend"
    trial, _ = Candidate("controlled", path, "openvino", job.manifest).try_on(bad.choosing, "choosing", expected)
    assert trial.agreement == 1


def make_trial(agreement: float, accuracy: float | None) -> Trial:
    return Trial(
        method="int8",
        part="accepting",
        pictures=200,
        agreement=agreement,
        accuracy=accuracy,
        megabytes=1.25,
        milliseconds=2.5,
    )


@pytest.mark.parametrize(
    ("goal", "agreement", "accuracy", "accepted"),
    [
        (Goal(), 0.99, 0.5, True),
        (Goal(), 0.985, 0.9, False),
        (Goal(max_loss=0.5), 0.9, 0.895, True),
        (Goal(max_loss=0.5), 0.9, 0.89, False),
        (Goal(max_loss=0.5), 0.9, None, False),
    ],
)
def test_agreement_or_loss_decides(goal: Goal, agreement: float, accuracy: float | None, accepted: bool) -> None:
    before = make_trial(1.0, None if accuracy is None else 0.9)
    assert accepts(goal, before, make_trial(agreement, accuracy)) is accepted


def test_the_table_is_aligned() -> None:
    table = format_trials([make_trial(0.985, None), make_trial(1.0, 0.9)]).splitlines()
    assert table[1].endswith("98.50%         –  1.2  2.50")
    assert len({len(line) for line in table}) == 1


@pytest.mark.parametrize("values", [{"agreement": 99}, {"agreement": 0}, {"agreement": float("nan")}, {"max_loss": -1}])
def test_goals_that_cannot_be_meant(values: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="such as 0\\.(99|5)"):
        Goal(**values)


def test_pictures_that_prove_nothing() -> None:
    held_out = pictures(40, 3)
    facts = Metadata(preprocess=held_out.spec)
    assert held_out.targets is not None
    right = np.eye(4, dtype=np.float32)[held_out.targets]
    check_telling(held_out, right, Goal(), facts)
    noise = np.random.default_rng(0).integers(0, 256, held_out.pixels.shape, dtype=np.uint8)
    with pytest.raises(DataError, match="are noise"):
        check_telling(replace(held_out, pixels=noise), right, Goal(), facts)
    with pytest.raises(DataError, match="same class to 100.0% of 40 held-out pictures"):
        check_telling(held_out, np.ones((40, 4), dtype=np.float32), Goal(), facts)
    with pytest.raises(DataError, match="right on 0.0% of 40 held-out pictures"):
        check_telling(replace(held_out, targets=(held_out.targets + 1) % 4), right, Goal(), facts)


def test_too_large_for_onnx(plain: Plain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(int8, "ONNX", replace(int8.ONNX, largest=1000))
    with pytest.raises(WeightsError, match="int8 for ONNX Runtime is for models of up to"):
        quantize(plain.exported.manifest, plain.path("onnx"), tmp_path / "q.onnx", "onnx", CALIBRATION, Goal())


def test_smoothing_is_off_then_swept() -> None:
    for quantizer in (int8.ONNX, OPENVINO):
        swept = [method.smoothing for method in quantizer.methods]
        assert swept[0] is None
        assert {0.05, 0.15, 0.3, 0.5, 0.8, 0.95} <= set(swept)
