"""Every kind of model, exported once, beside torch: in ONNX Runtime and in OpenVINO, which reads the same file."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.data.conftest import picture
from tests.prediction.conftest import write_tiny
from torch import Tensor, nn

import vitrail
from fuzzing import FUZZ, in_fuzz_only
from vitrail.data.preprocess import PRESETS, Preprocess, preset
from vitrail.data.transform import prepare
from vitrail.errors import ConfigError, InputError
from vitrail.model import BlockConfig, ConvStem, PositionConfig, ResNetStem, ViT, with_merging
from vitrail.model.attention import Attention
from vitrail.model.positions import RESAMPLE, resample_positions
from vitrail.runtimes.exporter import Exported, prepare_export
from vitrail.runtimes.graph import Graph, GraphAttention, GraphOptions, check_resizable, in_graph_form, prepare_in_graph
from vitrail.runtimes.onnx_runtime import make_session, write_export
from vitrail.runtimes.openvino_runtime import Requests, compile_model, read_model
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.metadata import Metadata

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


# Each takes seconds; tests/runtimes/test_families.py has the usual ones.
RARE = ("free sizes", "free axes", "hybrid", "map")


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=FUZZ) if kind in RARE else kind for kind in KINDS])
def test_every_kind_of_model_in_both_runtimes(kind: str, make_model: Callable[..., ViT], tmp_path: Path) -> None:
    depth = 1 if KINDS[kind].get("pooling") else 2  # the last block is another one where [cls] is pooled
    model = make_model(depth=depth, **KINDS[kind])
    config = model.config
    spec = preset("timm", config.image_size, config.channels)
    checkpoint = Checkpoint(config=config, tensors=model.state_dict(), preprocess=spec)
    exported = prepare_export(checkpoint, OPTIONS.get(kind, GraphOptions()))
    write_export(exported, tmp_path / "model.onnx")
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


@in_fuzz_only
def test_a_picture_with_too_few_patches_to_merge_is_refused(make_model: Callable[..., ViT], tmp_path: Path) -> None:
    model = make_model(depth=2, merge=(2, 0))
    checkpoint = Checkpoint(config=model.config, tensors=model.state_dict(), preprocess=preset("timm", 32))
    write_export(prepare_export(checkpoint, GraphOptions(dynamic_size=True)), tmp_path / "model.onnx")
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


@in_fuzz_only
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
        # OpenVINO antialiases otherwise.
        module.kernels = [kernel for kernel in kernels if not RESAMPLE[kernel].get("antialias")]
        rows = dict(zip(kernels, runs["OpenVINO"](images.numpy()), strict=True))
        assert_same(lambda _: [rows[kernel] for kernel in module.kernels], module, images, f"OpenVINO at {size}")  # noqa: B023
        module.kernels = kernels


def test_what_no_runtime_can_do_is_refused(make_model: Callable[..., ViT]) -> None:
    model = make_model(positions=PositionConfig(resample="dinov2"))
    spec = preset("timm", model.config.image_size)
    with pytest.raises(ConfigError, match="dynamic_size= cannot export how dinov2 resamples positions"):
        Graph(model, Metadata(preprocess=spec), GraphOptions(dynamic_size=True))
    assert Graph(model, Metadata(preprocess=spec), GraphOptions()).outputs == ("logits", "features")
    with pytest.raises(ConfigError, match="omit dynamic_size="):
        GraphOptions(dynamic_size=True, with_preprocess=True)
    with pytest.raises(InputError, match="layer must be between"):
        Graph(model, Metadata(preprocess=spec), GraphOptions(attention=(9,)))


BLOCK_KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "no bias": {"block": BlockConfig(qkv_bias=False)},
    "own scale": {"block": BlockConfig(attention_scale=0.7)},
    "norms": {"block": BlockConfig(qk_norm=True)},
    "mean": {"pooling": "mean"},
    "map": {"class_token": False, "pooling": "map"},
}


@pytest.mark.parametrize("kind", BLOCK_KINDS)
@pytest.mark.parametrize("merge", [0, 2])
def test_the_model_computes_the_same_in_both_forms(kind: str, merge: int, make_model: Callable[..., ViT]) -> None:
    model = make_model(**BLOCK_KINDS[kind]).eval()
    if merge:
        merging = ViT(with_merging(model.config, merge)).eval()
        merging.load_state_dict(model.state_dict())
        model = merging
    spec = preset("timm", model.config.image_size, model.config.channels)
    graph = Graph(model, Metadata(preprocess=spec), GraphOptions()).eval()
    images = torch.randn(3, model.config.channels, *model.config.image_size)
    with torch.inference_mode():
        own = graph(images)
        with graph.written_out():
            assert all(isinstance(block.attention, GraphAttention) for block in model.blocks)
            written = graph(images)
    for ours, theirs in zip(own, written, strict=True):
        torch.testing.assert_close(theirs, ours, rtol=1e-5, atol=1e-5)


def test_the_models_own_attention_comes_back_also_after_an_error(make_model: Callable[..., ViT]) -> None:
    model = make_model()
    before = [block.attention for block in model.blocks]
    with pytest.raises(RuntimeError, match="stop"), in_graph_form(model):
        raise RuntimeError("stop")
    assert [block.attention for block in model.blocks] == before
    assert all(isinstance(attention, Attention) for attention in before)


@pytest.fixture
def graph_file(make_model: Callable[..., ViT], tmp_path: Path) -> tuple[Path, Graph]:
    model = make_model(depth=2)
    spec = preset("timm", model.config.image_size, model.config.channels)
    checkpoint = Checkpoint(config=model.config, tensors=model.state_dict(), preprocess=spec)
    exported = prepare_export(checkpoint, GraphOptions())
    write_export(exported, tmp_path / "model.onnx")
    return tmp_path / "model.onnx", exported.graph


def test_graphs_have_no_fused_product_to_split(graph_file: tuple[Path, Graph]) -> None:
    import onnx

    graph: Any = onnx.load(str(graph_file[0])).graph
    kinds = [node.op_type for node in graph.node]
    assert "Split" not in kinds
    assert kinds.count("Softmax") == 2


def is_attention(product: Any) -> bool:
    return len(product.get_output_partial_shape(0)) == 4  # (B, H, …): the others have no heads


def test_openvino_transposes_keys_in_the_product(graph_file: tuple[Path, Graph]) -> None:
    path, graph = graph_file
    model = read_model(path)
    products = [node for node in model.get_ordered_ops() if node.get_type_name() == "MatMul" and is_attention(node)]
    joined = [node for node in products if node.get_attributes()["transpose_b"]]
    assert len(joined) == graph.model.config.depth
    for node in products:
        parent = node.input_value(1).get_node()
        if parent.get_type_name() == "Transpose":
            assert list(parent.input_value(1).get_node().data) == [0, 2, 1, 3]
    images = torch.randn(2, 3, *graph.model.config.image_size)
    with torch.inference_mode():
        expected = graph(images)[0].numpy()
    logits = Requests(compile_model(model, 1, "float32", "the model")).call(images.numpy())[0]
    np.testing.assert_allclose(logits, expected, atol=2e-5 * float(np.abs(expected).max()))


SPECS = {name: preset(name, 32) for name in PRESETS} | {
    "as released": PRESETS["torchvision"],
    "not square": replace(preset("timm", (24, 40)), crop=0.8),
    "corner": replace(preset("hf", 28), crop=28 / 32, anchor="corner"),
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


@in_fuzz_only
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
