"""Oracle: the definitions of SAME padding and of weight standardisation; the originals are met in tests/parity."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.ndimage
import torch
import torch.nn.functional as F

from vitrail.errors import InputError
from vitrail.model import ConvStem, PositionConfig, Rates, ResNetStem, ViT
from vitrail.model.patch_embed import ResNet, StdConv2d, drop_patches, pad_same
from vitrail.model.positions import resample_positions, sincos_positions


@pytest.mark.parametrize("size", [5, 8, 224])
@pytest.mark.parametrize(("kernel", "stride"), [(7, 2), (3, 2), (3, 1), (1, 1), (1, 2)])
def test_same_padding_gives_the_size_divided_by_the_stride_rounded_up(size: int, kernel: int, stride: int) -> None:
    padded = pad_same(torch.zeros(1, 1, size, size + 1), kernel, stride)
    output = F.max_pool2d(padded, kernel, stride)
    assert output.shape[2:] == (-(-size // stride), -(-(size + 1) // stride))


def test_the_root_at_224_pads_2_and_3() -> None:
    padded = pad_same(torch.ones(1, 1, 224, 224), kernel_size=7, stride=2)
    assert padded.shape == (1, 1, 229, 229)
    assert padded[0, 0, :2].sum() == padded[0, 0, -3:].sum() == 0
    assert padded[0, 0, 2, 2] == padded[0, 0, -4, -4] == 1


@pytest.mark.parametrize(("form", "eps"), [("std", 1e-1), ("variance", 1e-1)])
def test_weights_are_standardised_per_filter(form: str, eps: float) -> None:
    conv = StdConv2d(ResNetStem(ws_form=form, ws_eps=eps), 3, 4, kernel_size=3)  # pyright: ignore
    weight = conv.weight.detach().double().numpy()
    mean = weight.mean(axis=(1, 2, 3), keepdims=True)
    variance = weight.var(axis=(1, 2, 3), keepdims=True)
    deviation = np.sqrt(variance) + eps if form == "std" else np.sqrt(variance + eps)
    expected = F.conv2d(
        F.pad(torch.ones(1, 3, 8, 8), (1, 1, 1, 1)), torch.from_numpy((weight - mean) / deviation).float()
    )
    torch.testing.assert_close(conv(torch.ones(1, 3, 8, 8)), expected, rtol=1e-4, atol=1e-5)


def test_stages_reduce_by_the_stated_stride() -> None:
    for blocks in ((), (1,), (1, 1), (1, 2, 1)):
        stem = ResNetStem(blocks=blocks, width_factor=0.5)
        features = ResNet(stem, 3)(torch.zeros(1, 3, 64, 64))
        assert features.shape[2:] == (64 // stem.stride, 64 // stem.stride)


def test_patch_convolution_equals_unfold_and_linear(make_model: Callable[..., ViT]) -> None:
    model = make_model(
        image_size=(24, 32), patch_size=(8, 4), class_token=False, pooling="mean", positions=PositionConfig(kind="none")
    )
    images = torch.randn(2, 3, 24, 32)
    columns = F.unfold(images, (8, 4), stride=(8, 4)).transpose(1, 2)  # (B, patches, C·8·4)
    weight = model.embed.patches.weight.flatten(1)
    expected = F.linear(columns, weight, model.embed.patches.bias)
    tokens, mask, _ = model.embed(images)
    assert mask is None
    torch.testing.assert_close(tokens, expected, rtol=1e-5, atol=1e-5)


def test_pixels_of_a_patch_are_normalised_together_before_their_projection(make_model: Callable[..., ViT]) -> None:
    model = make_model(
        image_size=(24, 32),
        patch_size=(8, 4),
        class_token=False,
        pooling="mean",
        positions=PositionConfig(kind="none"),
        pixel_norm=True,
        patch_norm=True,
    )
    embed, (eps, width) = model.embed, (model.config.block.norm_eps, model.config.width)
    assert embed.pixel_norm is not None
    assert embed.patch_norm is not None
    for size in ((24, 32), (16, 40)):
        images = torch.randn(2, 3, *size)
        columns = F.unfold(images, (8, 4), stride=(8, 4)).transpose(1, 2)  # (B, patches, C·8·4)
        columns = F.layer_norm(columns, (96,), embed.pixel_norm.weight, embed.pixel_norm.bias, eps)
        expected = F.linear(columns, embed.patches.weight.flatten(1), embed.patches.bias)
        expected = F.layer_norm(expected, (width,), embed.patch_norm.weight, embed.patch_norm.bias, eps)
        torch.testing.assert_close(embed(images).tokens, expected, rtol=1e-5, atol=1e-5)


def test_patches_run_row_by_row(make_model: Callable[..., ViT]) -> None:
    model = make_model()
    images = torch.zeros(1, 3, 32, 32)
    changed = images.clone()
    changed[:, :, 8:16, 16:24] = 1.0  # second row, third column of a 4 × 4 grid
    difference = (model.embed(changed)[0] - model.embed(images)[0]).abs().sum(-1)[0]
    assert difference.nonzero().flatten().tolist() == [1 + 1 * 4 + 2]


@pytest.mark.parametrize(
    ("fields", "positioned"),
    [
        ({}, [1]),
        ({"registers": 2}, [1, 0, 0]),
        ({"registers": 2, "positions": PositionConfig(covers="all")}, [1, 1, 1]),
        ({"registers": 2, "positions": PositionConfig(covers="patches")}, [0, 0, 0]),
        ({"class_token": False, "registers": 1, "pooling": "mean"}, [0]),
    ],
)
def test_prefix_tokens_and_their_positions(
    make_model: Callable[..., ViT], fields: dict[str, Any], positioned: list[int]
) -> None:
    model = make_model(**fields)
    embed = model.embed
    tokens, *_ = embed(torch.randn(2, 3, 32, 32))
    prefix = torch.cat([part for part in (embed.class_token, embed.registers) if part is not None], dim=1)[0]
    assert embed.positions is not None
    assert embed.positions.shape[1] == sum(positioned) + 16
    assert tokens.shape == (2, len(positioned) + 16, 32)
    for index, has_position in enumerate(positioned):
        expected = prefix[index] + (embed.positions[0, index] if has_position else 0)
        torch.testing.assert_close(tokens[1, index], expected)


@pytest.mark.parametrize("grid", [(6, 6), (3, 9), (2, 2), (4, 5)])
def test_google_kernel_is_scipys_zoom(grid: tuple[int, int]) -> None:
    positions = torch.randn(1, 16, 8)
    zoom = (grid[0] / 4, grid[1] / 4, 1)
    expected = scipy.ndimage.zoom(positions.reshape(4, 4, 8).numpy(), zoom, order=1).reshape(1, -1, 8)
    resampled = resample_positions(positions, (4, 4), grid, "google")
    np.testing.assert_allclose(resampled.numpy(), expected, atol=1e-5)


def test_grids_are_compared_not_token_counts(make_model: Callable[..., ViT]) -> None:
    model = make_model(image_size=(16, 64))  # 2 × 8 patches
    _, own = model.embed.positions_at((2, 8))
    _, other = model.embed.positions_at((4, 4))
    assert own is not None
    assert other is not None
    assert own.shape == other.shape
    assert not torch.allclose(own, other)


def test_sincos_positions_by_the_formula() -> None:
    positions = sincos_positions((2, 3), 16, torch.zeros(1))[0].numpy()
    for row in range(2):
        for column in range(3):
            omega = 1 / 10_000 ** (np.arange(4) / 3)
            x, y = column * omega, row * omega
            expected = np.concatenate([np.sin(x), np.cos(x), np.sin(y), np.cos(y)])
            np.testing.assert_allclose(positions[row * 3 + column], expected, atol=1e-6)


def test_a_conv_stem_may_pool_or_stride(make_model: Callable[..., ViT]) -> None:
    images = torch.randn(2, 3, 32, 32)
    for pool in (False, True):
        for norm in ("batch", "none"):
            stem = ConvStem(widths=(8, 16), strides=(2, 2), pool=pool, norm=norm)
            model = make_model(stem=stem, patch_size=1)
            assert model.embed.stem(images).shape == (2, 16, 8, 8)
            assert model(images).shape == (2, 7)


def test_a_conv_stem_may_pool_without_overlap_and_have_gelu(make_model: Callable[..., ViT]) -> None:
    stem = ConvStem(widths=(8, 16), strides=(2, 3), norm="none", pool=True, pool_size=2, activation="gelu")
    layers: Any = make_model(stem=stem, patch_size=1, image_size=(12, 18)).embed.stem
    first, _, _, second, _, _ = layers
    images = torch.randn(2, 3, 12, 18)
    features = F.conv2d(images, first.weight, first.bias, padding=1)
    features = torch.stack([features[:, :, row::2, column::2] for row in (0, 1) for column in (0, 1)]).amax(0)
    features = F.conv2d(F.gelu(features), second.weight, second.bias, padding=1)
    features = torch.stack([features[:, :, row::3, column::3] for row in (0, 1) for column in (0, 1)]).amax(0)
    torch.testing.assert_close(layers(images), F.gelu(features))


def test_patch_dropout_keeps_a_share_of_whole_tokens(make_model: Callable[..., ViT]) -> None:
    model = make_model(rates=Rates(patch=0.25)).train()
    images = torch.randn(2, 3, 32, 32)
    tokens, *_ = model.embed(images)
    assert tokens.shape == (2, 1 + 12, 32)
    everything, *_ = model.eval().embed(images)
    distance = torch.cdist(tokens[1], everything[1])
    kept = distance.argmin(1)
    assert (distance.min(1).values < 1e-5).all()
    assert len(set(kept.tolist())) == 13
    assert kept[0] == 0


def test_patch_dropout_never_spends_its_share_on_padding() -> None:
    patches = torch.arange(10.0).view(1, 10, 1).repeat(2, 1, 3)
    mask = torch.ones(2, 10, dtype=torch.bool)
    mask[1, 4:] = False
    kept, kept_mask, _ = drop_patches(patches, mask, 0.5)
    assert kept_mask is not None
    assert kept.shape == (2, 5, 3)
    assert kept_mask.sum(1).tolist() == [5, 2]
    assert (kept[1, kept_mask[1], 0] < 4).all()


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.zeros(3, 32, 32), r"images must be \(batch, 3, height, width\); got \(3, 32, 32\)"),
        (torch.zeros(1, 1, 32, 32), "images must be"),
        (torch.zeros(1, 3, 32, 32, dtype=torch.uint8), "floating point.*got torch.uint8"),
        (torch.zeros(1, 3, 32, 30), "multiple of 8.*got 32×30; try 24 or 32"),
    ],
)
def test_a_bad_picture_says_so(make_model: Callable[..., ViT], images: torch.Tensor, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_model()(images)


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (torch.ones(2, 15, dtype=torch.bool), r"of shape \(2, 16\)"),
        (torch.ones(2, 16), "mask must be boolean"),
        (torch.zeros(2, 4, 4, dtype=torch.bool), "keep at least one patch of every picture"),
    ],
)
def test_a_bad_mask_says_so(make_model: Callable[..., ViT], mask: torch.Tensor, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_model()(torch.randn(2, 3, 32, 32), mask)
