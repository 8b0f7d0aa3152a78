"""`vitrail predict`: labels for pictures."""

import os
import shlex
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, get_type_hints

from cyclopts import Parameter

from vitrail.cli.commands import Classes, Device, Merge, Precision, Preprocessing, Raw, Runtime, read_merge
from vitrail.cli.printing import SteadyConsole, print_end, progress_bar, working
from vitrail.cli.rows import Format, choose_format, open_rows
from vitrail.cli.usage import describe_unknown_option
from vitrail.errors import ConfigError
from vitrail.wording import counted

BROKEN = 1
Model = Annotated[
    str | None,
    Parameter(help="The checkpoint; every positional argument is then a picture [default: the bundled cifar10]."),
]
ListFile = Annotated[
    str | None,
    Parameter(name="--list", allow_leading_hyphen=True, help="A file with one path per line; - for standard input."),
]


# A single hyphen is a value; other words with a leading hyphen, which this lets through, are refused in `tell_apart`.
Pictures = Annotated[str, Parameter(allow_leading_hyphen=True)]
NamedPictures = Annotated[
    Pictures,
    Parameter(
        help="[MODEL] PICTURES…: the first argument is the model if it is a .safetensors, .npz or .onnx file, a run "
        "folder, a folder with an OpenVINO export, hf://owner/name, google://NAME or cifar10; otherwise the bundled "
        "cifar10 is used. A picture is a file, a folder with everything below it, a quoted pattern such as "
        "'photos/**/*.jpg', or - for one picture on standard input."
    ),
]


def predict(
    *pictures: NamedPictures,
    model: Model = None,
    list_file: ListFile = None,
    classes: Classes = None,
    top_k: int = 3,
    coverage: float | None = None,
    abstain: Annotated[bool, Parameter(negative=())] = False,
    form: Annotated[Format | None, Parameter(name="--format")] = None,
    out: Path | None = None,
    resume: Annotated[bool, Parameter(negative=())] = False,
    raw: Raw = False,
    batch_size: int | None = None,
    runtime: Runtime = "auto",
    precision: Precision = "float32",
    merge: Merge = None,
    preprocess: Preprocessing = None,
    device: Device = "auto",
) -> int:
    """Classify pictures: vitrail predict [MODEL] PICTURES…

    A picture that cannot be read becomes a row with its error, and the exit code is 1.

    Parameters
    ----------
    top_k
        How many classes to show for each picture.
    coverage
        Also give the set of labels that holds the truth this often, such as 0.95; for a calibrated model.
    abstain
        Give no label to pictures that are unlike anything seen in training; for a calibrated model.
    form
        How to write the predictions [default: a table, or the format that the name of --out implies].
    out
        Write the predictions to this .jsonl, .csv or .parquet file.
    resume
        With --out, keep the rows as they are computed; after an interruption, the same command continues.
    batch_size
        Pictures per forward pass [default: whatever suits the model].
    """
    from vitrail.prediction.results import Prediction
    from vitrail.verbs.call import check_standard_input
    from vitrail.verbs.predict import predict as predict_all

    chosen = choose_format(form, out, raw=raw)
    if resume and out is None:
        raise ConfigError("--resume continues a file of predictions; name it with --out.")
    if out is None and getattr(sys.stdout, "name", "") == os.devnull:
        raise ConfigError("standard output is closed, so the predictions would be lost; pass --out FILE.")
    check_standard_input(pictures, list_file)
    source, names = tell_apart(pictures, model, predict)
    with working(f"loading {source}"):
        predictions = predict_all(
            source,
            names,
            list_file=list_file,
            classes=classes,
            top_k=top_k,
            coverage=coverage,
            abstain=abstain,
            batch_size=batch_size,
            runtime=runtime,
            precision=precision,
            merge=read_merge(merge),
            preprocess=preprocess,
            device=device,
            progress=True,
        )
    assert not isinstance(predictions, Prediction)  # a sequence of names, however many
    count = broken = strange = 0
    start = time.perf_counter()
    shown = out is None and sys.stdout.isatty()  # the rows themselves show progress, and a bar would get in the way
    with (
        progress_bar("pictures", speaks=not shown) as advance,
        predictions.kept_beside(out) if resume and out else nullcontext(predictions.stream()) as rows,
        open_rows(chosen, out, predictions.columns, raw=raw) as write,
    ):
        for row in rows:
            write(row)
            count += 1
            broken += row.error is not None
            strange += row.familiar is False
            advance(1)
    _report(count, broken, strange, time.perf_counter() - start)
    if out is not None:
        print_end([out], shlex.join(["vitrail", "embed", source, *names[:1]]))
    return BROKEN if broken else 0


def tell_apart(arguments: tuple[str, ...], model: str | None, verb: Callable[..., int]) -> tuple[str, tuple[str, ...]]:
    """The model and the pictures among the arguments."""
    for name in arguments:
        if name.startswith("-") and name != "-":
            unknown = describe_unknown_option(name, f"vitrail {verb.__name__}", _options(verb))
            raise ConfigError(f"{unknown} A picture of that name is ./{name}")
    from vitrail.verbs.call import tell_pictures

    return tell_pictures(arguments, model)


def _options(verb: Callable[..., int]) -> set[str]:
    """The options of a verb, as they are typed."""
    names: set[str] = set()
    for name, hint in get_type_hints(verb, include_extras=True).items():
        explicit = [item.name for item in getattr(hint, "__metadata__", ()) if isinstance(item, Parameter)]
        flags = [str(text) for texts in explicit for text in ([texts] if isinstance(texts, str) else texts or ())]
        names |= set(flags or [f"--{name.replace('_', '-')}"])
    return names - {"--pictures", "--return"} | {"PICTURES"}


def _report(count: int, broken: int, strange: int, seconds: float) -> None:
    """Print a summary on the error stream, so that the predictions can be piped."""
    text = f"{counted(count, 'picture')} in {seconds:.1f} s, {count / seconds:,.0f} per second"
    if strange:
        text += f"; {strange:,} unlike anything seen in training"
    if broken:
        text += f"; {broken:,} could not be read"
    SteadyConsole(stderr=True, highlight=False).print(text, style="yellow" if broken else "dim")
