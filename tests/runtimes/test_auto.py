"""The fastest runtime is chosen where that pays, once, and only if its answers are torch's."""

import io
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.prediction.conftest import CLASSES, make_predictor

import vitrail
from vitrail.cli.main import main
from vitrail.errors import ConfigError, MissingExtraError
from vitrail.prediction import Predictor
from vitrail.runtimes import auto, auto_cache, onnx_runtime, openvino_runtime
from vitrail.runtimes.auto import PLAIN, Choice, Converter, Way
from vitrail.runtimes.auto_cache import (
    DECISIONS,
    Decision,
    Outcome,
    find_graph,
    make_graph,
    read_decision,
    remember_int8,
    write_decision,
)
from vitrail.runtimes.graph_runtime import ExportedRuntime
from vitrail.runtimes.onnx_runtime import seal
from vitrail.timing import Lap
from vitrail.verbs.call import RuntimeRequest

MANY = 10**9


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with the tiny model's export in it, made once."""
    folder = tmp_path_factory.mktemp("kept")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VITRAIL_CACHE", str(folder))
        converter = converter_of(make_predictor())
        make_graph(converter.checkpoint, converter.sha256)
    return folder


@pytest.fixture
def speeds(monkeypatch: pytest.MonkeyPatch) -> list[dict[Way, float]]:
    """What each measurement finds, instead of the clock: OpenVINO is fastest; and how often was measured."""
    measured: list[dict[Way, float]] = []
    found = {PLAIN: 2.0, Way("onnx", "float32"): 1.5, Way("openvino", "float32"): 1.0}

    def measure(converter: Converter, ways: list[Way], *_: Any) -> tuple[Outcome, ...]:
        measured.append(found)
        assert converter.graph
        return tuple(Outcome(runtime=way.runtime, precision=way.precision, seconds=found[way]) for way in ways)

    monkeypatch.setattr(auto, "measure", measure)
    return measured


