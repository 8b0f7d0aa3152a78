"""Explanations of every family's model, from the attention that `trace` gives: products of explicit matrices."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from conftest import randomize
from families import FAMILIES
from vitrail.explanation.paper_figures import attention_distance
from vitrail.explanation.raw_attention import attention_maps, patch_attention
from vitrail.explanation.relevance import gradient_rollout, relevance, rollout
from vitrail.model import AttentionQuery, ViT, ViTConfig
from vitrail.model.attention import probabilities


@pytest.fixture(params=FAMILIES)
def model(request: pytest.FixtureRequest) -> ViT:
    return randomize(ViT(FAMILIES[request.param])).eval()


def reads(config: ViTConfig, tokens: int, probe: Tensor | None) -> Tensor:
    """The weight of each token in what the pooling reads: (B or 1, N)."""
    weights = torch.zeros(1, tokens)
    if config.pooling == "cls":
        weights[:, : config.summary_tokens] = 1 / config.summary_tokens
        return weights
    start = 0 if config.pool_prefix else config.prefix
    if probe is not None:
        return torch.cat([torch.zeros(len(probe), start), probe], dim=1)
    weights[:, start:] = 1 / (tokens - start)
    return weights


def probe_of(model: ViT, images: Tensor) -> Tensor | None:
    """What attention pooling's probe attends to, the mean of its heads."""
    if model.config.pooling != "map":
        return None
    seen: list[Tensor] = []

    def mix(layer, query, key, value, mask, dropout, /, *, scale):
        if layer == model.config.depth:
            seen.append(probabilities(query, key, scale, mask).mean(dim=1)[:, 0])
        return probabilities(query, key, scale, mask) @ value

    model.features(images, mix=mix)
    return seen[0]


@torch.no_grad()
def test_rollout_is_the_product_of_half_residuals(model: ViT) -> None:
    config, images = model.config, torch.randn(2, 3, 32, 24)
    trace = model.trace(images, attention=AttentionQuery())
    total = torch.eye(config.prefix + 12)
    for layer in range(config.depth):
        total = (0.5 * trace.attention[layer].mean(dim=1) + 0.5 * torch.eye(len(total[0]))) @ total
    weights = reads(config, config.prefix + 12, probe_of(model, images)).expand(2, -1)
    expected = torch.einsum("bn,bnk->bk", weights, total)[:, config.prefix :]
    maps, logits = rollout(model, images)
    torch.testing.assert_close(maps.flatten(1), expected, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(logits, trace.logits, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_attention_maps_are_what_the_read_tokens_attend_to(model: ViT) -> None:
    config, images = model.config, torch.randn(2, 3, 32, 24)
    attention = model.trace(images, attention=AttentionQuery()).attention
    maps = attention_maps(model, images)
    weights = reads(config, config.prefix + 12, probe_of(model, images)).expand(2, -1)
    for layer, probabilities_ in attention.items():
        expected = torch.einsum("bq,bhqk->bhk", weights, probabilities_)[:, :, config.prefix :]
        torch.testing.assert_close(maps.maps[:, layer, : config.heads].flatten(2), expected, rtol=1e-4, atol=1e-6)
    if config.pooling == "map":
        own = config.pool_heads or config.heads
        assert maps.heads == (*(config.heads,) * config.depth, own)
        last = maps.select(None, None)
        assert last.maps.shape[2] == own
        assert last.maps.isfinite().all()
    rows = patch_attention(model, images, layer=1, head=2)
    torch.testing.assert_close(rows.patches, attention[1][:, 2, config.prefix :, config.prefix :])


@pytest.mark.parametrize("merge", [(), (4, 2, 0)])
def test_relevance_follows_the_gradient(model: ViT, merge: tuple[int, ...]) -> None:
    merged = ViT(replace(model.config, merge=merge)).eval()
    merged.load_state_dict(model.state_dict())
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        expected = merged(images)
    for method in (relevance, gradient_rollout):
        maps, logits = method(merged, images, torch.tensor([5, 2]))
        assert maps.shape == (2, 4, 4)
        assert maps.isfinite().all()
        assert (maps >= -1e-6).all()
        assert maps.any()
        torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-5)
    assert attention_distance(merged, images).isfinite().all()
