import dataclasses
from typing import Any

import pytest

from vitrail.errors import ConfigError
from vitrail.model import BlockConfig, ConvStem, PositionConfig, Rates, ResNetStem, ViTConfig
from vitrail.schema import from_dict, to_dict

BAD: list[tuple[dict[str, Any], str]] = [
    ({"heads": 7}, "heads must divide width 768; got 7; try 6 or 8."),
    ({"image_size": 225}, "image_size must be a multiple of 16 .* got 225×225; try 224 or 240"),
    ({"image_size": (224, 230)}, "multiple of 16 .* got 224×230; try 224 or 240"),
    ({"image_size": 8}, "multiple of 16 .* try 16"),
    ({"image_size": 0}, "each side of image_size and patch_size must be positive; got 0"),
    ({"image_size": (1, 2, 3)}, "image_size must have 2 values; got 3"),
    ({"image_size": "224"}, "image_size must be a list; got '224'"),
    ({"patch_size": -16}, "must be positive; got -16"),
    ({"width": 0}, "width must be positive; got 0"),
    ({"width": 768.5}, "width must be a whole number; got 768.5"),
    ({"depth": -1}, "depth must be positive; got -1"),
    ({"depth": True}, "depth must be a whole number; got True"),
    ({"channels": 0}, "channels must be positive; got 0"),
    ({"mlp_width": 0}, "mlp_width must be positive; got 0"),
    ({"num_classes": -1}, "num_classes must be 0 or more; got -1"),
    ({"registers": -2}, "registers must be 0 or more; got -2"),
    ({"pooling": "max"}, "pooling must be one of cls, mean, map; got 'max'"),
    ({"pooling": "cls", "class_token": False}, "pooling 'cls' needs class_token=True"),
    ({"representation": 0}, "representation must be positive; got 0"),
    ({"pool_norm": "never"}, "pool_norm must be one of before, after, none; got 'never'"),
    ({"depth": 2_000_000}, "depth must be at most 1000; got 2000000"),
    ({"width": 10**14}, "width must be at most 65536"),
    ({"image_size": 16 * 10**14}, "must be at most 100000"),
    ({"num_classes": 10**14}, "num_classes must be at most 10000000"),
    ({"stem": ["conv"]}, "stem.kind must be one of patch, conv, resnet"),
    ({"stem": {"kind": "conv", "pool_size": 2}}, "stem.pool_size is the window of max pooling"),
    ({"stem": {"kind": "resnext"}}, "stem.kind must be one of patch, conv, resnet; got 'resnext'"),
    ({"attention_width": 100}, "heads must divide attention_width 100; got 12; try 5 or 10"),
    ({"heads": 20, "attention_width": 1280, "pooling": "map"}, "pool_heads must divide width 768; got 20"),
    ({"rates": {"pathh": 0.1}}, "rates has no field 'pathh'; did you mean path"),
    ({"width": 30, "heads": 3, "positions": PositionConfig(kind="sincos", covers="patches")}, "multiple of 4; got 30"),
]


@pytest.mark.parametrize(("fields", "message"), BAD, ids=[str(fields)[:50] for fields, _ in BAD])
def test_a_bad_config_says_what_must_hold_and_what_came(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ViTConfig(**fields)


@pytest.mark.parametrize("name", ["dropout", "attention", "path", "patch"])
@pytest.mark.parametrize("rate", [-0.1, 1.0, float("nan")])
def test_rates_are_probabilities(name: str, rate: float) -> None:
    with pytest.raises(ConfigError, match=f"rates.{name} must be at least 0 and below 1; got {rate}"):
        Rates(**{name: rate})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BlockConfig(norm_eps=0.0), "norm_eps must be positive"),
        (lambda: BlockConfig(norm_eps=float("nan")), "norm_eps must be positive"),
        (lambda: BlockConfig(attention_scale=-1.0), "attention_scale must be positive"),
        (lambda: BlockConfig(layer_scale=0.0), "layer_scale must be positive"),
        (lambda: BlockConfig(activation="relu"), "activation must be one of gelu, gelu_tanh, quick_gelu; got 'relu'"),
        (lambda: PositionConfig(kind="rotary"), "kind must be one of learned, axes, sincos, none"),
        (lambda: PositionConfig(resample="nearest"), "resample must be one of google, timm, hf, torchvision"),
        (lambda: ConvStem(widths=(8,), strides=(2, 2)), "one number per convolution"),
        (lambda: ConvStem(widths=(), strides=()), "at least one"),
        (lambda: ConvStem(widths=(8, 0), strides=(2, 2)), "must be positive; got 0"),
        (lambda: ResNetStem(blocks=(3, 0)), "must be positive; got 0"),
        (lambda: ResNetStem(width_factor=0.3), r"= 19, must be a multiple of its groups 32"),
    ],
)
def test_bad_parts(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_derived_facts_of_b16() -> None:
    config = ViTConfig()
    assert (config.grid, config.tokens, config.head_size, config.hidden_width) == ((14, 14), 197, 64, 3072)
    assert ViTConfig(image_size=384) == dataclasses.replace(config, image_size=(384, 384))


def test_a_stem_adds_its_stride() -> None:
    hybrid = ViTConfig(patch_size=1, stem=ResNetStem(blocks=(3, 4, 9)))
    assert (hybrid.stride, hybrid.grid) == ((16, 16), (14, 14))
    root_only = ViTConfig(patch_size=8, stem=ResNetStem(blocks=()))
    assert (root_only.stride, root_only.grid) == ((32, 32), (7, 7))


@pytest.mark.parametrize(
    "config",
    [
        ViTConfig(),
        ViTConfig(image_size=(64, 96), stem=ConvStem(widths=(8, 16), strides=(2, 2)), patch_size=(2, 4), mlp_width=100),
        ViTConfig(stem=ConvStem(pool=True, pool_size=2, activation="gelu"), patch_size=1),
        ViTConfig(stem=ResNetStem(), patch_size=1, block=BlockConfig(layer_scale=1e-5), rates=Rates(path=0.1)),
    ],
)
def test_a_config_survives_its_dictionary(config: ViTConfig) -> None:
    assert from_dict(ViTConfig, to_dict(config)) == config


def test_a_stem_that_came_later_is_written_only_where_it_is_used() -> None:
    assert to_dict(ConvStem()).keys() == {"kind", "widths", "strides", "norm", "pool"}


def test_equal_models_have_equal_configs() -> None:
    no_prefix = {"class_token": False, "pooling": "mean"}
    for covers in ("patches", "class", "all"):
        positions = PositionConfig(covers=covers)
        assert ViTConfig(**no_prefix, positions=positions) == ViTConfig(**no_prefix)
        assert ViTConfig(positions=PositionConfig(kind="none", covers=covers)) == ViTConfig(
            positions=PositionConfig(kind="none")
        )
    assert ViTConfig(positions=PositionConfig(covers="all")) == ViTConfig()
    assert ViTConfig(positions=PositionConfig(covers="patches")) != ViTConfig()
    assert ViTConfig(pool_norm="after") == ViTConfig()
    assert ViTConfig(pooling="mean", pool_norm="after") != ViTConfig(pooling="mean")
    assert BlockConfig(proj_bias=False, mlp_bias=False) == BlockConfig(proj_bias=False) != BlockConfig()
    assert ViTConfig(attention_width=768) == ViTConfig() != ViTConfig(attention_width=1536)
    assert BlockConfig(mlp_bias=True) == BlockConfig() != BlockConfig(mlp_bias=False)
    assert BlockConfig(proj_bias=False, mlp_bias=True).mlp_has_bias
