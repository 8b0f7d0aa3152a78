"""Errors about the arguments of a command, in the style of our own errors."""

import re
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from typing import Any, get_args, get_origin

from cyclopts import (
    App,
    CycloptsError,
    MissingArgumentError,
    UnknownCommandError,
    UnknownOptionError,
    UnusedCliTokensError,
)
from cyclopts.argument import Argument

from vitrail.synonyms import suggest_option
from vitrail.verbs import VERBS
from vitrail.wording import word_arguments

QUOTES = "\"'"


def describe_usage(error: CycloptsError, verbs: Sequence[str]) -> str:
    """One sentence or two, as `error:` shows them."""
    chain = tuple(error.command_chain or ())
    command = " ".join(("vitrail", *chain))
    see = f"see {command} --help."
    if isinstance(error, UnknownCommandError) and error.unused_tokens:
        known = [name for name in error.app or () if not name.startswith("-")] if chain else list(verbs)
        return _describe_unknown(error.unused_tokens[0], command, known)
    if isinstance(error, MissingArgumentError) and error.argument is not None:
        name = error.argument.name
        if name in (error.root_input_tokens or ()):
            return f"{name} needs a value; {see}"
        return f"{command} needs {name.strip('-').upper()}; {see}"
    if isinstance(error, UnusedCliTokensError):
        return f"{command} takes no further arguments; got {' '.join(error.unused_tokens or ())}; {see}"
    if isinstance(error, UnknownOptionError):
        flags = {name for argument in error.argument_collection for name in argument.names}
        return describe_unknown_option(error.token.keyword or error.token.value or "", command, flags)
    text = str(error).strip()
    return f"{text[:1].lower()}{text[1:]} {see.capitalize()}"


def describe_unknown_option(typed: str, command: str, flags: set[str]) -> str:
    """An option that a verb does not have, and the one that was probably meant."""
    typed = typed.split("=")[0]
    known = {flag for flag in flags if flag[:2] == "--" or flag.isupper()}  # upper case are those without a flag
    hint = as_flags(suggest_option(typed, known), flags)
    see = f"see {command} --help."
    return f"{command} has no option {typed}; {f'{hint} {see.capitalize()}' if hint else see}"


def _describe_unknown(typed: str, command: str, known: Sequence[str]) -> str:
    options = ("--help", "--version")
    near = get_close_matches(typed, (*known, *options), n=1, cutoff=0.6)
    hint = f"did you mean {near[0]}? The verbs:" if near else "the verbs:"
    what = "option" if typed.startswith("-") else "verb"
    return f"{command} has no {what} {typed!r}; {hint} {', '.join(known)}."


# Arguments whose flag has another name in some verbs.
RENAMED = {argument: flag for verb in VERBS.values() for argument, flag in verb.flags.items()}
OLD_FLAGS = {"--classes": "--class-names", "--where": "--data"}  # which go on working
ALIASES = {"--class-names": "--classes"}  # of train, whose config.yaml has that name
PLAIN = {"--track": "tensorboard"}  # flags that need no value → what they mean without one
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)")


def renew(app: App, tokens: Sequence[str]) -> tuple[list[str], list[str]]:
    """What was typed in today's spelling, and a note on each old one: flags with another name, lists without commas."""
    verb = VERBS.get(tokens[0] if tokens else "")
    if verb is None or "--help" in tokens or (verb.verbs and (len(tokens) < 2 or tokens[1] not in verb.verbs)):
        return list(tokens), []
    arguments = _arguments(app, tokens[: 2 if verb.verbs else 1])
    by_name = {name: argument for argument in arguments for name in argument.names}
    renewed: list[str] = []
    notes: list[str] = []
    rest = list(tokens)
    while rest:
        token = rest.pop(0)
        flag, equals, value = token.partition("=")
        if flag not in by_name and OLD_FLAGS.get(flag) in by_name:
            notes.append(f"{flag} is called {OLD_FLAGS[flag]} now")
            flag = OLD_FLAGS[flag]
        flag = flag if flag in by_name else ALIASES.get(flag, flag)
        positive = flag.replace("--no-", "--", 1)
        is_switch = positive in PLAIN or (positive in by_name and by_name[positive].hint is bool)
        if flag not in by_name and positive != flag and positive in by_name and is_switch:
            notes.append(f"{flag} is the default; omit it")
            continue
        fits = _fits(by_name[flag].hint) if flag in by_name and by_name[flag].parameter.n_tokens == 1 else None
        if flag in by_name and flag in PLAIN and not equals and not (rest and _resembles(rest[0], by_name[flag].hint)):
            renewed.append(f"{flag}={PLAIN[flag]}")
            continue
        if fits is None or equals or not rest:
            renewed.append(f"{flag}{equals}{value}")
            continue
        items = [rest.pop(0)]
        while rest and "," not in items[0] and fits(items[0]) and fits(rest[0]):
            items.append(rest.pop(0))
        if len(items) > 1:
            notes.append(f"lists have commas: {flag} {','.join(items)}")
        renewed.append(f"{flag}={','.join(items)}")
    return renewed, notes


def _resembles(word: str, hint: Any) -> bool:
    """Whether a word was meant as items of a list of choices; a mistyped one too."""
    (kind,) = (kind for kind in (hint, *get_args(hint)) if get_origin(kind) is tuple)
    choices = get_args(get_args(kind)[0])
    return all(get_close_matches(item.strip(), choices, n=1) for item in word.split(","))


def _fits(hint: Any) -> Callable[[str], object]:
    """Whether a word can be an item of a list."""
    kinds = [kind for kind in (hint, *get_args(hint)) if get_origin(kind) is tuple]
    item = get_args(kinds[0])[0]
    if item in (int, float):
        return NUMBER.fullmatch
    choices = get_args(item)
    return lambda word: word in choices if choices else not word.startswith("-")


def _arguments(app: App, tokens: Sequence[str]) -> Iterable[Argument]:
    """The arguments of the verb that these tokens call."""
    _, apps, _ = app.parse_commands(list(tokens))
    return () if apps[-1].default_command is None else apps[-1].assemble_argument_collection()


def flags_of(app: App, tokens: Sequence[str]) -> set[str]:
    """The flags of the verb that these tokens call."""
    return {name for argument in _arguments(app, tokens) for name in argument.names}


def as_flags(message: str, flags: set[str]) -> str:
    """A message of the library with the command's flags: `weights=` becomes --weights, `split="all"` --split all."""

    def spell(name: str, value: str) -> str:
        spellings = (f"--{spelling.replace('_', '-')}" for spelling in (name, RENAMED.get(name, name)))
        flag = next((spelling for spelling in spellings if spelling in flags), None)
        if flag is None:
            return f"{name}={value}"
        if value in ("True", "False"):
            return flag if value == "True" else flag.replace("--", "--no-", 1)
        listed = value[1:-1].replace(", ", ",") if value.startswith("(") else value  # a list is typed with commas
        return f"{flag} {listed.strip(QUOTES)}".rstrip()

    return word_arguments(message, spell)
