"""Every kind of model, exported once, beside torch: in ONNX Runtime and in OpenVINO, which reads the same file."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import vitrail
from vitrail.data.preprocess import preset
from vitrail.errors import ConfigError, InputError
from vitrail.model import BlockConfig, ConvStem, PositionConfig, ResNetStem, ViT
from vitrail.model.positions import RESAMPLE, resample_positions
from vitrail.runtimes.exporting import Exported, prepare_export, write_onnx
from vitrail.runtimes.graph import Graph, GraphOptions
from vitrail.runtimes.onnx_runtime import make_session
from vitrail.runtimes.openvino_runtime import Requests, compile_model, read_model
from vitrail.weights.checkpoint import Checkpoint

# Each option of a model is in one of these at least, and most meet several others.
KINDS: dict[str, dict[str, Any]] = {
    "paper": {"representation": 24, "block": BlockConfig(activation="gelu_tanh", norm_eps=1e-4)},
    "registers": {
        "image_size": (32, 48),
        "registers": 2,
        "positions": PositionConfig(covers="all"),
        "block": BlockConfig(qk_norm=True, layer_scale=1e-2),
        "stem": ConvStem(widths=(8, 16), strides=(2, 1)),
        "patch_size": (4, 8),
    },
    "grey": {
        "channels": 1,
        "class_token": False,
        "pooling": "mean",
        "pool_norm": "after",
        "block": BlockConfig(mlp="swiglu", attention_scale=0.3),
        "positions": PositionConfig(kind="axes"),
        "stem": ConvStem(widths=(8,), strides=(2,), norm="group"),
        "patch_size": (4, 4),
    },
    "map": {
        "class_token": False,
        "pooling": "map",
        "positions": PositionConfig(kind="sincos"),
        "stem": ConvStem(widths=(6, 8), strides=(2, 2), norm="none", pool=True),
        "patch_size": (2, 2),
    },
    "hybrid": {
        "stem": ResNetStem(blocks=(1, 1), width_factor=0.25, groups=4, ws_form="variance"),
        "patch_size": (1, 1),
        "pooling": "mean",
        "registers": 1,
        "block": BlockConfig(qkv_bias=False, mlp="swiglu"),
    },
    "headless": {"num_classes": 0, "positions": PositionConfig(kind="none"), "pooling": "mean", "image_size": (24, 40)},
    "free sizes": {"positions": PositionConfig(resample="hf"), "block": BlockConfig(qk_norm=True)},
    "free axes": {
        "positions": PositionConfig(kind="axes"),
        "class_token": False,
        "pooling": "map",
        "pool_norm": "after",
        "image_size": (24, 32),
        "stem": ConvStem(widths=(8,), strides=(2,), norm="batch"),
        "patch_size": (4, 4),
    },
}
OPTIONS = {
    "paper": GraphOptions(attention=(0, -1)),
    "free sizes": GraphOptions(dynamic_size=True),
    "free axes": GraphOptions(dynamic_size=True),
}
Run = Callable[[Any], Sequence[Any]]


def both_runtimes(path: Path) -> dict[str, Run]:
    session = make_session(path, 1)
    requests = Requests(compile_model(read_model(path), 1, "float32", str(path)))
    return {"ONNX Runtime": lambda images: session.run(None, {"images": images}), "OpenVINO": requests.call}


def assert_same(run: Run, graph: nn.Module, images: Tensor, who: str) -> None:
    with torch.inference_mode():
        expected = graph(images)
    actual = run(images.numpy())
    assert len(actual) == len(expected)
    for ours, theirs in zip(expected, actual, strict=True):
        assert theirs.shape == tuple(ours.shape), who
        np.testing.assert_allclose(theirs, ours.detach().numpy(), atol=2e-5 * float(ours.abs().max()), err_msg=who)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_model_in_both_runtimes(kind: str, make_model: Callable[..., ViT], tmp_path: Path) -> None:
    depth = 1 if KINDS[kind].get("pooling") else 2  # the last block is another one where [cls] is pooled
    model = make_model(depth=depth, **KINDS[kind])
    config = model.config
    spec = preset("timm", config.image_size, config.channels)
    checkpoint = Checkpoint(config=config, tensors=model.state_dict(), preprocess=spec)
    exported = prepare_export(checkpoint, OPTIONS.get(kind, GraphOptions()))
    write_onnx(exported, tmp_path / "model.onnx")
    for who, run in both_runtimes(tmp_path / "model.onnx").items():
        for batch in (1, 3):
            assert_same(run, exported.graph, torch.randn(batch, config.channels, *config.image_size), who)
        if exported.graph.options.dynamic_size:
            rows, columns = config.stride
            for size in ((5 * rows, 7 * columns), (2 * rows, columns)):
                assert_same(run, exported.graph, torch.randn(2, config.channels, *size), f"{who} at {size}")
    assert exported.manifest.outputs == outputs_of(exported)


def outputs_of(exported: Exported) -> tuple[str, ...]:
    head = ("logits",) if exported.manifest.num_classes else ()
    return (*head, "features", *(["attention_0", "attention_1"] if exported.graph.options.attention else []))


def test_a_picture_with_too_few_patches_to_merge_is_refused(make_model: Callable[..., ViT], tmp_path: Path) -> None:
    model = make_model(depth=2, merge=(2, 0))
    checkpoint = Checkpoint(config=model.config, tensors=model.state_dict(), preprocess=preset("timm", 32))
    write_onnx(prepare_export(checkpoint, GraphOptions(dynamic_size=True)), tmp_path / "model.onnx")
    runtime = vitrail.load(tmp_path / "model.onnx").runtime
    assert runtime.logits(np.zeros((1, 3, 8, 16), np.float32)).shape == (1, 7)
    with pytest.raises(InputError, match="merges patches, and a picture of 8×8 pixels has too few"):
        runtime.logits(np.zeros((1, 3, 8, 8), np.float32))


class Resampled(nn.Module):
    """Positions of a 4×4 grid on the grid of a picture with patches of 8 pixels, with each kernel."""

    def __init__(self, kernels: Sequence[str]) -> None:
        super().__init__()
        self.kernels = kernels
        self.positions = nn.Parameter(torch.randn(1, 16, 8))

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        grid = (images.shape[2] // 8, images.shape[3] // 8)
        return tuple(resample_positions(self.positions, (4, 4), grid, kernel) for kernel in self.kernels)


@pytest.mark.filterwarnings("ignore")  # torch's exporter uses what torch has deprecated
def test_each_kernel_of_positions_with_free_sizes(tmp_path: Path) -> None:
    kernels = [kernel for kernel in RESAMPLE if kernel != "dinov2"]  # refused, below
    module = Resampled(kernels).eval()
    sides = {2 + axis: 8 * torch.export.Dim(name) for axis, name in enumerate(("rows", "columns"))}
    program = torch.onnx.export(
        module, (torch.randn(1, 1, 32, 32),), dynamo=True, opset_version=20, dynamic_shapes=(sides,), verbose=False,
        input_names=["images"], output_names=kernels,
    )  # fmt: skip
    assert program is not None
    program.save(str(tmp_path / "positions.onnx"))
    runs = both_runtimes(tmp_path / "positions.onnx")
    for size in ((40, 56), (16, 24), (32, 32)):
        images = torch.randn(1, 1, *size)
        assert_same(runs["ONNX Runtime"], module, images, f"ONNX Runtime at {size}")
        module.kernels = [kernel for kernel in kernels if kernel != "timm"]  # antialiased otherwise by OpenVINO
        rows = dict(zip(kernels, runs["OpenVINO"](images.numpy()), strict=True))
        assert_same(lambda _: [rows[kernel] for kernel in module.kernels], module, images, f"OpenVINO at {size}")  # noqa: B023
        module.kernels = kernels


def test_what_no_runtime_can_do_is_refused(make_model: Callable[..., ViT]) -> None:
    model = make_model(positions=PositionConfig(resample="dinov2"))
    spec = preset("timm", model.config.image_size)
    with pytest.raises(ConfigError, match="dynamic_size= cannot export how dinov2 resamples positions"):
        Graph(model, spec, GraphOptions(dynamic_size=True))
    assert Graph(model, spec, GraphOptions()).outputs == ("logits", "features")
    with pytest.raises(ConfigError, match="omit dynamic_size="):
        GraphOptions(dynamic_size=True, with_preprocess=True)
    with pytest.raises(InputError, match="layer must be between"):
        Graph(model, spec, GraphOptions(attention=(9,)))
