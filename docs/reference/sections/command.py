"""Every verb of the command, from the parser itself and the table of verbs."""

import re
from collections.abc import Iterator
from inspect import cleandoc
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from cyclopts import App
from cyclopts.argument import Argument
from docs.reference.sections.markdown import code, joined, link, listed, protected, sentence, table, wrapped

from vitrail.cli.commands import UNSET, as_typed
from vitrail.cli.main import build_app
from vitrail.verbs import VERBS

_VALUES = {int: "N", float: "NUMBER", str: "TEXT", Path: "PATH"}
_DEFAULT = re.compile(r"\s*\[default: (.*)\]\.?$")


def verbs() -> str:
    """A table of all verbs, then a section for each of them."""
    app = build_app()
    groups = [verb.group for verb in VERBS.values()]
    rows = [
        ("" if group == before else group, link(f"vitrail {name}"), verb.line)
        for (name, verb), group, before in zip(VERBS.items(), groups, ["", *groups], strict=False)
    ]
    return joined([table(("", "verb", ""), rows)], *(_verb(app, name) for name in (*VERBS, "--show-completion")))


def _verb(app: App, name: str) -> Iterator[str]:
    yield f"## vitrail {name}"
    parsed = app[name]
    if parsed.default_command is not None:
        yield from _describe(app, name)
        return
    yield from _about(parsed)
    for inner in (inner for inner in parsed if not inner.startswith("-")):
        yield f"### vitrail {name} {inner}"
        yield from _describe(app, name, inner)


def _describe(app: App, *names: str) -> Iterator[str]:
    """The usage of a verb, what it does, examples, and its arguments in their groups."""
    _, apps, _ = app.parse_commands(list(names))
    with app.app_stack(list(names)):  # so that settings of the verbs above hold
        collected = apps[-1].assemble_argument_collection(parse_docstring=True).filter_by(show=True)
    arguments = [argument for argument in collected if argument.parse and argument.name != "*"]
    places = " ".join(_place(argument) for argument in arguments if _is_positional(argument))
    usage = (VERBS[names[0]].usage if names[0] in VERBS else "") or places
    options = [] if all(map(_is_positional, arguments)) else ["[OPTIONS]"]
    yield f"```text\n{' '.join(['vitrail', *names, *options, usage])}".rstrip() + "\n```"
    yield from _about(apps[-1])
    groups: dict[str, list[Argument]] = {}
    for argument in sorted(arguments, key=lambda argument: not _is_positional(argument)):
        heading = argument.parameter.group[0].name
        groups.setdefault("" if heading in ("Parameters", "Arguments") else heading, []).append(argument)
    for heading, members in groups.items():
        yield table((heading or "option", "", "default"), map(_row, members))


def _about(app: App) -> Iterator[str]:
    """What a help text says before its parameters, and its examples."""
    for paragraph in cleandoc(app.help).split("\n\n"):
        if paragraph.startswith("Parameters\n"):
            break
        yield wrapped(protected(paragraph))
    if examples := [line.strip() for line in (app.help_prologue or "").splitlines()[1:]]:
        yield "\n".join(["```sh", *examples, "```"])


def _row(argument: Argument) -> tuple[str, str, str]:
    text = " ".join((argument.parameter.help or "").split())
    stated = _DEFAULT.search(text)
    choices = _choices(argument.hint)
    meaning = sentence(protected(_DEFAULT.sub("", text)))
    if choices:
        which = "Any of" if _is_list(argument.hint) else "One of"
        meaning += f" {which} {listed([code(choice) for choice in choices])}."
    default = protected(stated[1]) if stated else _default(argument)
    return _written(argument, bool(choices)), meaning, default


def _written(argument: Argument, has_choices: bool) -> str:
    """An option as it is typed, with a word for its value."""
    if _is_positional(argument):
        return code(_name(argument))
    negatives = [name for name in argument.negatives if not name.startswith("--empty-")]
    names = ", ".join(code(name) for name in (argument.name, *negatives))
    several = "…" if _is_list(argument.hint) else ""
    return f"{names} {'NAME' if has_choices else _value(argument.hint)}{several}".rstrip()


def _value(hint: Any) -> str:
    """A word for the value of an option; several words for several values."""
    kind = next((kind for kind in get_args(hint) if kind is not type(None)), hint) if not _is_tuple(hint) else hint
    if _is_tuple(kind):
        inner = [each for each in get_args(kind) if each is not Ellipsis]
        return " ".join(_VALUES[each] for each in inner)
    return "" if kind is bool else _VALUES[kind]


def _is_tuple(hint: Any) -> bool:
    return get_origin(hint) is tuple


def _is_list(hint: Any) -> bool:
    """Whether there may be any number of values."""
    return any(_is_tuple(kind) and get_args(kind)[-1] is Ellipsis for kind in (hint, *get_args(hint)))


def _choices(hint: Any) -> list[str]:
    """The names that an option may take, if it takes names only or also."""
    if get_origin(hint) is Literal:
        return [str(choice) for choice in get_args(hint)]
    inner = [choice for kind in get_args(hint) for choice in _choices(kind)]
    return inner if int not in get_args(hint) else []


def _default(argument: Argument) -> str:
    """The default, where it says anything: a flag is off, and an option without one is not used."""
    value = argument.field_info.default
    if value is True:
        return "on"
    nothing = any(value is each for each in (UNSET, None, False, "", (), argument.field_info.empty))
    return "" if nothing or argument.parameter.show_default is False else code(as_typed(value))


def _is_positional(argument: Argument) -> bool:
    return bool(argument.field_info.is_positional)


def _name(argument: Argument) -> str:
    """A positional argument as usage lines show it."""
    return argument.name.strip("-").upper() + ("…" if _is_list(argument.hint) else "")


def _place(argument: Argument) -> str:
    """The same, in brackets if it may be omitted."""
    return _name(argument) if argument.required else f"[{_name(argument)}]"
