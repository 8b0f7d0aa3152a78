"""The fields of the config dataclasses: their names, types, defaults, and what the source says about them."""

import ast
import dataclasses
import inspect
import io
import re
import tokenize
import types
from pathlib import Path
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from docs.reference.sections.markdown import code, joined, link, listed, protected, sentence, table, wrapped

from vitrail.cli.commands import as_typed, field_texts
from vitrail.data import Augment, DataConfig, LoaderConfig, Preprocess
from vitrail.data.config import Columns
from vitrail.model.config import ViTConfig
from vitrail.model.parts import (
    BlockConfig,
    ConvStem,
    NoRelative,
    PatchStem,
    PositionConfig,
    Rates,
    RelativeBias,
    ResNetStem,
    Rope,
)
from vitrail.runtimes.manifest import Manifest
from vitrail.serving.settings import ServeSettings
from vitrail.tasks.familiarity import Familiarity, Packed, Usual
from vitrail.tasks.number import Number, NumberTrust
from vitrail.tasks.one import LabelSets, One, OneTrust
from vitrail.tasks.several import MissRates, Several, SeveralTrust
from vitrail.tasks.task import Task, Trust
from vitrail.training.config import Distill, Machine, Optim, Schedule, Selection, Start, TrainConfig
from vitrail.weights.infer import Hints
from vitrail.weights.metadata import Metadata, Origin

# Section of a page → the dataclasses in it.
GROUPS: dict[str, tuple[type[Any], ...]] = {
    "training": (TrainConfig, Start, Optim, Schedule, Machine, Augment, DataConfig, Columns, Selection, Distill),
    "model": (
        *(ViTConfig, BlockConfig, PositionConfig, NoRelative, Rope, RelativeBias, Rates),
        *(PatchStem, ConvStem, ResNetStem),
    ),
    "preprocessing": (Preprocess,),
    "hints": (Hints,),
    "loading": (LoaderConfig,),
    "service": (ServeSettings,),
    "facts": (Origin,),
    "task": (Task, One, Several, Number),
    "trust": (Trust, OneTrust, LabelSets, SeveralTrust, MissRates, NumberTrust, Familiarity, Packed, Usual),
    "manifest": (Manifest, Metadata),
}
_OF_CHECKPOINTS = ("facts", "task", "trust", "manifest")
_TYPES = {int: "whole number", float: "number", str: "text", Path: "path"}
_DEFAULT = re.compile(r"\s*\[default: (.*)\]\.?$")


def sections(group: str) -> str:
    """A section for each dataclass of a group."""
    return joined(part for config in GROUPS[group] for part in _section(config))


def _page(config: type[Any]) -> str:
    group = next(group for group, members in GROUPS.items() if config in members)
    return "checkpoint.md" if group in _OF_CHECKPOINTS else "config.md"


def _section(config: type[Any]) -> list[str]:
    about = [wrapped(protected(paragraph)) for paragraph in inspect.cleandoc(config.__doc__ or "").split("\n\n")]
    types_, notes = get_type_hints(config), field_notes(config)
    rows = [
        _row(each, types_[each.name], notes.get(each.name, ""), _page(config)) for each in dataclasses.fields(config)
    ]
    return [f"### {config.__name__}", *about, table(("field", "type", "default", ""), rows)]


def _row(each: "dataclasses.Field[Any]", hint: Any, note: str, home: str) -> tuple[str, str, str, str]:
    stated = _DEFAULT.search(note)
    default = f"{_default(each)}: {stated[1]}" if stated else _default(each)
    return code(each.name), _type(hint, home), default, sentence(protected(_DEFAULT.sub("", note)))


def field_notes(config: type[Any]) -> dict[str, str]:
    """Field → the text below it, else the comment beside or above it, else what its own dataclass says of itself."""
    base = config.__mro__[1]
    inherited = field_notes(base) if dataclasses.is_dataclass(base) else {}
    source = inspect.getsource(config)
    comments = {
        token.start[0]: (token.string.removeprefix("#").strip(), token.line.lstrip().startswith("#"))
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    notes: dict[str, str] = {}
    for statement in cast("ast.ClassDef", ast.parse(source).body[0]).body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            words = [comments.get(statement.end_lineno or 0, ("", False))[0]]
            above = statement.lineno - 1
            while comments.get(above, ("", False))[1]:
                words.insert(0, comments[above][0])
                above -= 1
            notes[statement.target.id] = " ".join(filter(None, words))
    for name, hint in get_type_hints(config).items():
        kinds = [kind for kind in (hint, *get_args(hint)) if dataclasses.is_dataclass(kind)]
        if not notes.get(name) and len(kinds) == 1:
            notes[name] = (kinds[0].__doc__ or "").split("\n")[0]
    return inherited | notes | field_texts(config)


def _type(hint: Any, home: str) -> str:
    return listed(_choices(hint, home))


def _choices(hint: Any, home: str) -> list[str]:
    """A type in words: the names of a choice, the types of a union, or one type."""
    if get_origin(hint) in (Union, types.UnionType):
        return [choice for kind in get_args(hint) for choice in _choices(kind, home)]
    if hint in (bool, type(None)):
        return ["true", "false"] if hint is bool else ["none"]
    if get_origin(hint) is Literal:
        return [code(str(choice)) for choice in get_args(hint)]
    inner = get_args(hint)
    if get_origin(hint) is tuple:
        return [f"list of {_plural(inner[0])}" if inner[-1] is Ellipsis else f"{len(inner)} {_plural(inner[0])}"]
    if get_origin(hint) is dict:
        return [f"mapping of {_type(inner[0], home)} to {_type(inner[1], home)}"]
    if dataclasses.is_dataclass(hint):
        kind = cast("type[Any]", hint)
        return [link(kind.__name__, "" if _page(kind) == home else _page(kind))]
    return [_TYPES[hint]]


def _plural(kind: type[Any]) -> str:
    if get_origin(kind) is tuple:
        return f"lists of {_plural(get_args(kind)[0])}"
    return "texts" if kind is str else f"{_TYPES[kind]}s"


def _default(each: "dataclasses.Field[Any]") -> str:
    if each.default_factory is not dataclasses.MISSING:
        made = each.default_factory()
        return f"{code(type(made).__name__ + '()')}" if dataclasses.is_dataclass(made) else "empty"
    if each.default is dataclasses.MISSING:
        return "required"
    if each.default is None:
        return "none"
    return "empty" if each.default in ("", ()) else code(_shown(each.default))


def _shown(value: Any) -> str:
    """A default as Python and YAML have it."""
    if isinstance(value, tuple):
        return f"({', '.join(map(as_typed, cast('tuple[Any, ...]', value)))})"
    return as_typed(value)
