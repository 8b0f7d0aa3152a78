"""Dispatch: `vitrail VERB …` → the one function of `vitrail/cli/VERB.py`."""

import os
import signal
import sys
import traceback
import warnings
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from typing import Any

from cyclopts import App, CycloptsError

from vitrail import __version__
from vitrail.cli.flags import as_flags
from vitrail.cli.printing import print_error, print_note
from vitrail.cli.usage import describe_usage
from vitrail.errors import AssumptionWarning, VitrailError
from vitrail.wording import reason

# Verb → the line that `vitrail --help` shows. The function has the verb's name and lives in the file of that name.
VERBS = {
    "convert": "Convert a checkpoint to another format, and prove that it computes the same.",
    "data": "Check a data set, show what the model sees of it, or write it as shards.",
    "demo": "Train a small ViT on handwritten digits, and show what it has learnt.",
    "doctor": "Print what an issue report needs: versions, device, optional packages, cache.",
    "embed": "Write what the model's head sees of pictures, and a map of it.",
    "eval": "Measure a model on a data set: accuracy, calibration, confusion, the worst mistakes.",
    "explain": "Show which parts of pictures a checkpoint decides by, and how far to believe it.",
    "figures": "Draw the paper's figures for a checkpoint: filters, positions, attention distance, attention.",
    "inspect": "Show what a checkpoint is, and what may be wrong with it.",
    "models": "List the model variants: patch, layers, width, heads, parameters, GMACs.",
    "predict": "Say what is on pictures: files, folders, patterns or standard input.",
    "summary": "Show a model step by step: the shape after each, parameters and MACs.",
    "train": "Train or fine-tune on pictures; resumable, on one process or many.",
}

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
    for verb, line in VERBS.items():
        app.command(f"vitrail.cli.{verb}:{verb}", name=verb, help=line)
    return app


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; its exit code is 0 done, 1 done with problems, 2 a user's mistake, 130 interrupted."""
    tokens = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in tokens
    tokens = [token for token in tokens if token != "--debug"]  # noqa: S105
    try:
        with _notes_shown():
            code = build_app()(
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
        if not getattr(error, "told", False):  # by another process of the same run
            print_error(as_flags(reason(error)))
        return USER_ERROR
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # `vitrail models | head`: the reader has gone, which is no error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:  # a full disk, a folder that may not be written, a name that is too long
        if debug:
            traceback.print_exc()
        print_error(error)
        return USER_ERROR
    return int(code)


@contextmanager
def _notes_shown() -> Generator[None]:
    """While a verb runs, what a checkpoint leaves open is shown in plain lines, by the first rank for all."""
    with warnings.catch_warnings():
        show = warnings.showwarning

        def show_notes(message: Warning | str, *details: Any, **more: Any) -> None:
            if not isinstance(message, AssumptionWarning):
                show(message, *details, **more)
            elif os.environ.get("RANK", "0") == "0":
                for note in message.notes:
                    print_note(note)

        warnings.showwarning = show_notes
        warnings.simplefilter("always", AssumptionWarning)
        yield


def entry() -> None:
    """The console script."""
    signal.signal(signal.SIGTERM, _terminate)
    for stream in (sys.stdin, sys.stdout):  # names of files may hold any bytes; they come and go as they are
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="surrogateescape")
    sys.exit(main())


def _terminate(*_: object) -> None:
    """Leave in the ordinary way, so that drafts are cleaned up."""
    sys.exit(TERMINATED)
