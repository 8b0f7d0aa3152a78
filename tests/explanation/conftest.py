"""What the tests of explanations share: a loaded model without a file, and an eager forward pass to compare with."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from vitrail.data.preprocess import Preprocess
from vitrail.model import ConvStem, ResNetStem, ViT
from vitrail.prediction import Predictor
from vitrail.runtimes.torch_runtime import TorchRuntime

# Every way in which a model reads its tokens, on square and other grids.
SHAPES: dict[str, dict[str, Any]] = {
    "cls": {},
    "cls, registers": {"registers": 3},
    "one layer": {"depth": 1},
    "mean": {"pooling": "mean"},
    "mean, no [cls]": {"pooling": "mean", "class_token": False},
    "mean, registers, norm after": {"pooling": "mean", "registers": 2, "pool_norm": "after"},
    "map": {"pooling": "map"},
    "map, no [cls], norm after": {"pooling": "map", "class_token": False, "pool_norm": "after"},
    "map, registers": {"pooling": "map", "registers": 2, "representation": 20},
    "not square": {"image_size": (32, 48), "patch_size": (8, 16)},
    "mean, not square": {"image_size": (48, 24), "pooling": "mean", "registers": 1},
    "conv stem": {"stem": ConvStem(widths=(8, 16), strides=(2, 2)), "patch_size": (2, 2)},
    "resnet stem, mean": {
        "stem": ResNetStem(blocks=(1,), width_factor=0.5, groups=4),
        "patch_size": (2, 2),
        "pooling": "mean",
    },
}


@pytest.fixture
def make_loaded(make_model: Callable[..., ViT]) -> Callable[..., Predictor]:
    """A tiny loaded model with random weights and names for its classes."""

    def make(**changes: Any) -> Predictor:
        model = make_model(**changes)
        names = tuple("abcdefgh"[: model.config.num_classes]) or None
        channels = model.config.channels
        spec = Preprocess(
            size=model.config.image_size, channels=channels, mean=(0.5,) * channels, std=(0.5,) * channels
        )
        return Predictor(runtime=TorchRuntime(model), preprocess=spec, classes=names)

    return make


def images_for(model: ViT, batch: int = 2) -> Tensor:
    return torch.randn(batch, model.config.channels, *model.config.image_size)


def eager(model: Any, images: Tensor) -> tuple[Tensor, list[list[Tensor]], list[Tensor] | None]:
    """Logits, the probabilities of each layer (B, H, N, N) and those of attention pooling, written out step by step."""
    config = model.config
    tokens, *_ = model.embed(images)
    kept = []
    for block in model.blocks:
        normed = block.norm1(tokens)
        weight, bias = block.attention.qkv.weight, block.attention.qkv.bias
        heads = []
        for head in range(config.heads):
            parts = []
            for kind in range(3):
                start = kind * config.width + head * config.head_size
                rows = slice(start, start + config.head_size)
                parts.append(normed @ weight[rows].T + bias[rows])
            scores = torch.einsum("bik,bjk->bij", parts[0], parts[1]) / config.head_size**0.5
            probabilities = scores.exp() / scores.exp().sum(dim=-1, keepdim=True)
            probabilities.retain_grad()
            heads.append((probabilities, parts[2]))
        kept.append([probabilities for probabilities, _ in heads])
        tokens = tokens + block.attention.proj(torch.cat([a @ v for a, v in heads], dim=-1))
        tokens = tokens + block.mlp(block.norm2(tokens))
    pooled_with = None
    if config.pooling == "cls":
        pooled = model.norm(tokens)[:, 0]
    else:
        tokens = model.norm(tokens) if config.pool_norm == "before" else tokens
        patches = tokens[:, config.prefix :]
        if config.pooling == "mean":
            pooled = patches.mean(dim=1)
        else:
            pooled, pooled_with = _probe(model.pool, patches, config)
        pooled = pooled if config.pool_norm == "before" else model.norm(pooled)
    if model.representation is not None:
        pooled = torch.tanh(model.representation(pooled))
    return model.head(pooled), kept, pooled_with


def _probe(pool: Any, patches: Tensor, config: Any) -> tuple[Tensor, list[Tensor]]:
    query = pool.query(pool.probe)[0, 0]
    keys, values = pool.key_value(patches).chunk(2, dim=-1)
    mixed, kept = [], []
    for head in range(config.heads):
        part = slice(head * config.head_size, (head + 1) * config.head_size)
        row = torch.softmax(keys[..., part] @ query[part] / config.head_size**0.5, dim=1)  # (B, h·w)
        row.retain_grad()
        kept.append(row)
        mixed.append(torch.einsum("bp,bpk->bk", row, values[..., part]))
    pooled = pool.proj(torch.cat(mixed, dim=-1))
    return pooled + pool.mlp(pool.norm(pooled)), kept
