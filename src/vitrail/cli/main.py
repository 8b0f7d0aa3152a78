"""Dispatch: `vitrail VERB …` → the command that `commands.py` builds from the verb; errors, notes and exit codes."""

import codecs
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import Any, Literal

from cyclopts import App, CycloptsError, Group

from vitrail import __version__
from vitrail.cli.printing import print_error, print_note, print_text
from vitrail.cli.usage import as_flags, describe_usage, flags_of, renew
from vitrail.errors import AssumptionWarning, VitrailError
from vitrail.verbs import VERBS
from vitrail.wording import without_number

USER_ERROR = 2
INTERRUPTED = 130
TERMINATED = 143


def build_app() -> App:
    """The command with all its verbs, none of them imported yet."""
    app = App(
        name="vitrail",
        help="One tool for the whole life of a Vision Transformer.",
        help_epilogue="Add --debug to any command to see the traceback of an error.",
        help_format="plaintext",
        suppress_keyboard_interrupt=False,  # `main` gives the exit code
        version=__version__,
    )
    names = list(dict.fromkeys(verb.group for verb in VERBS.values()))
    groups = {name: Group(name, sort_key=order) for order, name in enumerate(names)}
    for order, (name, verb) in enumerate(VERBS.items()):
        examples = "\n".join(["Examples:", *(f"  {command}" for command in verb.examples)])
        shown = {"help_prologue": examples} if not verb.verbs else {}
        if verb.usage:
            shown["usage"] = f"Usage: vitrail {name} [OPTIONS] {verb.usage}"
        help_text = f"{verb.line}\n\n{verb.about}".strip()
        app.command(
            f"vitrail.cli.commands:verb_{name}",
            name=name,
            help=help_text,
            group=groups[verb.group],
            sort_key=order,
            **shown,
        )
    options = Group("Options", sort_key=len(groups))
    completion = "Print the script that lets bash, zsh or fish complete verbs and flags."
    app.command(show_completion, name="--show-completion", help=completion, group=options)
    for flag in ("--help", "--version"):
        app[flag].group = options
    return app


def show_completion(shell: Literal["bash", "zsh", "fish"]) -> int:
    """Print the completion script of a shell; nothing is installed.

    Parameters
    ----------
    shell
        bash, zsh or fish.
    """
    print_text(build_app().generate_completion(prog_name="vitrail", shell=shell))
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Exit codes: 0 done, 1 done with problems, 2 a user's mistake, 130 interrupted."""
    tokens = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in tokens
    tokens = [token for token in tokens if token != "--debug"]  # noqa: S105
    app = build_app()
    try:
        with _notes_shown(app, tokens):
            tokens, notes = renew(app, tokens)
            for note in notes:
                print_note(note)
            code = app(
                tokens,
                exit_on_error=False,
                print_error=False,
                verbose=debug,
                result_action="return_int_as_exit_code_else_zero",
            )
    except CycloptsError as error:
        print_error(describe_usage(error, tuple(VERBS)))
        return USER_ERROR
    except VitrailError as error:
        if debug:
            traceback.print_exc()
        if not getattr(error, "reported", False):  # unless another process of the same run has printed it
            print_error(as_flags(without_number(error.message), flags_of(app, tokens)))
        return USER_ERROR
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # `vitrail models | head`: the reader has gone, which is not an error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:  # a full disk, a folder without write permission, a name that is too long
        if debug:
            traceback.print_exc()
        print_error(error)
        return USER_ERROR
    return int(code)


@contextmanager
def _notes_shown(app: App, tokens: Sequence[str]) -> Generator[None]:
    """While a verb runs, print what had to be assumed about a checkpoint as plain lines, on the first rank only."""
    with warnings.catch_warnings():
        show = warnings.showwarning

        def show_notes(message: Warning | str, *details: Any, **more: Any) -> None:
            if not isinstance(message, AssumptionWarning):
                show(message, *details, **more)
            elif os.environ.get("RANK", "0") == "0":
                for note in message.notes:
                    print_note(as_flags(note, flags_of(app, tokens)))

        warnings.showwarning = show_notes
        warnings.simplefilter("always", AssumptionWarning)
        yield


def entry() -> None:
    """The console script."""
    signal.signal(signal.SIGTERM, _terminate)
    for name in ("stdout", "stderr"):  # closed (`>&-`): what is printed gets lost, and no file takes its descriptor
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
    codecs.register_error("names", _pass_names_through)
    for stream, errors in ((sys.stdin, "surrogateescape"), (sys.stdout, "names")):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors=errors)
    sys.exit(main())


def _pass_names_through(error: UnicodeError) -> tuple[bytes, int]:
    """File names may hold any bytes, which pass through unchanged; what the stream's encoding lacks is escaped."""
    assert isinstance(error, UnicodeEncodeError)
    text = error.object[error.start : error.end]
    return b"".join(
        bytes([ord(char) - 0xDC00]) if "\udc80" <= char <= "\udcff" else char.encode("ascii", "backslashreplace")
        for char in text
    ), error.end


def _terminate(*_: object) -> None:
    """Exit in the ordinary way, so that temporary files are removed."""
    sys.exit(TERMINATED)
