"""`vitrail benchmark` on tiny models: who takes part, what is compared, what is refused. Speeds are not judged here."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.data.conftest import picture

import vitrail
from fuzzing import in_fuzz_only
from vitrail.cli.main import main
from vitrail.errors import ConfigError, DataError, VitrailError, WeightsError
from vitrail.model import BlockConfig, ConvStem
from vitrail.runtimes import contestants
from vitrail.runtimes.contestants import Contestant
from vitrail.verbs.comparison import BenchmarkRow, Comparison

QUICK = {"seconds": 0.01, "batch": (1,)}
CLASSES = tuple(f"class {index}" for index in range(7))


def labels(comparison: Comparison) -> list[str]:
    return [f"{row.contestant.label} {row.batch}" for row in comparison.rows]


@pytest.fixture(autouse=True)
def _without_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the processor of the tests computes in, and however fast it is."""
    monkeypatch.setattr(contestants, "computes_bf16", lambda: False)
    monkeypatch.setattr("vitrail.verbs.contest.measure_gemm_peak", lambda *_: 1e11)


def test_bf16_takes_part_where_the_processor_computes_in_it(
    save_model: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contestants, "computes_bf16", lambda: True)
    rows = vitrail.benchmark(save_model(depth=1), **QUICK).rows
    ways = [(row.contestant.runtime, row.contestant.precision) for row in rows]
    assert ways == [(name, number) for name in ("torch", "onnx", "openvino") for number in ("float32", "bf16")
                    if (name, number) != ("onnx", "bf16")]  # fmt: skip
    assert all(row.difference < (1e-4 if row.contestant.precision == "float32" else 0.1) for row in rows)
    assert rows[1].difference > 1e-4


@pytest.fixture
def data(inside: Path) -> Path:
    """A picture of each class to train with, and two to measure with."""
    for number, name in enumerate(CLASSES):
        for index, split in enumerate(("train", "val", "val")):
            folder = inside / "data" / split / name
            folder.mkdir(parents=True, exist_ok=True)
            picture(10 * number + index).save(folder / f"{index}.png")
    return inside / "data"


@in_fuzz_only
@pytest.mark.draws
def test_every_combination_and_what_it_writes(save_model: Callable[..., str], inside: Path, data: Path) -> None:
    name = save_model(depth=2)
    result = vitrail.benchmark(
        name, batch=(1, 3), merge=(0, 2), seconds=0.01, data=data, pictures=10, out=inside / "speed"
    )
    ways = [f"{runtime}{merge}" for merge in ("", ", merge 2") for runtime in ("torch", "onnx", "openvino")]
    assert labels(result) == [f"{way} {batch}" for way in ways for batch in (1, 3)]
    assert (result.pictures, result.split) == (10, "val")
    for row in result.rows:
        assert 0 < row.p50_ms <= row.p95_ms
        assert row.images_per_second > 0
        assert row.peak_share is not None
        assert row.peak_share > 0
        assert row.megabytes > 0
    plain, merged = result.rows[:6], result.rows[6:]
    assert all(row.difference < 1e-5 and row.same_class == 1.0 for row in plain)
    assert all(row.difference > 1e-5 for row in merged), "merging changes something, and nobody forgot it"
    evaluation = vitrail.evaluate(name, data, split="val")
    everything = vitrail.benchmark(name, **QUICK, runtimes=["torch"], data=data)
    assert everything.rows[0].accuracy == pytest.approx(evaluation.metrics.top1.value)
    facts = json.loads((inside / "speed" / "benchmark.json").read_text())
    assert len(facts["rows"]) == 12
    assert facts["rows"][-1] == json.loads(json.dumps(result.rows[-1].facts()))
    table = (inside / "speed" / "benchmark.md").read_text()
    assert table == result._repr_markdown_()
    assert "| openvino, merge 2 | float32 | 3 |" in table
    with Image.open(inside / "speed" / "benchmark.png") as image:
        assert np.asarray(image.convert("L")).std() > 10


