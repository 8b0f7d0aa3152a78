"""Config dataclasses ↔ plain dictionaries: what YAML files and checkpoint headers hold.

`to_dict` gives JSON-ready values; `from_dict` is strict: an unknown key, a missing one or a wrong type is an error that
names the field ("ViTConfig.stem.widths"). Dataclasses of a union are distinguished by their `kind`, those of
an open set by its base class, which has a `__parse__`. `validate`, called in a config's `__post_init__`, holds Python
arguments to the same rules, so that types and choices are written in one place: the annotations.
"""

import dataclasses
import re
import types
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from vitrail.errors import ConfigError, shorten, suggest
from vitrail.synonyms import suggest_option

T = TypeVar("T")

MAX_INT = 2**63 - 1  # what seeds, sizes and counts are stored in
_NAMES = {int: "a whole number", float: "a number", str: "text", bool: "true or false", Path: "a path"}


# Metadata of a field that came later: it is written only where it is not its default, so that the files of those who
# do not use it stay as they were, and older versions read them.
IF_USED: Mapping[str, Any] = types.MappingProxyType({"if_used": True})


def to_dict(config: Any) -> dict[str, Any]:
    """The fields of a config dataclass as JSON-ready values."""
    values = ((field, getattr(config, field.name)) for field in dataclasses.fields(config))
    return {
        field.name: _plain(value)
        for field, value in values
        if value != field.default or not field.metadata.get("if_used")
    }


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return to_dict(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in cast("tuple[Any, ...]", value)]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in cast("dict[str, Any]", value).items()}
    return str(value) if isinstance(value, Path) else value


def from_dict(cls: type[T], data: Any, where: str = "") -> T:
    """Build `cls` from a dictionary, checking every name and type."""
    where = where or cls.__name__
    if not isinstance(data, Mapping):
        raise ConfigError(f"{where} must be a mapping of field names to values; got {shorten(data)}.")
    values = cast("Mapping[str, Any]", data)
    fields = {field.name: field for field in dataclasses.fields(cast("Any", cls))}
    for name in values:
        if name not in fields:
            raise ConfigError(
                f"{where} has no field {shorten(name)}; {suggest_option(shorten(name), fields) or suggest('', fields)}"
            )
    for name, field in fields.items():
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and name not in values:
            raise ConfigError(f"{where}.{name} is missing.")
    hints = _hints(cls)
    return cls(**{name: _parse(hints[name], value, f"{where}.{name}") for name, value in values.items()})


def validate(config: Any) -> None:
    """Check the fields of a frozen dataclass against their annotations, in place: 224 becomes (224, 224) for a pair."""
    cls = cast("type[Any]", type(config))
    for name, hint in _hints(cls).items():
        object.__setattr__(config, name, _parse(hint, getattr(config, name), f"{cls.__name__}.{name}"))


def parse_size(text: str, name: str = "a size") -> tuple[int, int]:
    """The height and width that a text stands for: 384, or HEIGHTxWIDTH."""
    if not re.fullmatch(r"\d+(x\d+)?", text):
        raise ConfigError(f"{name} must be one number or HEIGHTxWIDTH, such as 384 or 224x320; got {text!r}.")
    height, _, width = text.partition("x")
    return int(height), int(width or height)


@cache
def _hints(cls: type[Any]) -> dict[str, Any]:
    hints = get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def _parse(hint: Any, value: Any, where: str) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _parse_union(arguments, value, where)
    if origin is Literal:
        if value in arguments and not isinstance(value, bool):
            return value
        raise ConfigError(f"{where} must be one of {', '.join(map(str, arguments))}; got {shorten(value)}.")
    if origin is tuple:
        return _parse_tuple(arguments, value, where)
    if origin is dict:
        if not isinstance(value, Mapping):
            raise ConfigError(f"{where} must be a mapping; got {shorten(value)}.")
        items = cast("Mapping[Any, Any]", value).items()
        return {
            _parse(arguments[0], key, where): _parse(arguments[1], item, f"{where}.{shorten(key)}")
            for key, item in items
        }
    if hasattr(hint, "__parse__"):  # a class whose kinds are registered elsewhere
        return value if isinstance(value, hint) else hint.__parse__(value, where)
    if dataclasses.is_dataclass(hint):
        return value if isinstance(value, cast("type[Any]", hint)) else from_dict(cast("type[Any]", hint), value, where)
    if hint is Any:
        return value
    if hint is Path and isinstance(value, str):
        if "\0" in value:
            raise ConfigError(f"{where} must be a path, without a NUL character; got {shorten(value)}.")
        return Path(value)
    if hint is float and (type(value) is int or _is_exponent(value)):
        try:
            return float(value)
        except OverflowError:
            raise ConfigError(f"{where} must be a number that a float can hold; got {shorten(value)}.") from None
    if isinstance(value, hint) and not (isinstance(value, bool) and hint is not bool):
        if hint is int and not -MAX_INT <= value <= MAX_INT:
            raise ConfigError(f"{where} must be between -2**63 and 2**63; got {shorten(value)}.")
        return value
    raise ConfigError(f"{where} must be {_NAMES.get(hint, hint)}; got {shorten(value)}.")


def _is_exponent(value: Any) -> bool:
    """YAML reads 1e-6, which has no decimal point, as text."""
    return isinstance(value, str) and re.fullmatch(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+", value) is not None


def _parse_union(choices: tuple[Any, ...], value: Any, where: str) -> Any:
    if value is None and type(None) in choices:
        return None
    choices = tuple(choice for choice in choices if choice is not type(None))
    if len(choices) == 1:
        return _parse(choices[0], value, where)
    if isinstance(value, tuple(choice for choice in choices if isinstance(choice, type))) and _has_kind(value):
        return value
    kinds = {get_args(_hints(choice)["kind"])[0]: choice for choice in choices if _has_kind(choice)}
    if len(kinds) == len(choices):
        kind = cast("Mapping[str, Any]", value).get("kind") if isinstance(value, Mapping) else value
        if not isinstance(kind, str) or kind not in kinds:
            raise ConfigError(f"{where}.kind must be one of {', '.join(kinds)}; got {shorten(kind)}.")
        return from_dict(kinds[kind], value if isinstance(value, Mapping) else {}, where)
    for choice in choices:
        try:
            return _parse(choice, value, where)
        except ConfigError:
            continue
    raise ConfigError(f"{where} must be {' or '.join(str(choice) for choice in choices)}; got {shorten(value)}.")


def _has_kind(choice: Any) -> bool:
    return dataclasses.is_dataclass(choice) and any(field.name == "kind" for field in dataclasses.fields(choice))


def _parse_tuple(arguments: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    if isinstance(value, int | float) and arguments[-1] is not Ellipsis and len(set(arguments)) == 1:
        value = (value,) * len(arguments)  # one number stands for both sides: a square
    if isinstance(value, str | Path) and arguments == (Path, ...):
        value = (value,)
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise ConfigError(f"{where} must be a list; got {shorten(value)}.")
    items = cast("Sequence[Any]", value)
    if arguments[-1] is Ellipsis:
        return tuple(_parse(arguments[0], item, f"{where}[{index}]") for index, item in enumerate(items))
    if len(items) != len(arguments):
        raise ConfigError(f"{where} must have {len(arguments)} values; got {len(items)}: {shorten(list(items[:20]))}.")
    pairs = zip(arguments, items, strict=True)
    return tuple(_parse(hint, item, f"{where}[{index}]") for index, (hint, item) in enumerate(pairs))
