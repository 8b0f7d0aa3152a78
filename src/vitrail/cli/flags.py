"""The fields of configs as optional flags: what the user passed is told apart from what a recipe or a file sets."""

import ast
import dataclasses
import inspect
from functools import cache
from typing import Annotated, Any, cast, get_type_hints

from cyclopts import Group, Parameter

UNSET: Any = object()  # not None, which is a value that can be passed: --clip none


# Config → the heading of its flags in `--help`, in this order, after those of the verb itself.
GROUPS = {
    "Start": "Model",
    "Optim": "Optimiser",
    "Schedule": "Schedule",
    "Augment": "Augmentation",
    "DataConfig": "Data",
    "Machine": "Machine",
    "ServeSettings": "Service",
}


def group_of(config: type[Any]) -> Group:
    """The group that the flags of a config are shown in."""
    return Group(GROUPS[config.__name__], sort_key=1 + list(GROUPS).index(config.__name__))


def optional_fields(
    name: str, *configs: type[Any], skip: tuple[str, ...] = (), default: str = "the recipe's, else {}"
) -> type[Any]:
    """A dataclass with every field of the configs, unset by default, with the configs' own help texts.

    `default` says what holds for a flag that is not passed; the braces are the field's own default.
    """
    fields: list[tuple[str, Any, Any]] = []
    for config in configs:
        hints, texts = get_type_hints(config), field_texts(config)
        for field in dataclasses.fields(config):
            if field.name in skip or dataclasses.is_dataclass(hints[field.name]):
                continue
            shown = _shown_default(field)
            text = texts.get(field.name, "")
            known = "[default:" in text or not shown
            help_text = text if known else f"{text.removesuffix('.')} [default: {default.format(shown)}]."
            parameter = Parameter(help=help_text, show_default=False, group=group_of(config))
            hint = Annotated[_flag_type(hints[field.name]) | None, parameter]
            fields.append((field.name, hint, dataclasses.field(default=UNSET)))
    flags = dataclasses.make_dataclass(name, fields, frozen=True, kw_only=True)
    flags.__module__ = __name__  # cyclopts ignores a dataclass without a module of its own
    return flags


def _flag_type(hint: Any) -> Any:
    """An image size is written 384 or 224x320."""
    return str if hint == tuple[int, int] | None else hint


def _shown_default(field: dataclasses.Field[Any]) -> str:
    if field.default is dataclasses.MISSING or field.default is None:
        return ""
    return as_typed(field.default)


def as_typed(value: Any) -> str:
    """A value as it is typed: the numbers of a tuple one after the other, with four digits."""
    if isinstance(value, tuple):
        return " ".join(as_typed(item) for item in cast("tuple[Any, ...]", value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


@cache
def field_texts(config: type[Any]) -> dict[str, str]:
    """Field → the text below it in the source."""
    tree = ast.parse(inspect.getsource(config)).body[0]
    assert isinstance(tree, ast.ClassDef)
    texts: dict[str, str] = {}
    for field, below in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(below, ast.Expr):
            value = below.value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                texts[field.target.id] = " ".join(value.value.split())
    return texts


def given(flags: Any) -> dict[str, Any]:
    """The fields that were passed."""
    values = {field.name: getattr(flags, field.name) for field in dataclasses.fields(flags)}
    return {name: value for name, value in values.items() if value is not UNSET}


def flags_of_configs(*configs: type[Any]) -> set[str]:
    """The flags of the fields of some configs."""
    return {f"--{field.name.replace('_', '-')}" for config in configs for field in dataclasses.fields(config)}
