"""Dispatch: `vitrail VERB …` → the one function of `vitrail/cli/VERB.py`."""

import codecs
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from cyclopts import App, CycloptsError, Group

from vitrail import __version__
from vitrail.cli.printing import print_error, print_note
from vitrail.cli.usage import as_flags, describe_usage, flags_of, show_examples
from vitrail.errors import AssumptionWarning, VitrailError
from vitrail.wording import without_number


@dataclass(frozen=True, kw_only=True)
class Verb:
    """One command: the function of its name in the file of its name."""

    group: str
    line: str  # what `vitrail --help` shows
    usage: str = ""  # its arguments, where they are more than one name each
    about: str = ""  # what its own help adds to the line
    examples: tuple[str, ...] = ()  # shown at the top of its help; empty for a verb that has verbs of its own


# In the order of a model's life, which is also that of `vitrail --help`.
VERBS = {
    "demo": Verb(
        group="Try it",
        line="Train a small ViT on handwritten digits, and show what it has learned.",
        examples=("vitrail demo",),
    ),
    "data": Verb(
        group="Pictures",
        line="Check a data set, show how the model sees it, or write it as shards.",
        about="A data set is a folder of class folders, a CSV or Parquet table, CIFAR or MNIST files, shards, "
        "hf:NAME, or one of digits, cifar10, cifar100, mnist and fashion-mnist.",
    ),
    "train": Verb(
        group="Make a model",
        line="Train or fine-tune on your pictures; resumable, in one process or many.",
        usage="[DATA]",
        about="By default, the model and the recipe are chosen to suit the pictures. Flags override the YAML "
        "file, which overrides the recipe. Under torchrun, all processes train one model.",
        examples=(
            "vitrail train photos",
            "vitrail train photos --minutes 30",
            "vitrail train --resume runs/train-1",
        ),
    ),
    "eval": Verb(
        group="Make a model",
        line="Evaluate a model: accuracy, calibration, confusion, the worst mistakes.",
        usage="[MODEL] DATA",
        about="Writes report.html, metrics.json, predictions.csv, classes.csv, confusion.csv, "
        "confusion_matrix.png, reliability.png and top_losses.jpg. Under torchrun the ranks share the "
        "pictures, and the result is the same. With --probe, a model without a head for these classes is "
        "measured by its features only. Exit code 1: some pictures could not be read, or no report could "
        "be made.",
        examples=("vitrail eval runs/train-1 photos", "vitrail eval runs/train-1 photos --robustness --tta flip"),
    ),
    "calibrate": Verb(
        group="Make a model",
        line="Measure how far to trust a checkpoint, and write that into it.",
        usage="MODEL DATA",
        about="A training run with a validation split has done this already.",
        examples=("vitrail calibrate hf://google/vit-base-patch16-224 photos",),
    ),
    "predict": Verb(
        group="Use it",
        line="Classify pictures: files, folders, patterns or standard input.",
        usage="[MODEL] PICTURES…",
        about="A picture that cannot be read becomes a row with its error, and the exit code is then 1.",
        examples=("vitrail predict cat.jpg", "vitrail predict runs/train-1 photos --out labels.csv"),
    ),
    "embed": Verb(
        group="Use it",
        line="Write the embeddings of pictures, and draw a map of them.",
        usage="[MODEL] PICTURES… | [MODEL] --data DATA",
        about="See `vitrail predict --help` for what a model and a picture can be. For a data set, the labels "
        "and splits are written too. Pictures that cannot be read are left out and listed, and the exit "
        "code is then 1.",
        examples=("vitrail embed runs/train-1 photos", "vitrail embed runs/train-1 --data photos --map tsne"),
    ),
    "explain": Verb(
        group="Use it",
        line="Show which parts of a picture an answer rests on, and how far to trust that.",
        usage="[MODEL] PICTURES…",
        about="Writes overlays, heads, layers, and one sheet of them all. See `vitrail predict --help` for what "
        "a model and a picture can be. Exit code 1: some pictures could not be explained; the others "
        "were.",
        examples=("vitrail explain cat.jpg", "vitrail explain runs/train-1 photos --target cat --score"),
    ),
    "figures": Verb(
        group="Use it",
        line="Draw the paper's figures for a checkpoint.",
        usage="[MODEL] [PICTURES…]",
        about="Filters, positions, attention distance and attention, each as PDF and PNG. Exit code 1: some "
        "pictures could not be read.",
        examples=("vitrail figures runs/train-1", "vitrail figures runs/train-1 photos --out figures"),
    ),
    "inspect": Verb(
        group="Checkpoints",
        line="Show what a checkpoint is, and likely problems with it.",
        about="Exit code 1: the checkpoint cannot work as it is.",
        examples=("vitrail inspect B_16.npz", "vitrail inspect hf://google/vit-base-patch16-224"),
    ),
    "convert": Verb(
        group="Checkpoints",
        line="Convert a checkpoint to another format, and prove that its outputs stay the same.",
        examples=("vitrail convert B_16.npz vit-b16.safetensors", "vitrail convert runs/train-1 folder --to hf"),
    ),
    "export": Verb(
        group="Ship it",
        line="Export a model to ONNX, OpenVINO or torch.export, and prove that it answers the same.",
        usage="MODEL PATH | MODEL --repository DIR",
        examples=(
            "vitrail export runs/train-1 model.onnx",
            "vitrail export runs/train-1 folder --to openvino",
            "vitrail export runs/train-1 --repository models --name flowers",
        ),
    ),
    "benchmark": Verb(
        group="Ship it",
        line="Measure a model on every runtime, beside other libraries: speed, size, agreement, accuracy.",
        examples=(
            "vitrail benchmark runs/train-1",
            "vitrail benchmark runs/train-1 --merge 0,2,4,8 --data photos --out speed",
            "vitrail benchmark runs/train-1 --with model-int8 --compare timm,transformers",
        ),
    ),
    "serve": Verb(
        group="Ship it",
        line="Serve models over HTTP, with a page to try them: predict, embed, explain.",
        usage="[MODEL | NAME=MODEL]…",
        about="Listens on this machine only, unless --host and a token say otherwise. Ctrl-C and SIGTERM answer what "
        "was accepted, then end. One line of JSON for each request goes to standard output.",
        examples=(
            "vitrail serve",
            "vitrail serve runs/train-1 --port 8080",
            "VITRAIL_TOKEN=… vitrail serve cats=runs/train-1 small=model.onnx --host 0.0.0.0",
        ),
    ),
    "models": Verb(
        group="Reference",
        line="List the model variants: patch, layers, width, heads, parameters, GMACs.",
        examples=("vitrail models",),
    ),
    "summary": Verb(
        group="Reference",
        line="Show a model step by step: the shape after each step, parameters and MACs.",
        examples=("vitrail summary vit-b16", "vitrail summary runs/train-1"),
    ),
    "doctor": Verb(
        group="Reference",
        line="Print what a bug report needs: versions, device, optional packages, cache.",
        about="The output is Markdown, ready to paste. Exit code 1: something is wrong; the report says what.",
        examples=("vitrail doctor", "vitrail doctor runs/train-1 --data photos"),
    ),
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
    names = list(dict.fromkeys(verb.group for verb in VERBS.values()))
    groups = {name: Group(name, sort_key=order) for order, name in enumerate(names)}
    for order, (name, verb) in enumerate(VERBS.items()):
        shown = {"help_prologue": show_examples(verb.examples)} if verb.examples else {}
        if verb.usage:
            shown["usage"] = f"Usage: vitrail {name} [OPTIONS] {verb.usage}"
        help_text = f"{verb.line}\n\n{verb.about}".strip()
        app.command(
            f"vitrail.cli.{name}:{name}", name=name, help=help_text, group=groups[verb.group], sort_key=order, **shown
        )
    options = Group("Options", sort_key=len(groups))
    completion = "Print the script that lets bash, zsh or fish complete verbs and flags."
    app.command("vitrail.cli.completion:show_completion", name="--show-completion", help=completion, group=options)
    for flag in ("--help", "--version"):
        app[flag].group = options
    return app


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Exit codes: 0 done, 1 done with problems, 2 a user's mistake, 130 interrupted."""
    tokens = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in tokens
    tokens = [token for token in tokens if token != "--debug"]  # noqa: S105
    app = build_app()
    try:
        with _notes_shown(app, tokens):
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
