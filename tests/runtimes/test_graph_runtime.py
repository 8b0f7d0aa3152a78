"""What an export can do in vitrail: everything that needs no gradients, the report and occlusion included."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.data.conftest import picture
from tests.prediction.conftest import CLASSES, write_tiny
from tests.report.test_render import check_page

import vitrail
from fuzzing import FUZZ
from vitrail.cli.main import main
from vitrail.data.preprocess import Preprocess, preset
from vitrail.errors import ConfigError
from vitrail.explanation.gallery import Explained
from vitrail.runtimes.graph import prepare_in_graph
from vitrail.runtimes.graph_runtime import ExportedRuntime, frame_bytes
from vitrail.weights.adapt import Kernel
from vitrail.weights.native import fingerprint, read_native
from vitrail.weights.resolve import files_of
from vitrail.weights.write import write_checkpoint


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for label, name in enumerate(CLASSES):
        (tmp_path / "data" / name).mkdir(parents=True)
        for index in range(2):
            picture(100 * label + index).save(tmp_path / "data" / name / f"{index}.png")
    return tmp_path / "data"


def test_files_may_be_overwritten_once_an_export_is_loaded(
    exports: Path, onnx_file: Path, openvino_folder: Path
) -> None:
    image = picture(0)
    for source, name in ((onnx_file, "tiny.onnx"), (openvino_folder, "tiny")):
        predictor = vitrail.load(source)
        for file in files_of(source):
            with file.open("r+b") as stream:  # truncating it would end this process, had it mapped the file
                stream.write(bytes(file.stat().st_size))
        assert predictor.predict(image).scores == vitrail.load(exports / name).predict(image).scores


def test_an_export_gets_the_same_report_but_for_its_attention(exports: Path, data: Path) -> None:
    ours = vitrail.evaluate(exports / "tiny.safetensors", data, split="all", out=data.parent / "ours")
    assert ours.measurement is not None
    text = check_page((data.parent / "ours" / "report.html").read_text()).text
    assert "relevance" in " ".join(text)
    assert "Attention" in text
    for name in ("tiny.onnx", "tiny"):
        theirs = vitrail.evaluate(exports / name, data, split="all", out=data.parent / name)
        assert theirs.report_error is None or theirs.report_error == ""
        assert theirs.measurement is not None
        assert theirs.measurement.metrics.top1 == ours.measurement.metrics.top1
        text = check_page((data.parent / name / "report.html").read_text()).text
        assert "occlusion" in " ".join(text)
        assert "Attention" not in text
        assert "an export" in " ".join(text)


def test_occlusion_of_an_export_is_that_of_its_checkpoint(
    exports: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = picture(3, (40, 30))
    expected = vitrail.explain(str(exports / "tiny.safetensors"), image, method="occlusion")
    assert isinstance(expected, Explained)
    for name in ("tiny.onnx", "tiny"):
        explained = vitrail.explain(str(exports / name), image)
        assert isinstance(explained, Explained)
        assert explained.method == "occlusion"
        assert explained.explanation.target == expected.explanation.target
        torch.testing.assert_close(explained.map, expected.map, rtol=1e-3, atol=1e-4)
    written = vitrail.explain(str(exports / "tiny.onnx"), [image]).save(tmp_path)  # pyright: ignore
    assert sorted(path.suffix for path in written) == [".npz", ".png", ".png"]  # pyright: ignore
    image.save(tmp_path / "one.png")
    assert (
        main(["explain", str(exports / "tiny.onnx"), str(tmp_path / "one.png"), "--out", str(tmp_path / "maps")]) == 0
    )
    printed = capsys.readouterr().out
    assert "beside it: overlays, raw maps (npz)" in printed
    assert f"next: vitrail predict {exports / 'tiny.onnx'}" in printed


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "relevance"}, 'an export has neither; use method="occlusion"'),
        ({"layers": (0,)}, "layers= cannot be used with an export"),
        ({"heads": (0,), "score": True}, "heads= and score= cannot be used with an export"),
    ],
)
def test_what_looks_inside_is_refused(options: dict, message: str, exports: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        vitrail.explain(str(exports / "tiny.onnx"), picture(3), **options)


SPECS = [
    preset("timm", (32, 32)),  # a crop of the middle
    preset("hf", (32, 32)),  # squashed
    replace(preset("torchvision", (32, 32)), crop=1.0, resize_to=37),  # an odd margin
    replace(Preprocess(), size=(24, 40), crop=0.875),
]


@pytest.mark.parametrize("spec", SPECS)
def test_the_graphs_own_resizing_changes_nothing_in_a_frame(spec: Preprocess) -> None:
    levels = np.random.default_rng(0).integers(0, 256, (2, 3, *spec.size)) / 255
    mean, std = (np.array(values).reshape(3, 1, 1) for values in (spec.mean, spec.std))
    images = ((levels - mean) / std).astype(np.float32)
    prepared = prepare_in_graph(torch.from_numpy(frame_bytes(images, spec)), spec)
    np.testing.assert_allclose(prepared.numpy(), images, atol=1e-5)


@pytest.mark.parametrize("target", ["model.onnx", pytest.param("model", marks=FUZZ)])
def test_an_export_that_prepares_its_pictures_itself_is_loaded_too(target: str, tmp_path: Path, data: Path) -> None:
    write_tiny(tmp_path / "tiny.safetensors", depth=1)
    to = None if target.endswith(".onnx") else "openvino"
    vitrail.export(tmp_path / "tiny.safetensors", tmp_path / target, to=to, with_preprocess=True)
    model, export = vitrail.load(tmp_path / "tiny.safetensors"), vitrail.load(tmp_path / target)
    pictures = [picture(1, (50, 70)), picture(2, (33, 20)), picture(3, (64, 64))]  # of several sizes, in one batch
    for ours, theirs in zip(model.predict(pictures, top_k=7), export.predict(pictures, top_k=7), strict=True):
        assert theirs.labels == ours.labels
        np.testing.assert_allclose(theirs.scores, ours.scores, atol=1e-5)
    vectors = [np.asarray(each.embed(pictures[0]).vector) for each in (export, model)]
    np.testing.assert_allclose(vectors[0], vectors[1], atol=1e-4)
    assert vitrail.evaluate(export, data, split="all").measurement is not None


@pytest.mark.parametrize("resample", [pytest.param("timm", marks=FUZZ), "dinov2"])
def test_a_model_that_takes_other_pictures_than_its_positions_are_for(resample: Kernel, tmp_path: Path) -> None:
    checkpoint = read_native(write_tiny(tmp_path / "tiny.safetensors", depth=1))
    config = replace(checkpoint.config, positions=replace(checkpoint.config.positions, resample=resample))
    spec = replace(checkpoint.preprocess, size=(48, 40))
    write_checkpoint(replace(checkpoint, config=config, preprocess=spec), tmp_path / "other.safetensors")
    model = vitrail.load(tmp_path / "other.safetensors")
    vitrail.export(tmp_path / "other.safetensors", tmp_path / "other.onnx")
    export = vitrail.load(tmp_path / "other.onnx")
    images = torch.randn(2, 3, 48, 40, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(export(images), model(images), rtol=1e-4, atol=1e-4)
    assert isinstance(export.runtime, ExportedRuntime)
    assert export.runtime.manifest.weights_sha256 == fingerprint(model.checkpoint().tensors)
    assert export.grid == model.grid
    torch.testing.assert_close(model.on("onnx")(images), model(images), rtol=1e-4, atol=1e-4)
