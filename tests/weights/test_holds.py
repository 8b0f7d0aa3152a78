"""A closed world: what a format does not name must be plain, so that a new option of the model is refused by name."""

from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Literal, get_args

import pytest
import torch

from vitrail.errors import WeightsError
from vitrail.model import BlockConfig, ConvStem, PatchStem, PositionConfig, RelativeBias, ResNetStem, Rope, ViTConfig
from vitrail.weights.formats import walk
from vitrail.weights.keys import rule, write_tensors
from vitrail.weights.read import FOREIGN, FORMATS
from vitrail.weights.resolve import FormatName
from weights_fixtures import FITTING


@dataclass(frozen=True, kw_only=True)
class GrownBlock(BlockConfig):
    residual: Literal["plain", "gated"] = "plain"


@dataclass(frozen=True, kw_only=True)
class GrownConfig(ViTConfig):
    twist: int = 0


@dataclass(frozen=True, kw_only=True)
class NewStem(PatchStem):
    kind: Any = "fourier"


SIZES = {"image_size": 32, "patch_size": 8, "width": 32, "depth": 1, "heads": 4, "mlp_width": 64, "num_classes": 5}


@pytest.mark.parametrize("name", FITTING)
def test_an_option_that_the_model_gets_is_refused_by_name_until_a_format_holds_it(name: FormatName) -> None:
    if name == "vitrail":
        return
    config = GrownConfig(**{**SIZES, **FITTING[name]})
    assert FORMATS[name].refusals(config) == []
    assert FORMATS[name].refusals(replace(config, twist=2)) == ["its twist is always 0, here it is 2"]
    block = {field.name: getattr(config.block, field.name) for field in fields(config.block)}
    assert FORMATS[name].refusals(replace(config, block=GrownBlock(**block))) == []
    gated = replace(config, block=GrownBlock(**block, residual="gated"))
    assert FORMATS[name].refusals(gated) == ["its block.residual is always 'plain', here it is 'gated'"]
    turned = replace(config.positions)
    object.__setattr__(turned, "kind", "rope")
    reasons = FORMATS[name].refusals(_with(config, positions=turned))
    assert any(reason.startswith("its positions are") for reason in reasons)
    assert FORMATS[name].refusals(_with(config, stem=NewStem())) == ["it has no stem of the kind 'fourier'"]
    assert FORMATS[name].refusals(_with(config, pooling="first"))
    relu = replace(config.block)
    object.__setattr__(relu, "activation", "relu")
    assert any("its GELU is" in reason for reason in FORMATS[name].refusals(_with(config, block=relu)))


def _with(config: ViTConfig, **values: Any) -> ViTConfig:
    """A config with values that no config has today."""
    changed = replace(config)
    for name, value in values.items():
        object.__setattr__(changed, name, value)
    return changed


def test_every_field_that_a_format_names_is_one_of_the_model() -> None:
    stems = (PatchStem(), ConvStem(widths=(8,), strides=(2,)), ResNetStem())
    models = [ViTConfig(stem=stem, patch_size=1) for stem in stems]
    models += [ViTConfig(relative=relative) for relative in (Rope(), RelativeBias())]
    known = {path for model in models for path, _, _ in walk(model, ViTConfig())}
    assert {"width", "block.qk_norm", "positions.kind", "stem.kind", "stem.ws_form", "rates.path"} <= known
    for each in FOREIGN.values():
        assert each.holds is not None
        for config in (ViTConfig(), ViTConfig(registers=2)):
            assert each.holds(config).keys() <= known


def test_the_walk_sees_every_leaf() -> None:
    def count(config: Any) -> int:
        values = [getattr(config, field.name) for field in fields(config)]
        return sum(count(value) if is_dataclass(value) else 1 for value in values)

    config = ViTConfig()
    assert len(list(walk(config, config))) == count(config)


def test_reasons_are_given_all_and_once() -> None:
    config = ViTConfig(
        image_size=(32, 64), patch_size=(16, 8), block=BlockConfig(qk_norm=True), positions=PositionConfig(kind="none")
    )
    assert FORMATS["torchvision"].refusals(config) == [
        "its pictures and patches are square",
        "it has no qk-norm",
        "its positions are learned",
    ]


def test_a_stem_of_another_kind_is_one_reason() -> None:
    config = ViTConfig(
        stem=ConvStem(widths=(8,), strides=(2,)), patch_size=8, block=BlockConfig(activation="gelu_tanh")
    )
    assert FORMATS["google"].refusals(config) == ["it has no convolutional stem"]


def test_the_list_of_names_is_the_list_of_formats() -> None:
    assert tuple(FORMATS) == get_args(FormatName)


def test_a_tensor_without_a_place_is_never_dropped() -> None:
    ours = {"head.weight": torch.zeros(2, 2), "gate.weight": torch.zeros(1)}
    with pytest.raises(WeightsError, match="no place for every tensor of this model: unknown gate.weight"):
        write_tensors([rule("head.weight", "fc.weight")], ours)
    with pytest.raises(WeightsError, match="missing head.bias; unknown gate.weight"):
        write_tensors([rule("head.weight", "fc.weight"), rule("head.bias", "fc.bias")], ours)
