"""The settings of a `TrainConfig` by their names: read and change them, combine those of recipes, files and callers."""

import operator
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import cache
from typing import Any, cast

from vitrail.errors import ConfigError, shorten
from vitrail.schema import parse_size, to_dict
from vitrail.synonyms import suggest_option
from vitrail.training.config import Distill, TrainConfig

PARTS = ("start", "optim", "schedule", "machine", "augment", "source", "selection", "distill", "pretraining")


@cache
def field_homes() -> Mapping[str, str]:
    """Setting → the part of `TrainConfig` that has it."""
    homes: dict[str, str] = {}
    for part in PARTS:
        for each in fields(getattr(TrainConfig(), part)):
            assert each.name not in homes, f"{each.name} is in two parts"
            homes[each.name] = part
    return homes


def read_field(config: TrainConfig, name: str) -> Any:
    """The value of a setting, whatever part it is in."""
    return getattr(getattr(config, field_homes()[name]), name)


def apply_changes(config: TrainConfig, changes: dict[str, Any]) -> TrainConfig:
    """The config with some settings changed, whatever part they are in."""
    homes = field_homes()
    for part in PARTS:
        mine = {name: value for name, value in changes.items() if homes.get(name) == part}
        if mine:
            config = replace(config, **{part: replace(getattr(config, part), **mine)})
    if changes.get("minutes") is not None and changes.get("epochs") is not None:
        raise ConfigError("pass `epochs=` or `minutes=`, not both: minutes decide how many epochs there are.")
    return config


def list_changes(config: TrainConfig, base: TrainConfig) -> dict[str, Any]:
    """The settings in which a config differs from another; `apply_changes` is the inverse."""
    names = field_homes()
    changes = {name: read_field(config, name) for name in names if read_field(config, name) != read_field(base, name)}
    if changes.get("minutes") is not None:
        changes.pop("epochs", None)  # which follow from it
    return changes


def _cannot_be_whitened(model: Any) -> bool:
    """Whether the model by this name refuses whitened filters; a name that no model has is refused elsewhere."""
    from vitrail.model.variants import variants  # which imports torch
    from vitrail.training.whitening import check_whitening

    config = variants().get(model)
    if config is None:
        return False
    try:
        check_whitening(config)
    except ConfigError:
        return True
    return False


# What of a recipe or a file cannot stand beside a setting that is passed, and gives way to it: weights bring their own
# model, a teacher would be sure of outliers.
GIVES_WAY: tuple[tuple[str, Callable[[Any], Any], dict[str, Any]], ...] = (
    ("weights", bool, {"model": None, "whiten": "off"}),
    ("model", _cannot_be_whitened, {"whiten": "off"}),
    ("flip_rate", operator.not_, {"alternate_flip": False}),
    ("teacher", bool, {"outlier_rate": 0.0, "teacher_sha256": None}),  # of another teacher
    ("teacher", operator.not_, {each.name: each.default for each in fields(Distill) if each.name != "teacher"}),
    ("views", bool, {"outlier_rate": 0.0}),
    ("views", lambda views: isinstance(views, int) and views % 2, {"alternate_flip": False}),  # sides take turns
)  # setting, for which of its values, what is left
NO_FILES = (("weights", "auto"), ("weights", "none"))  # see `training/auto_config.py`


def giving_way(changes: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that give way to changes, with the values that these leave them."""
    left: dict[str, Any] = {}
    for name, applies, values in GIVES_WAY:
        if name in changes and (name, changes[name]) not in NO_FILES and applies(changes[name]):
            left |= values
    return left


def report_giving_way(config: TrainConfig, changes: Mapping[str, Any]) -> list[str]:
    """What of a recipe is turned off by changes, for people; that weights bring their own model needs no word."""
    lines: list[str] = []
    for name, applies, values in GIVES_WAY:
        if name == "weights" or name not in changes or not applies(changes[name]):
            continue
        for other, left in values.items():
            if other not in changes and (own := read_field(config, other)) != left:
                why = f"it cannot be combined with {name} {changes[name]}"
                lines.append(f"{other} is turned off (the recipe has {own}): {why}")
    return lines


def with_changes(config: TrainConfig, changes: Mapping[str, Any]) -> TrainConfig:
    """The config with the changes; what cannot stand beside them gives way, unless it is among them."""
    left = {name: value for name, value in giving_way(changes).items() if name not in changes}
    return apply_changes(config, left | dict(changes))


def flatten(settings: Any, where: str) -> dict[str, Any]:
    """The settings of a YAML file, written in the parts of `TrainConfig` or all on one level, as one level."""
    if not isinstance(settings, dict):
        raise ConfigError(f"{where} must hold field names and values.")
    homes = field_homes()
    flat: dict[str, Any] = {}
    for name, value in cast("dict[str, Any]", settings).items():
        if name in PARTS and isinstance(value, dict):
            for inner in cast("dict[str, Any]", value):
                if homes.get(inner) != name:
                    hint = f"it belongs to {homes[inner]}." if inner in homes else suggest_setting(inner, [*homes])
                    raise ConfigError(f"{where}: {name} has no field {shorten(inner)}; {hint}")
            flat |= _omitted_defaults(name, cast("dict[str, Any]", value)) | value
        elif name in homes or name in ("data", "recipe"):
            flat[name] = value
        elif name == "chosen":  # then; this run makes its own choices
            continue
        else:
            raise ConfigError(
                f"{where}: there is no field {shorten(name)}; {suggest_setting(name, [*homes, 'data', 'recipe'])}"
            )
    return flat


def _omitted_defaults(part: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """What a part leaves out that a run has written: the fields that it writes only where they are not the default."""
    written = [each for each in fields(getattr(TrainConfig(), part)) if not each.metadata.get("if_used")]
    if any(each.name not in values for each in written if each.name != "epochs"):  # it is a person's, or about a few
        return {}
    return {each.name: each.default for each in fields(getattr(TrainConfig(), part)) if each.metadata.get("if_used")}


def suggest_setting(name: Any, known: list[str]) -> str:
    """The end of an error about an unknown setting."""
    return suggest_option(shorten(name), known) or "see vitrail train --help."


def combine_changes(file: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of a file and those of the caller, which take precedence."""
    changes = dict(file)
    for name in giving_way(settings):
        changes.pop(name, None)
    for one, other in (("minutes", "epochs"), ("weights", "model")):  # of which only one can be set
        for mine, theirs in ((one, other), (other, one)):
            if settings.get(mine) is not None and (mine, settings[mine]) not in NO_FILES:
                changes.pop(theirs, None)
    changes |= settings
    if isinstance(changes.get("image_size"), str):
        changes["image_size"] = parse_size(changes["image_size"])
    return changes


def describe_config(config: TrainConfig) -> dict[str, Any]:
    """The fields as a YAML file has them: with a time budget, the epochs are left out, since they follow from it."""
    facts = to_dict(config)
    if config.schedule.minutes is not None:
        del facts["schedule"]["epochs"]
    return facts
