"""What is wrong with the arguments of a command, in the words of our own errors."""

from collections.abc import Sequence
from difflib import get_close_matches

from cyclopts import CycloptsError, MissingArgumentError, UnknownCommandError, UnusedCliTokensError


def describe_usage(error: CycloptsError, verbs: Sequence[str]) -> str:
    """One sentence or two, as `error:` shows them."""
    chain = tuple(error.command_chain or ())
    command = " ".join(("vitrail", *chain))
    see = f"see {command} --help."
    if isinstance(error, UnknownCommandError) and error.unused_tokens:
        known = [name for name in error.app or () if not name.startswith("-")] if chain else sorted(verbs)
        return _describe_unknown(error.unused_tokens[0], command, known)
    if isinstance(error, MissingArgumentError) and error.argument is not None:
        name = error.argument.name
        if name in (error.root_input_tokens or ()):
            return f"{name} needs a value; {see}"
        return f"{command} needs {name.strip('-').upper()}; {see}"
    if isinstance(error, UnusedCliTokensError):
        return f"{command} takes no further arguments; got {' '.join(error.unused_tokens or ())}; {see}"
    text = str(error).strip()
    return f"{text[:1].lower()}{text[1:]} {see.capitalize()}"


def _describe_unknown(typed: str, command: str, known: Sequence[str]) -> str:
    options = ("--help", "--version")
    near = get_close_matches(typed, (*known, *options), n=1, cutoff=0.6)
    hint = f"did you mean {near[0]}? The verbs:" if near else "the verbs:"
    what = "option" if typed.startswith("-") else "verb"
    return f"{command} has no {what} {typed!r}; {hint} {', '.join(known)}."
