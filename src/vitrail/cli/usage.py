"""Errors about the arguments of a command, in the style of our own errors."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from cyclopts import (
    App,
    CycloptsError,
    MissingArgumentError,
    UnknownCommandError,
    UnknownOptionError,
    UnusedCliTokensError,
)

from vitrail.synonyms import suggest_option
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


def show_examples(commands: Iterable[str]) -> str:
    """The top of a verb's help."""
    return "\n".join(["Examples:", *(f"  {command}" for command in commands)])


# Arguments whose flag has another name.
RENAMED = {
    "format": "to",
    "source_format": "from",
    "list_file": "list",
    "exports": "with",
    "compiled": "compile",
    "class_names": "classes",
}


def flags_of(app: App, tokens: Sequence[str]) -> set[str]:
    """The flags of the verb that these tokens call."""
    _, apps, _ = app.parse_commands(list(tokens))
    verb = apps[-1]
    if verb.default_command is None:
        return set()
    return {name for argument in verb.assemble_argument_collection() for name in argument.names}


def as_flags(message: str, flags: set[str]) -> str:
    """A message of the library with the command's flags: `weights=` becomes --weights, `split="all"` --split all."""

    def spell(name: str, value: str) -> str:
        spellings = (f"--{spelling.replace('_', '-')}" for spelling in (name, RENAMED.get(name, name)))
        flag = next((spelling for spelling in spellings if spelling in flags), None)
        if flag is None:
            return f"{name}={value}"
        if value in ("True", "False"):
            return flag if value == "True" else flag.replace("--", "--no-", 1)
        return f"{flag} {value.strip(QUOTES)}".rstrip()

    return word_arguments(message, spell)
