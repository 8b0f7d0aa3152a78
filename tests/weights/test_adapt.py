"""Oracles: timm's own resampling and channel adaptation, and the untouched model."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from benchmarks.peers import timm
from torch import Tensor

from vitrail.data.preprocess import Preprocess, preset
from vitrail.errors import ConfigError, VitrailError, WeightsError
from vitrail.model import BlockConfig, ConvStem, PositionConfig, ResNetStem
from vitrail.model.parts import Rope
from vitrail.weights.adapt import adapt, compute_periods, fold_class_position
from vitrail.weights.checkpoint import Checkpoint


def test_nothing_asked_nothing_changed(make_checkpoint: Callable[..., Checkpoint]) -> None:
    checkpoint = make_checkpoint()
    assert adapt(checkpoint) is checkpoint
    same = adapt(checkpoint, num_classes=7, image_size=32, channels=3)
    assert all(torch.equal(same.tensors[name], tensor) for name, tensor in checkpoint.tensors.items())


@pytest.mark.parametrize("num_classes", [0, 3])
def test_a_new_head_keeps_the_rest(make_checkpoint: Callable[..., Checkpoint], num_classes: int) -> None:
    checkpoint = replace(make_checkpoint(), classes=tuple("abcdefg"))
    adapted = adapt(checkpoint, num_classes=num_classes)
    images = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(adapted.build().features(images), checkpoint.build().features(images))
    assert adapted.classes is None
    if num_classes:
        assert (adapted.build()(images) == 0).all()


def test_class_names_make_the_head(make_checkpoint: Callable[..., Checkpoint]) -> None:
    adapted = adapt(make_checkpoint(), classes=["a", "b"])
    assert adapted.config.num_classes == 2
    assert adapted.classes == ("a", "b")
    with pytest.raises(ConfigError, match="must agree"):
        adapt(make_checkpoint(), classes=["a"], num_classes=2)


def test_classes_move_by_name(make_checkpoint: Callable[..., Checkpoint]) -> None:
    checkpoint = replace(make_checkpoint(), classes=tuple("abcdefg"))
    images = torch.randn(2, 3, 32, 32)
    logits = checkpoint.build()(images)
    turned = adapt(checkpoint, classes=list("gfedcba"))
    torch.testing.assert_close(turned.build()(images), logits.flip(1))
    others = adapt(checkpoint, classes=list("tuvwxyz"))
    assert (others.build()(images) == 0).all()
    unnamed = adapt(make_checkpoint(), classes=list("abcdefg"))
    torch.testing.assert_close(unnamed.build()(images), logits)


@pytest.mark.parametrize("classes", ["cat", [1, 2], ["a", "a"]])
def test_bad_class_names(make_checkpoint: Callable[..., Checkpoint], classes: Any) -> None:
    with pytest.raises(VitrailError, match="must be a list of names|must differ"):
        adapt(make_checkpoint(), classes=classes)


@pytest.mark.parametrize("size", [(64, 64), (16, 48)])
@pytest.mark.parametrize("covers", ["patches", "class", "all"])
def test_another_size_equals_resampling_at_run_time(
    make_checkpoint: Callable[..., Checkpoint], size: tuple[int, int], covers: Any
) -> None:
    checkpoint = make_checkpoint(positions=PositionConfig(covers=covers), registers=2)
    adapted = adapt(checkpoint, image_size=size)
    assert adapted.config.image_size == adapted.preprocess.size == size
    images = torch.randn(2, 3, *size)
    torch.testing.assert_close(adapted.build()(images), checkpoint.build()(images), rtol=1e-5, atol=1e-5)


def test_the_kernel_can_be_chosen(make_checkpoint: Callable[..., Checkpoint]) -> None:
    checkpoint = make_checkpoint()
    adapted = adapt(checkpoint, image_size=64, resample="timm")
    expected = timm.layers.resample_abs_pos_embed(checkpoint.tensors["embed.positions"], new_size=[8, 8])
    torch.testing.assert_close(adapted.tensors["embed.positions"], expected, rtol=1e-5, atol=1e-6)
    other = adapt(checkpoint, image_size=64, resample="torchvision")
    assert not torch.allclose(other.tensors["embed.positions"], expected)


def test_the_crop_keeps_its_share_at_another_size(make_checkpoint: Callable[..., Checkpoint]) -> None:
    checkpoint = replace(make_checkpoint(image_size=224, patch_size=32), preprocess=preset("torchvision"))
    spec = adapt(checkpoint, image_size=448).preprocess
    assert spec.resized(1000, 1000) == (512, 512)


def normalised(grey: Tensor, spec: Preprocess) -> Tensor:
    """Grey pictures in [0, 1] (B, 1, h, w), the same in all channels, as the model sees them."""
    mean, std = (torch.tensor(values)[:, None, None] for values in (spec.mean, spec.std))
    return (grey - mean) / std


@pytest.mark.parametrize("family", ["google", "dinov2"])
@pytest.mark.parametrize("channels", [1, 2, 4, 6, 7])
def test_grey_pictures_keep_their_output_with_other_channels(
    make_checkpoint: Callable[..., Checkpoint], channels: int, family: str
) -> None:
    checkpoint = replace(make_checkpoint(), preprocess=preset(family, 32))
    adapted = adapt(checkpoint, channels=channels)
    grey = torch.rand(2, 1, 32, 32)
    with torch.inference_mode():
        expected = checkpoint.build()(normalised(grey, checkpoint.preprocess))
        torch.testing.assert_close(adapted.build()(normalised(grey, adapted.preprocess)), expected, rtol=0, atol=2e-5)
    if channels == 1 and family == "google":
        filters = timm.models.adapt_input_conv(1, checkpoint.tensors["embed.patches.weight"].clone())
        torch.testing.assert_close(adapted.tensors["embed.patches.weight"], filters)


@pytest.mark.parametrize("stem", [ConvStem(widths=(8,), strides=(2,)), ResNetStem(blocks=(1,), width_factor=0.5)])
def test_channels_of_a_stem(make_checkpoint: Callable[..., Checkpoint], stem: Any) -> None:
    adapted = adapt(make_checkpoint(stem=stem, patch_size=2), channels=1)
    assert adapted.build()(torch.randn(1, 1, 32, 32)).shape == (1, 7)


def test_channels_stay_where_pixels_are_normalised(make_checkpoint: Callable[..., Checkpoint]) -> None:
    with pytest.raises(WeightsError, match="normalises the pixels of its patches cannot be changed"):
        adapt(make_checkpoint(pixel_norm=True), channels=1)


def test_channels_come_from_rgb_only(make_checkpoint: Callable[..., Checkpoint]) -> None:
    checkpoint = replace(make_checkpoint(channels=5))
    with pytest.raises(WeightsError, match="only the 3 channels of RGB .* this checkpoint has 5"):
        adapt(checkpoint, channels=4)


@pytest.mark.parametrize("representation", [24, 32])
def test_dropping_the_representation_starts_the_head_anew(
    make_checkpoint: Callable[..., Checkpoint], representation: int
) -> None:
    checkpoint = make_checkpoint(representation=representation)
    adapted = adapt(checkpoint, drop_representation=True)
    assert adapted.config.representation is None
    assert adapted.config.num_classes == 7
    model, images = adapted.build(), torch.randn(2, 3, 32, 32)
    assert (model(images) == 0).all()
    original = checkpoint.build()
    assert original.representation is not None
    torch.testing.assert_close(original.representation(model.features(images)).tanh(), original.features(images))


def test_folding_the_class_position_computes_the_same(make_checkpoint: Callable[..., Checkpoint]) -> None:
    checkpoint = make_checkpoint(registers=2, block=BlockConfig(layer_scale=1.0))
    folded = fold_class_position(checkpoint)
    assert folded.config.positions.covers == "patches"
    images = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(folded.build()(images), checkpoint.build()(images), rtol=1e-5, atol=1e-5)
    assert fold_class_position(folded) is folded


def test_computed_periods_are_those_that_were_rounded(make_checkpoint: Callable[..., Checkpoint]) -> None:
    checkpoint = make_checkpoint(relative=Rope(frequencies="stored"))
    stored = checkpoint.tensors["relative.periods"]
    exact = 100.0 ** (torch.arange(len(stored)) / len(stored))
    rounded = replace(checkpoint, tensors={**checkpoint.tensors, "relative.periods": exact.bfloat16().float()})
    computed = compute_periods(rounded)
    assert computed.config == replace(checkpoint.config, relative=Rope())
    assert compute_periods(computed) is computed
    images = torch.randn(2, 3, 32, 32)
    expected = replace(checkpoint, tensors={**checkpoint.tensors, "relative.periods": exact}).build()(images)
    torch.testing.assert_close(computed.build()(images), expected, rtol=1e-5, atol=1e-5)
    other = replace(checkpoint, tensors={**checkpoint.tensors, "relative.periods": 2 * exact})
    with pytest.raises(WeightsError, match="are not those of base 100"):
        compute_periods(other)
