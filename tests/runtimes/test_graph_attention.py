"""Attention in the form that graphs have, beside the model's own."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from vitrail.data.preprocess import preset
from vitrail.model import BlockConfig, ViT, with_merging
from vitrail.model.attention import Attention
from vitrail.runtimes.exporting import prepare_export, write_onnx
from vitrail.runtimes.graph import Graph, GraphOptions
from vitrail.runtimes.graph_attention import GraphAttention, in_graph_form
from vitrail.runtimes.openvino_runtime import Requests, compile_model, read_model
from vitrail.weights.checkpoint import Checkpoint

KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "no bias": {"block": BlockConfig(qkv_bias=False)},
    "own scale": {"block": BlockConfig(attention_scale=0.7)},
    "norms": {"block": BlockConfig(qk_norm=True)},
    "mean": {"pooling": "mean"},
    "map": {"class_token": False, "pooling": "map"},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("merge", [0, 2])
def test_the_model_computes_the_same_in_both_forms(kind: str, merge: int, make_model: Callable[..., ViT]) -> None:
    model = make_model(**KINDS[kind]).eval()
    if merge:
        merging = ViT(with_merging(model.config, merge)).eval()
        merging.load_state_dict(model.state_dict())
        model = merging
    graph = Graph(model, preset("timm", model.config.image_size, model.config.channels), GraphOptions()).eval()
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
    write_onnx(exported, tmp_path / "model.onnx")
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
