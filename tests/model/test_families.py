"""What must hold for the model of every family, whatever options it has: each pair is computed in two ways."""

from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from conftest import randomize
from families import FAMILIES
from vitrail.model import AttentionQuery, Rates, ViT, ViTConfig
from vitrail.model.attention import probabilities
from vitrail.schema import from_dict, to_dict


@pytest.fixture(params=FAMILIES)
def config(request: pytest.FixtureRequest) -> ViTConfig:
    return FAMILIES[request.param]


def make(config: ViTConfig) -> ViT:
    model = ViT(config).eval()
    randomize(model)
    return model


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=2e-6)


def plain(
    layer: int, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float, /, *, scale: float
) -> Tensor:
    return probabilities(query, key, scale, mask) @ value


@torch.no_grad()
def test_a_batch_is_its_pictures_one_by_one(config: ViTConfig) -> None:
    model, images = make(config), torch.randn(3, 3, 24, 40)
    close(model(images), torch.cat([model(image[None]) for image in images]))


@torch.no_grad()
def test_fused_attention_is_plain_attention(config: ViTConfig) -> None:
    model, images = make(config), torch.randn(2, 3, 32, 32)
    close(model.features(images, mix=plain), model.features(images))


@torch.no_grad()
def test_a_list_of_sizes_is_each_by_itself(config: ViTConfig) -> None:
    model = make(config)
    images = [torch.randn(3, *size) for size in ((32, 32), (16, 48), (24, 8))]
    close(model(images), torch.cat([model(image[None]) for image in images]))


@torch.no_grad()
def test_padding_is_never_read(config: ViTConfig) -> None:
    """What stands where the mask says that nothing is changes nothing."""
    model, images = make(config), torch.randn(2, 3, 32, 32)
    mask = torch.ones(2, 4, 4, dtype=torch.bool)
    mask[:, 3], mask[1, :, 2:] = False, False
    other = images.clone()
    other[:, :, 24:], other[1, :, :, 16:] = 3.0, -5.0
    close(model(other, mask), model(images, mask))


@torch.no_grad()
def test_what_is_kept_is_what_all_tokens_give(config: ViTConfig) -> None:
    model, images = make(config), torch.randn(2, 3, 32, 24)
    trace = model.trace(images, attention=AttentionQuery())
    close(trace.logits, model(images))
    close(trace.tokens, model.tokens(images))
    close(trace.features, model.features(images))
    for maps in trace.attention.values():
        torch.testing.assert_close(maps.sum(dim=-1), torch.ones(maps.shape[:-1]))


@torch.no_grad()
def test_merging_nothing_is_no_merging_and_merging_depends_on_the_picture_only(config: ViTConfig) -> None:
    model, images = make(config), torch.randn(2, 3, 32, 32)
    merging = make(replace(config, merge=(0,) * config.depth))
    merging.load_state_dict(model.state_dict())
    close(merging(images), model(images))
    merged = ViT(replace(config, merge=(4, 3, 2))).eval()
    merged.load_state_dict(model.state_dict())
    close(merged(images), torch.cat([merged(image[None]) for image in images]))
    assert not torch.equal(merged(images), model(images))


@torch.no_grad()
def test_a_model_made_without_memory_gets_the_same_weights(config: ViTConfig) -> None:
    torch.manual_seed(1)
    usual = ViT(config)
    with torch.device("meta"):
        late = ViT(config)
    late = late.to_empty(device="cpu")
    torch.manual_seed(1)
    late.init_weights()
    torch.manual_seed(1)
    usual.init_weights()
    for name, tensor in usual.state_dict().items():
        assert torch.equal(late.state_dict()[name], tensor), name
        assert tensor.isfinite().all()


def test_a_config_survives_its_file(config: ViTConfig) -> None:
    assert from_dict(ViTConfig, to_dict(config)) == config


def test_every_weight_learns(config: ViTConfig) -> None:
    rates = Rates(dropout=0.1, attention=0.1, path=0.1, patch=0.25)
    model = ViT(replace(config, rates=rates))
    randomize(model)
    model.train()(torch.randn(4, 3, 32, 32)).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name
    if not config.block.key_bias:
        gradients = cast("Any", model.blocks[0]).attention.qkv.bias.grad.chunk(3)
        assert not gradients[1].any()
        assert gradients[0].any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
@torch.no_grad()
def test_other_types_compute_the_same(config: ViTConfig, dtype: torch.dtype) -> None:
    model, images = make(config), torch.randn(2, 3, 32, 24)
    expected = model(images)
    actual = model.to(dtype)(images.to(dtype))
    assert actual.dtype == dtype
    tolerance = 0.15 if dtype == torch.bfloat16 else 1e-4
    torch.testing.assert_close(actual.float(), expected, rtol=tolerance, atol=tolerance)
    if dtype == torch.float64:
        with torch.autocast("cpu", torch.bfloat16):
            cast_down = model.float()(images)
        torch.testing.assert_close(cast_down.float(), expected, rtol=0.15, atol=0.15)
