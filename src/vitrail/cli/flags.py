"""The fields of configs as flags that may be left out, to tell what was said from what a recipe or a file says."""

import ast
import dataclasses
import inspect
import re
from functools import cache
from typing import Annotated, Any, get_type_hints

from cyclopts import Parameter

UNSAID: Any = object()  # None is something that a person can say: --clip none


def optional_fields(name: str, *configs: type[Any], skip: tuple[str, ...] = ()) -> type[Any]:
    """A dataclass with every field of the configs, unsaid by default, helped by the configs' own texts."""
    fields: list[tuple[str, Any, Any]] = []
    for config in configs:
        hints, texts = get_type_hints(config), field_texts(config)
        for field in dataclasses.fields(config):
            if field.name in skip or dataclasses.is_dataclass(hints[field.name]):
                continue
            shown = _shown_default(field)
            text = texts.get(field.name, "")
            known = "[default:" in text or not shown
            help_text = text if known else f"{text.removesuffix('.')} [default: the recipe's, else {shown}]."
            hint = Annotated[_flag_type(hints[field.name]) | None, Parameter(help=help_text, show_default=False)]
            fields.append((field.name, hint, dataclasses.field(default=UNSAID)))
    made = dataclasses.make_dataclass(name, fields, frozen=True, kw_only=True)
    made.__module__ = __name__  # without a home of its own, cyclopts would not look into it
    return made


def _flag_type(hint: Any) -> Any:
    """An image size is written 384 or 224x320."""
    return str if hint == tuple[int, int] | None else hint


def _shown_default(field: dataclasses.Field[Any]) -> str:
    if field.default is dataclasses.MISSING or field.default is None:
        return ""
    return str(field.default)


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
                texts[field.target.id] = value.value
    return texts


def given(flags: Any) -> dict[str, Any]:
    """The fields that were really given."""
    values = {field.name: getattr(flags, field.name) for field in dataclasses.fields(flags)}
    return {name: value for name, value in values.items() if value is not UNSAID}


def as_flags(text: str) -> str:
    """A message of the library, which names settings as arguments (`lr=`, `lr=0.5`), with the command's flags."""
    return re.sub(r"(?<![\w.])([a-z]\w*)=(?:True\b)?(?=(\S)?)", _as_flag, text)


def _as_flag(match: re.Match[str]) -> str:
    has_value = match[2] is not None and (match[2].isalnum() or match[2] in "\"'[(-")
    return "--" + match[1].replace("_", "-") + (" " if has_value else "")
