"""The preprocessing inside a graph, beside Pillow and torch: the same pixels up to one level of 255."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.data.conftest import picture
from tests.prediction.conftest import write_tiny

import vitrail
from vitrail.data.preprocess import PRESETS, Preprocess, preset
from vitrail.data.transform import prepare
from vitrail.errors import ConfigError
from vitrail.runtimes.onnx_runtime import make_session
from vitrail.runtimes.openvino_runtime import Requests, compile_model, read_model
from vitrail.runtimes.resizing import check_resizable, prepare_in_graph

SPECS = {name: preset(name, 32) for name in PRESETS} | {
    "as released": PRESETS["torchvision"],
    "not square": replace(preset("timm", (24, 40)), crop=0.8),
    "lanczos, floor": replace(preset("clip", 31), interpolation="lanczos", anchor="floor", crop=0.7),
    "bytes, bicubic": replace(preset("hf", 32), interpolation="bicubic", resize="shortest"),
    "float, bicubic": replace(preset("google", 32), interpolation="bicubic"),
}
SIZES = [(70, 50), (50, 71), (20, 16), (32, 32), (97, 33)]  # (width, height): shrunk, enlarged, as they are


@pytest.mark.parametrize("name", SPECS)
def test_the_pixels_are_those_of_the_transform(name: str) -> None:
    spec = SPECS[name]
    check_resizable(spec)
    for number, size in enumerate(SIZES):
        image = picture(number, size)
        expected = prepare(image, spec)
        actual = prepare_in_graph(torch.from_numpy(np.array(image))[None], spec)[0]
        levels = (actual - expected).abs() * torch.tensor(spec.std).view(3, 1, 1) * 255
        assert actual.shape == expected.shape
        assert levels.max() <= 1.01, f"{size}: {levels.max():.2f} levels"
        assert levels.mean() < 0.1, f"{size}: {levels.mean():.2f} levels on average"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"interpolation": "nearest"}, "bilinear, bicubic, lanczos; this model's interpolation is 'nearest'"),
        ({"channels": 1, "mean": (0.5,), "std": (0.5,)}, "RGB pictures; this model has 1 channel"),
    ],
)
def test_what_the_graph_cannot_do_is_refused(change: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_resizable(replace(Preprocess(), **change))


def test_an_export_that_takes_files_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    checkpoint = write_tiny(tmp_path / "tiny.safetensors", depth=1)
    result = vitrail.export(checkpoint, path, with_preprocess=True)
    assert result.outputs == ("probabilities", "features")
    model = vitrail.load(checkpoint)
    session = make_session(path, 1)
    requests = Requests(compile_model(read_model(path), 1, "float32", "model"))
    for size in ((70, 50), (20, 31)):
        image = picture(7, size)
        expected = model.predict(image, top_k=7)
        batch = np.stack([np.array(image)] * 2)
        for rows in (session.run(None, {"images": batch})[0], requests.call(batch)[0]):
            assert rows.shape == (2, 7)
            np.testing.assert_allclose(np.sort(rows[1])[::-1], expected.scores, atol=5e-3)
            assert int(rows[0].argmax()) == expected.indices[0]
