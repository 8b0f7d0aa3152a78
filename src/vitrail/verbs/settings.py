"""The keywords of a verb that are fields of config dataclasses, just as they are flags of the command."""

import dataclasses
from collections.abc import Callable, Mapping
from inspect import Parameter, signature
from typing import Any, TypeVar

from vitrail.errors import ConfigError
from vitrail.synonyms import suggest_option

T = TypeVar("T")


def check_settings(verb: Callable[..., Any], settings: Mapping[str, Any], *configs: type) -> None:
    """Raise unless every keyword is a field of one of the configs."""
    fields = {field.name for config in configs for field in dataclasses.fields(config)}
    arguments = {name for name, each in signature(verb).parameters.items() if each.kind is not Parameter.VAR_KEYWORD}
    for name in settings:
        if name not in fields:
            hint = suggest_option(name, fields | arguments) or f"see help(vitrail.{verb.__name__})."
            raise ConfigError(f"{verb.__name__} has no setting {name!r}; {hint}")


def build(config: type[T], settings: Mapping[str, Any]) -> T:
    """A config made of those settings that are its fields."""
    fields = {field.name for field in dataclasses.fields(config)}  # pyright: ignore[reportArgumentType]
    return config(**{name: value for name, value in settings.items() if name in fields})


def settings_of(*configs: Any) -> dict[str, Any]:
    """The fields of configs as the keywords of a verb."""
    return {field.name: getattr(config, field.name) for config in configs for field in dataclasses.fields(config)}
