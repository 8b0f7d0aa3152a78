"""Oracle: timm's models, built without memory, have the same number of parameters."""

import pytest
import torch
from benchmarks.peers import timm

from vitrail.errors import ConfigError
from vitrail.model import ViTConfig, create, summarize, variant, variants

TIMM = {
    "vit-ti16": "vit_tiny_patch16_224",
    "vit-s8": "vit_small_patch8_224",
    "vit-s16": "vit_small_patch16_224",
    "vit-s32": "vit_small_patch32_224",
    "vit-b8": "vit_base_patch8_224",
    "vit-b16": "vit_base_patch16_224",
    "vit-b32": "vit_base_patch32_224",
    "vit-l14": "vit_large_patch14_224",
    "vit-l16": "vit_large_patch16_224",
    "vit-l32": "vit_large_patch32_224",
    "vit-h14": "vit_huge_patch14_224",
    "vit-g14": "vit_giant_patch14_224",
    "vit-G14": "vit_gigantic_patch14_224",
    "vit-r-ti16": "vit_tiny_r_s16_p8_224",
    "vit-r26-s32": "vit_small_r26_s32_224",
    "vit-r50-b16": "vit_base_r50_s16_224",
    "vit-r50-l32": "vit_large_r50_s32_224",
}


@pytest.mark.parametrize("name", TIMM)
def test_parameter_counts_equal_timms(name: str) -> None:
    with torch.device("meta"):
        peer = timm.create_model(TIMM[name], num_classes=1000)
    assert summarize(variant(name)).parameters == sum(parameter.numel() for parameter in peer.parameters())


def test_parameter_counts_of_the_papers_table_1() -> None:
    """The table does not say which patch or head it counts: B without a head, L with patch 32, H with 1000 classes."""
    assert round(summarize(variant("vit-b16", num_classes=0)).parameters / 1e6) == 86
    assert round(summarize(variant("vit-l32")).parameters / 1e6) == 307
    assert round(summarize(variant("vit-h14")).parameters / 1e6) == 632


def test_every_variant_builds_on_meta_and_gives_logits() -> None:
    for name, config in variants().items():
        with torch.device("meta"):
            logits = create(name).eval()(torch.empty(1, config.channels, *config.image_size))
        assert logits.shape == (1, config.num_classes), name


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("B/16", "vit-b16"),
        ("ViT-B/16", "vit-b16"),
        ("vit-B16", "vit-b16"),
        ("ViT-g/14", "vit-g14"),
        ("ViT-G/14", "vit-G14"),
        ("R50+ViT-L/32", "vit-r50-l32"),
        ("R+Ti/16", "vit-r-ti16"),
        ("CIFAR-tiny", "cifar-tiny"),
    ],
)
def test_the_papers_spelling_is_understood(spelling: str, name: str) -> None:
    assert variant(spelling) == variants()[name]


def test_create_changes_fields() -> None:
    model = create("cifar-tiny", num_classes=3, image_size=64)
    assert model(torch.randn(1, 3, 64, 64)).shape == (1, 3)
    assert (
        create(ViTConfig(image_size=32, patch_size=8, width=16, depth=1, heads=2), num_classes=2).config.num_classes
        == 2
    )


def test_unknown_names_suggest_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"unknown model 'vit-b61'; did you mean .*vit-b16"):
        variant("vit-b61")
    with pytest.raises(ConfigError, match="ViTConfig has no field 'num_class'; did you mean num_classes"):
        variant("vit-b16", num_class=3)
    with pytest.raises(ConfigError, match="ViTConfig has no field 'bogus'"):
        create(ViTConfig(), bogus=1)
    with pytest.raises(ConfigError, match="could be vit-g14 .* or vit-G14"):
        variant("VIT-G14")