@in_fuzz_only
def test_exports_of_the_same_weights_beside_the_model(
    save_model: Callable[..., str], inside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = save_model(depth=1)
    vitrail.export(name, "model.onnx")
    assert main(["benchmark", name, "--runtimes", "torch", "--with", "model.onnx", "--batch", "1", "--seconds", "0.01",
                 "--json"]) == 0  # fmt: skip
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [(row["runtime"], row["export"]) for row in rows] == [("torch", ""), ("onnx", "model.onnx")]
    assert rows[1]["difference"] < 1e-5
    vitrail.export(name, "whole.onnx", with_preprocess=True)
    whole = vitrail.benchmark(name, **QUICK, runtimes=["torch"], exports=["whole.onnx"])
    assert whole.rows[-1].difference < 0.02, "probabilities instead of logits are no difference"
    alone = vitrail.benchmark("model.onnx", **QUICK)
    assert labels(alone) == ["onnx, model.onnx 1"]
    assert alone.rows[0].difference == 0
    with pytest.raises(ConfigError, match="need the checkpoint that it was made from"):
        vitrail.benchmark("model.onnx", **QUICK, merge=(2,))
    other = save_model("other.safetensors", width=16)
    with pytest.raises(WeightsError, match=r"model\.onnx is not an export of this model: it was made from other"):
        vitrail.benchmark(other, **QUICK, exports=["model.onnx"])
    with pytest.raises(WeightsError, match=r"exports= takes what `vitrail export` wrote.*other\.safetensors is none"):
        vitrail.benchmark(name, **QUICK, exports=[other])
    assert main(["benchmark", other, "--with", "model.onnx"]) == 2


def test_an_export_that_was_loaded_in_bf16(save_model: Callable[..., str]) -> None:
    vitrail.export(save_model(depth=1), "model", to="openvino")
    (row,) = vitrail.benchmark(vitrail.load("model", precision="bf16"), **QUICK).rows
    assert (row.contestant.runtime, row.contestant.precision, row.peak_share) == ("openvino", "bf16", None)


def test_the_same_weights_in_other_libraries(save_model: Callable[..., str]) -> None:
    name = save_model(depth=1)
    result = vitrail.benchmark(name, **QUICK, runtimes=["torch"], compare=["timm", "transformers", "torchvision"])
    assert labels(result) == ["torch 1", "timm 1", "transformers 1", "torchvision 1"]
    assert all(row.difference < 1e-5 and row.same_class == 1.0 for row in result.rows)
    assert all(row.contestant.is_peer for row in result.rows[1:])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"runtimes": ["onyx"]}, ConfigError, "unknown runtime 'onyx'; did you mean onnx"),
        ({"precision": ["float16"]}, ConfigError, "unknown precision 'float16'"),
        ({"precision": ["int8"]}, ConfigError, "For int8, export the model and pass exports="),
        ({"precision": ["bf16"]}, ConfigError, "does not compute in bf16"),
        ({"compare": ["keras"]}, ConfigError, "unknown library 'keras' in compare="),
        ({"merge": (-1,)}, ConfigError, "merge= must be whole numbers of at least 0; got -1"),
        ({"batch": ()}, ConfigError, "batch= must be whole numbers of at least 1; got none"),
        ({"threads": (10_000,)}, ConfigError, "threads= must be whole numbers of at least 1 and at most"),
        ({"seconds": 0.0}, ConfigError, "seconds= must be above 0"),
        ({"split": "val"}, ConfigError, "go with data="),
        ({"data": "nowhere"}, VitrailError, "nowhere"),
        ({"exports": ["nowhere.onnx"]}, VitrailError, "nowhere.onnx"),
        ({"out": "model.safetensors"}, ConfigError, "must be a folder; it is a file"),
    ],
)
def test_mistakes_are_errors_before_anything_is_measured(
    arguments: dict[str, Any],
    error: type[VitrailError],
    message: str,
    save_model: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(contestants.Workshop, "build", lambda *_: pytest.fail("nothing may be built"))
    with pytest.raises(error, match=message):
        vitrail.benchmark(save_model(), **{**QUICK, **arguments})


def test_what_does_not_fit_together(
    save_model: Callable[..., str], data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contestants.Workshop, "build", lambda *_: pytest.fail("nothing may be built"))
    with pytest.raises(DataError, match="the model and the data must have the same classes"):
        vitrail.benchmark(save_model(num_classes=5), **QUICK, data=data)
    odd = save_model("odd.safetensors", stem=ConvStem(widths=(8,), strides=(2,)), patch_size=(4, 4))
    with pytest.raises(WeightsError, match="timm cannot hold this model"):
        vitrail.benchmark(odd, **QUICK, compare=["timm"])
    swiglu = save_model("swiglu.safetensors", block=BlockConfig(mlp="swiglu"))
    with pytest.raises(WeightsError, match="torchvision cannot hold this model"):
        vitrail.benchmark(swiglu, **QUICK, compare=["torchvision"])
    real = contestants.find_spec
    for module in ("registry", "runtimes.contestants"):
        monkeypatch.setattr(
            f"vitrail.{module}.find_spec", lambda name: None if name in ("openvino", "timm") else real(name)
        )
    with pytest.raises(ConfigError, match=r'openvino: not installed; run: pip install "vitrail\[export\]"'):
        vitrail.benchmark(odd, **QUICK, runtimes=["openvino"])
    with pytest.raises(ConfigError, match=r'timm is not installed; run: pip install "vitrail\[peers\]"'):
        vitrail.benchmark(odd, **QUICK, compare=["timm"])
    assert contestants.check_runtimes(None) == (["torch", "onnx"], ["openvino"])


def test_lists_on_the_command_line(save_model: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    name = save_model(depth=1, num_classes=0)
    assert main(["benchmark", name, "--runtimes", "torch", "--merge", "0,1", "--batch", "1,2", "--threads", "1",
                 "--seconds", "0.01"]) == 0  # fmt: skip
    out = capsys.readouterr().out
    assert out.count("float32") == 5, "four rows, and the title"
    assert "same class" not in out, "there are no classes"
    for flag, text in (("--merge", "0,x"), ("--batch", ","), ("--threads", "-1")):
        assert main(["benchmark", name, flag, text]) == 2
        assert f"{flag} must be whole numbers" in capsys.readouterr().err


def rows_of(*speeds: tuple[str, int, float, float | None]) -> tuple[BenchmarkRow, ...]:
    return tuple(
        BenchmarkRow(
            contestant=Contestant(runtime=runtime, merge=merge),
            batch=8,
            threads=2,
            p50_ms=1.0,
            p95_ms=2.0,
            images_per_second=speed,
            megabytes=1.0,
            same_class=1.0,
            difference=0.0,
            accuracy=accuracy,
        )
        for runtime, merge, speed, accuracy in speeds
    )


def test_the_curve_joins_what_differs_only_in_merging() -> None:
    rows = rows_of(("torch", 0, 10, 0.9), ("torch", 4, 15, 0.88), ("onnx", 0, 20, 0.9), ("timm", 0, 9, 0.9))
    machine = {"processor": "P", "cores": 2, "gemm_gflops": {2: 100.0}, "versions": {}}
    figure = Comparison(model="m", rows=rows, machine=machine, pictures=4, data="d", split="val").figure()
    bars, curve = figure.axes
    assert len(bars.patches) == 4
    drawn = {str(line.get_label()): np.asarray(line.get_xydata()).tolist() for line in curve.get_lines()}
    assert drawn["torch, float32"] == [[10, 90], [15, 88]]
    assert set(drawn) == {"torch, float32", "onnx, float32", "timm, float32"}
