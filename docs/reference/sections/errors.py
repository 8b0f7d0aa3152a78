"""What can go wrong: the exceptions, the exit codes of the command and the codes of the service."""

import inspect
import signal
from collections.abc import Iterator

from docs.reference.sections.markdown import code, protected, table

from vitrail import errors
from vitrail.cli.main import INTERRUPTED, TERMINATED, USER_ERROR
from vitrail.serving.exchange import CODES

_EXIT_CODES = {
    0: "Done.",
    1: "Done, with problems: some pictures could not be read, a checkpoint or a data set needs attention, or a report "
    "could not be made. The rest of what was requested is there.",
    USER_ERROR: "A mistake in the arguments or the files, or a `VitrailError`: one message on the error stream.",
    128 + signal.SIGHUP: "A training run whose terminal was closed; it has saved its state.",
    INTERRUPTED: "Ctrl-C; a training run has saved its state and printed the command that continues it.",
    TERMINATED: "SIGTERM; likewise.",
}


def exceptions() -> str:
    """The tree of exceptions and warnings, drawn as in errors.py, with what each says of itself."""
    ours = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, Exception)]
    roots = [kind for kind in ours if kind.__bases__[0] not in ours]
    lines = [line for root in sorted(roots, key=_line) for line in _tree(root, ours)]
    width = max(len(name) for name, _ in lines) + 2
    return "\n".join(["```text", *(f"{name:{width}}{text}".rstrip() for name, text in lines), "```"])


def _tree(root: type[Exception], ours: list[type[Exception]], indent: str = "") -> Iterator[tuple[str, str]]:
    """A class and all below it; `indent` stands before the lines of its children."""
    if not indent:
        yield f"{root.__name__} ({root.__bases__[0].__name__})", _about(root)
    children = sorted((kind for kind in ours if kind.__bases__[0] is root), key=_line)
    for child in children:
        last = child is children[-1]
        yield f"{indent}{'└──' if last else '├──'} {child.__name__}", _about(child)
        yield from _tree(child, ours, f"{indent}{' ' if last else '│'}   ")


def _about(kind: type[Exception]) -> str:
    return (kind.__doc__ or "").split("\n")[0]


def _line(kind: type[Exception]) -> int:
    return inspect.getsourcelines(kind)[1]


def exit_codes() -> str:
    return table(("exit code", "meaning"), ((str(number), meaning) for number, meaning in _EXIT_CODES.items()))


def service_codes() -> str:
    """The codes of the service in the order of their statuses."""
    rows = ((str(status), code(name), protected(hint)) for name, (status, hint) in CODES.items())
    return table(("status", "code", "hint"), rows)