@pytest.fixture
def int8(predictor: Predictor, kept: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What says that it is an int8 export of the tiny model; whether it really is does not matter here."""
    shutil.copytree(kept, cache)
    kept_export = find_graph(predictor.checkpoint(), converter_of(predictor).sha256)
    assert kept_export is not None
    path = tmp_path / "model-int8.onnx"
    shutil.copy(kept_export.path, path)
    manifest = replace(kept_export.manifest, precision="int8", agreement=0.994)
    seal(path, manifest)
    remember_int8(path, manifest)
    monkeypatch.setattr(auto, "MOST_ROUNDS", 1)
    monkeypatch.setattr(auto_cache, "WORTH_OTHER", 1e-9)
    monkeypatch.setattr(auto, "computes_bf16", lambda: False)
    return path


def test_an_int8_export_that_was_made_takes_part(predictor: Predictor, int8: Path) -> None:
    said: list[str] = []
    chosen = predictor.on("auto", "auto", count=MANY, say=said.append)
    assert isinstance(chosen.runtime, ExportedRuntime)
    assert chosen.runtime.manifest.precision == "int8"
    assert re.fullmatch(
        rf"running on ONNX Runtime in int8, [\d.]+× torch here \(measured\); {re.escape(str(int8))} gave 99\.4% of "
        "held-out pictures the same class as float32",
        said[0],
    )
    assert predictor.on("openvino", "auto", count=MANY).runtime.name == "OpenVINO"
    int8.unlink()
    left = predictor.on("auto", "auto", count=MANY)
    assert not isinstance(left.runtime, ExportedRuntime) or left.runtime.manifest.precision == "float32"


def test_an_int8_export_of_other_weights_is_never_taken(predictor: Predictor, int8: Path) -> None:
    with torch.no_grad():
        predictor.model.norm.bias += 1  # pyright: ignore
    assert converter_of(predictor).int8 is None
    assert converter_of(make_predictor()).int8 is not None
    manifest = find_graph(make_predictor().checkpoint(), converter_of(make_predictor()).sha256)
    assert manifest is not None
    seal(int8, manifest.manifest)  # float32 now, at the same path
    assert converter_of(make_predictor()).int8 is None


def converter_of(predictor: Predictor) -> Converter:
    return Converter(predictor._torch(), predictor.checkpoint())


def refuse(*_: Any, **__: Any) -> Any:
    raise AssertionError("this must not be done")


def test_a_short_job_exports_and_times_nothing(predictor: Predictor, cache: Path, monkeypatch) -> None:
    monkeypatch.setattr(auto, "make_graph", refuse)
    monkeypatch.setattr(auto, "time_picture", refuse)
    monkeypatch.setattr(auto, "fingerprint", refuse)
    for count in (1, 1000, None):
        assert predictor.on("auto", count=count, say=refuse) is predictor
    assert not cache.exists()


def test_a_job_that_only_seems_long_is_timed_and_stays(predictor: Predictor, monkeypatch) -> None:
    monkeypatch.setattr(auto, "make_graph", refuse)
    monkeypatch.setattr(auto, "RATE", 1.0)
    monkeypatch.setattr(auto, "time_picture", lambda *_: 0.01)
    assert predictor.on("auto", count=6_000, say=refuse) is predictor
    monkeypatch.setattr(auto, "measure", refuse)
    with pytest.raises(AssertionError, match="must not be done"):
        predictor.on("auto", count=600_000)


def test_a_long_job_is_measured_once_and_a_stream_profits(
    predictor: Predictor, kept: Path, speeds, monkeypatch
) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(kept))
    said: list[str] = []
    assert predictor.on("auto", count=None, say=refuse) is predictor, "nothing was decided yet"
    first = predictor.on("auto", count=MANY, say=said.append)
    monkeypatch.setattr(auto, "make_graph", refuse)
    second = predictor.on("auto", count=MANY, say=said.append)
    stream = predictor.on("auto", count=None, say=said.append)
    assert {each.runtime.name for each in (first, second, stream)} == {"OpenVINO"}
    assert said == ["running on OpenVINO, 2.00× torch here (measured)"] * 3
    assert len(speeds) == 1
    assert predictor.on("auto", count=1) is predictor
    images = np.random.default_rng(0).standard_normal((3, 3, 32, 32)).astype(np.float32)
    for compute in ("logits", "features"):
        expected, found = (getattr(each.runtime, compute)(images) for each in (predictor, first))
        np.testing.assert_allclose(found, expected, atol=1e-4 * np.abs(expected).max())


def test_another_model_machine_or_number_of_threads_is_measured_again(
    predictor: Predictor, kept: Path, speeds, monkeypatch
) -> None:
    ways = [PLAIN, Way("openvino", "float32")]
    key = auto.decision_key(converter_of(predictor), ways)
    assert key == auto.decision_key(converter_of(make_predictor()), ways)
    other = make_predictor()
    with torch.no_grad():
        other.model.norm.bias += 1  # pyright: ignore
    keys = {key, auto.decision_key(converter_of(other), ways), auto.decision_key(converter_of(other), ways[:1])}
    monkeypatch.setattr(auto, "processor_name", lambda: "another")
    keys.add(auto.decision_key(converter_of(predictor), ways))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    keys.add(auto.decision_key(converter_of(predictor), ways))
    monkeypatch.setattr(auto, "installed_version", lambda name: "9")
    keys.add(auto.decision_key(converter_of(predictor), ways))
    assert len(keys) == 6


def test_small_batches_are_measured_as_such(predictor: Predictor, monkeypatch) -> None:
    sizes: list[int] = []

    def take(calls: Any, *_: Any, **__: Any) -> list[list[Lap]]:
        parts = calls[0].args[2]
        sizes.append(len(parts[0]))
        assert len(parts) * len(parts[0]) == predictor.runtime.threads * 20, "as much work as in one large call of each"
        return [[Lap(1.0, 1.0)] for _ in calls]

    monkeypatch.setattr(auto, "take_turns", take)
    converter, images = converter_of(predictor), auto.prepare_some((), predictor.checkpoint())
    for batch in (4, None, 1000):
        auto.measure(converter, [PLAIN], images, auto.CALL_SECONDS / 20.5, batch)
    assert sizes == [4, 20, 20]
    ways = [PLAIN]
    assert auto.decision_key(converter, ways, 4) != auto.decision_key(converter, ways)


@pytest.mark.parametrize("batch", [0, -3, 2.5, True])
def test_a_batch_of_no_pictures_is_refused(predictor: Predictor, batch: Any) -> None:
    with pytest.raises(ConfigError, match=f"batch= must be a whole number of at least 1; got {batch}"):
        predictor.on("auto", count=10**9, batch=batch)


def test_really_measured_and_other_answers_are_not_taken(predictor: Predictor, kept: Path, monkeypatch) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(kept))
    monkeypatch.setattr(auto, "MOST_ROUNDS", 1)
    converter = converter_of(predictor)
    real = converter.open

    def open_wrong(way: Way) -> Any:
        runtime = real(way)
        factor = {Way("onnx", "float32"): 1.01, Way("openvino", "bf16"): 1.2}.get(way, 1.0)
        logits = runtime.logits
        monkeypatch.setattr(runtime, "logits", lambda images: logits(images) * factor)
        return runtime

    monkeypatch.setattr(converter, "open", open_wrong)
    images = auto.prepare_some([], converter.checkpoint)
    ways = [PLAIN, Way("onnx", "float32"), Way("openvino", "float32"), Way("torch", "bf16"), Way("openvino", "bf16")]
    plain, wrong, right, rounded, astray = auto.measure(converter, ways, images, 0.01)
    assert plain.seconds > 0
    assert right.seconds > 0
    assert (right.problem, rounded.problem, wrong.seconds) == ("", "", 0)
    assert right.difference < 1e-4 < rounded.difference
    assert rounded.pictures == 4
    assert "gives other answers" in wrong.problem
    assert "gives other answers" in astray.problem
    assert Decision(key="", outcomes=(replace(plain, seconds=9), wrong)).best.runtime == "torch"


def test_a_runtime_that_fails_is_no_obstacle(predictor: Predictor, monkeypatch) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("unsupported operator")

    monkeypatch.setattr(auto, "make_graph", broken)
    said: list[str] = []
    assert predictor.on("auto", count=MANY, say=said.append) is predictor
    assert "OpenVINO does not run this model (unsupported operator)" in said[0]
    monkeypatch.setattr(auto, "make_graph", refuse)
    assert predictor.on("auto", count=MANY, say=refuse) is predictor, "it is not tried again and again"


def test_a_full_disk_is_not_remembered(predictor: Predictor, monkeypatch) -> None:
    def full(*_: Any) -> Any:
        raise OSError("no space left on device")

    monkeypatch.setattr(auto, "make_graph", full)
    assert predictor.on("auto", count=MANY, say=refuse) is predictor
    assert DECISIONS.is_empty


def test_damaged_and_foreign_files_of_the_cache_are_made_again(predictor: Predictor, kept: Path, monkeypatch) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(kept))
    converter = converter_of(predictor)
    found = find_graph(converter.checkpoint, converter.sha256)
    assert found is not None
    assert find_graph(converter.checkpoint, "0" * 64) is None
    whole = found.path.read_bytes()
    middle = len(whole) // 2
    for damaged in (whole[:-100], whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :], b""):
        found.path.write_bytes(damaged)
        assert find_graph(converter.checkpoint, converter.sha256) is None
    found.path.write_bytes(whole)


@pytest.mark.parametrize(
    "change",
    [
        lambda facts: facts | {"key": "other"},
        lambda facts: facts | {"more": 1},
        lambda facts: facts | {"outcomes": []},
        lambda facts: facts | {"outcomes": [facts["outcomes"][0] | {"seconds": 0}]},
        lambda facts: facts | {"outcomes": [facts["outcomes"][0] | {"runtime": "abacus"}]},
        lambda facts: [],
    ],
)
def test_an_odd_decision_counts_as_none(change) -> None:
    decision = Decision(key="key", outcomes=(Outcome(runtime="torch", precision="float32", seconds=1.0),))
    write_decision(decision)
    assert read_decision("key") == decision
    (file,) = DECISIONS.folder.iterdir()
    file.write_text(json.dumps(change(json.loads(file.read_text()))))
    assert read_decision("key") is None
    file.write_bytes(b"\xff{")
    assert read_decision("key") is None


def test_a_cache_that_cannot_be_written_is_no_error(predictor: Predictor, tmp_path: Path, speeds, monkeypatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "file"))
    written: list[Path] = []
    monkeypatch.setattr(onnx_runtime, "write_export", lambda exported, path: written.append(path) or path.touch())
    monkeypatch.setattr(openvino_runtime, "read_model", refuse)
    said: list[str] = []
    assert predictor.on("auto", count=MANY, say=said.append) is predictor
    assert "OpenVINO cannot be used now" in said[0]
    assert len(written) == 1
    assert tmp_path not in written[0].parents


def test_what_is_not_installed_is_not_thought_of(predictor: Predictor, monkeypatch) -> None:
    monkeypatch.setattr("vitrail.registry.find_spec", lambda name: None)
    monkeypatch.setattr(auto, "_decide", refuse)
    assert predictor.on("auto", count=MANY, say=refuse) is predictor
    with pytest.raises(MissingExtraError, match=r"vitrail\[export\]"):
        vitrail.load("cifar10", runtime="openvino")


def test_bf16_is_taken_where_it_gains_and_says_how_it_agrees(predictor: Predictor, monkeypatch) -> None:
    monkeypatch.setattr(auto, "computes_bf16", lambda: True)
    ways = auto.list_ways(converter_of(predictor), "auto", "auto")
    assert ways[0] == PLAIN
    assert Way("openvino", "bf16") in ways
    assert Way("onnx", "bf16") not in ways
    plain = Outcome(runtime="torch", precision="float32", seconds=1.0)
    fast = Outcome(runtime="openvino", precision="float32", seconds=0.8)
    rounded = Outcome(runtime="openvino", precision="bf16", seconds=0.75, top1=0.9375, pictures=16)
    assert Decision(key="", outcomes=(plain, fast, rounded)).best is fast
    decision = Decision(key="", outcomes=(plain, fast, replace(rounded, seconds=0.5)))
    assert decision.describe("the same class") == (
        "running on OpenVINO in bf16, 2.00× torch here (measured); the same class as in float32 for 94% of 16 pictures"
    )
    slow = replace(fast, seconds=0.99)
    assert Decision(key="", outcomes=(plain, slow)).describe("the same class") == (
        "staying on torch; here OpenVINO gives 1.01× (measured)"
    )
    monkeypatch.setattr(auto, "computes_bf16", lambda: False)
    assert {way.precision for way in auto.list_ways(converter_of(predictor), "auto", "auto")} == {"float32"}
    assert predictor.on("torch", "bf16").runtime.name == "torch in bf16"


def test_ranks_measure_nothing_and_do_as_they_are_told(predictor: Predictor, monkeypatch) -> None:
    monkeypatch.setattr(auto, "_decide", refuse)
    assert RuntimeRequest(precision="auto").unmeasured().put(predictor, MANY) is predictor
    assert RuntimeRequest(precision="bf16").unmeasured().put(predictor, MANY).runtime.name == "torch in bf16"
    assert RuntimeRequest(runtime="openvino").unmeasured().runtime == "openvino"


def test_exports_and_loaded_models_stay_where_they_are(
    predictor: Predictor, kept: Path, tmp_path: Path, monkeypatch
) -> None:
    file = next(kept.glob("exports/*/graph.onnx"))
    export = vitrail.load(file, runtime="auto")
    assert export.on("auto", count=MANY) is export
    assert vitrail.load(file, runtime="onnx").runtime.name == "ONNX Runtime"
    with pytest.raises(ConfigError, match=r"runtime= must be onnx or auto; got 'openvino'"):
        vitrail.load(file, runtime="openvino")
    with pytest.raises(ConfigError, match="is for checkpoints"):
        vitrail.load(file, precision="auto")
    with pytest.raises(ConfigError, match="is on ONNX Runtime already"):
        export.on("torch")
    with pytest.raises(ConfigError, match="ONNX Runtime computes in float32"):
        vitrail.load("cifar10", runtime="onnx", precision="bf16")
    with pytest.raises(ConfigError, match="runtime= must be one of auto, torch, onnx, openvino; got 'tensorrt'"):
        vitrail.load("cifar10", runtime="tensorrt")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="runtime= cannot change a loaded model"):
        vitrail.embed(predictor, np.zeros((8, 8, 3), dtype=np.uint8), runtime="openvino")
    with pytest.raises(ConfigError, match="load it with precision"):
        predictor.on("torch", "bf16").on("onnx")


def test_the_verbs_answer_alike_on_every_runtime(
    checkpoint_file: Path, photos: list[Path], kept: Path, tmp_path: Path, monkeypatch, capsys
) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(kept))
    monkeypatch.setattr(onnx_runtime, "write_export", refuse)
    photos[3].unlink()
    for name in CLASSES:
        (tmp_path / "data" / name).mkdir(parents=True)
        shutil.copy(photos[0], tmp_path / "data" / name / f"{name}.jpg")
    answers: dict[str, Any] = {}
    for runtime in ("torch", "onnx", "openvino"):
        assert (
            main(["predict", str(checkpoint_file), str(tmp_path / "photos"), "--runtime", runtime, "--format", "jsonl"])
            == 0
        )
        labels = [json.loads(line)["labels"] for line in capsys.readouterr().out.splitlines()]
        embeddings = vitrail.embed(checkpoint_file, tmp_path / "photos", runtime=runtime)
        evaluation = vitrail.evaluate(checkpoint_file, tmp_path / "data", split="all", runtime=runtime)
        assert evaluation.measurement is not None
        assert len(labels) == len(embeddings) == 10
        assert evaluation.facts["runtime"].lower().startswith(runtime)
        assert evaluation.predictor.runtime.name == "torch", "explanations need it"
        answers[runtime] = (labels, embeddings.features, evaluation.measurement.logits)
    for runtime in ("onnx", "openvino"):
        assert answers[runtime][0] == answers["torch"][0]
        for found, expected in zip(answers[runtime][1:], answers["torch"][1:], strict=True):
            np.testing.assert_allclose(found, expected, atol=1e-4 * np.abs(expected).max())


def test_the_verbs_say_how_much_there_is_to_do(checkpoint_file: Path, photos: list[Path], monkeypatch, capsys) -> None:
    asked: list[tuple[int | None, int]] = []

    def choose(
        own: Any, checkpoint: Any, runtime: str, precision: str, count: int | None, pictures: Any, batch: int | None
    ) -> Choice:
        assert batch is None
        asked.append((count, len(list(pictures))))
        return Choice(own, "running on something")

    monkeypatch.setattr(auto, "choose", choose)
    folder, names = str(photos[0].parent), checkpoint_file.parent / "names.txt"
    names.write_text("\n".join(map(str, photos[:2])))
    main(["predict", str(checkpoint_file), folder, str(photos[0])])
    assert "running on something" in capsys.readouterr().err
    main(["predict", str(checkpoint_file), f"{folder}/0*.jpg", "--list", str(names)])
    vitrail.embed(checkpoint_file, [folder, np.zeros((8, 8, 3), dtype=np.uint8)])
    vitrail.embed(checkpoint_file, iter(photos[:2]))
    assert asked == [(12, 12), (12, 12), (12, 12), (None, 0)]
    assert "running" not in capsys.readouterr().out
    monkeypatch.setattr("sys.stdin", io.StringIO(str(photos[0])))
    main(["predict", str(checkpoint_file), "--list", "-"])
    assert asked[-1] == (None, 0)
