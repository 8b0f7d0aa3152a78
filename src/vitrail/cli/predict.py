"""`vitrail predict`: labels for pictures."""

import shlex
import sys
import time
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_type_hints

from cyclopts import Parameter

from vitrail.cli.options import Classes, Device, Precision, Raw, Runtime
from vitrail.cli.printing import SteadyConsole, print_end, progress_bar, working
from vitrail.cli.rows import Format, choose_format, open_rows
from vitrail.errors import ConfigError
from vitrail.wording import counted

if TYPE_CHECKING:
    from vitrail.prediction.predictor import Named

BROKEN = 1
Model = Annotated[
    str | None,
    Parameter(help="The checkpoint, so that every positional argument is a picture [default: the bundled cifar10]."),
]
ListFile = Annotated[
    str | None,
    Parameter(name="--list", allow_leading_hyphen=True, help="A file with one path per line; - for standard input."),
]


# A lone hyphen is a value; every other one that cyclopts then lets pass is refused in `tell_apart`.
Pictures = Annotated[str, Parameter(allow_leading_hyphen=True)]


def predict(
    *pictures: Pictures,
    model: Model = None,
    list_file: ListFile = None,
    classes: Classes = None,
    top_k: int = 3,
    form: Annotated[Format | None, Parameter(name="--format")] = None,
    out: Path | None = None,
    raw: Raw = False,
    batch_size: int | None = None,
    runtime: Runtime = "auto",
    precision: Precision = "float32",
    device: Device = "auto",
) -> int:
    """Say what is on pictures: vitrail predict [MODEL] PICTURES…

    A picture that cannot be read becomes a row with its error, and the exit code is 1.

    Parameters
    ----------
    pictures
        [MODEL] PICTURES…: the first argument is the model if it is a .safetensors or .npz file, a run folder,
        hf://owner/name, google://NAME or cifar10; otherwise the bundled cifar10 is used. A picture is a file, a folder
        with all below it, a quoted pattern such as 'photos/**/*.jpg', or - for one picture on standard input.
    top_k
        How many classes to name for each picture.
    form
        How to write the answers [default: a table, or what the name of --out says].
    out
        Write the answers to this .jsonl, .csv or .parquet file.
    batch_size
        Pictures per call of the model [default: what suits it].
    """
    from vitrail.device import check_device
    from vitrail.prediction.arguments import check_standard_input
    from vitrail.prediction.jobs import Wanted
    from vitrail.prediction.pictures import count_pictures, first_pictures
    from vitrail.weights.class_names import read_class_names

    if top_k < 1:
        raise ConfigError(f"--top-k must be at least 1; got {top_k}.")
    chosen = choose_format(form, out, raw=raw)
    check_standard_input(pictures, list_file)
    check_device(device)
    if classes is not None:
        read_class_names(classes)  # wrong ones are told before anything is opened
    source, names = tell_apart(pictures, model, predict)
    wanted = Wanted(runtime=runtime, precision=precision)
    wanted.check(source, device)
    stream = gather(names, list_file)
    with working(f"loading {source}"):
        predictor = wanted.open(source, classes, device)
    count = count_pictures(names, list_file)
    predictor = wanted.put(predictor, count, first_pictures(names, list_file), speaks=True)
    top_k = min(top_k, predictor.num_classes or top_k)
    count = broken = 0
    start = time.perf_counter()
    shown = out is None and sys.stdout.isatty()  # the rows themselves show how far it is, and a bar would cross them
    with progress_bar("pictures", speaks=not shown) as advance, open_rows(chosen, out, top_k, raw=raw) as write:
        for row in predictor.predict_named(stream, top_k=top_k, batch_size=batch_size):
            write(row)
            count += 1
            broken += row.error is not None
            advance(1)
    _report(count, broken, time.perf_counter() - start)
    if out is not None:
        print_end([out], shlex.join(["vitrail", "embed", source, *names[:1]]))
    return BROKEN if broken else 0


def tell_apart(arguments: tuple[str, ...], model: str | None, verb: Callable[..., int]) -> tuple[str, tuple[str, ...]]:
    """The model and the pictures among what was typed."""
    for name in arguments:
        if name.startswith("-") and name != "-":
            near = get_close_matches(name, _options(verb), n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise ConfigError(f"unknown option {name}; {hint}A picture of that name is ./{name}")
    from vitrail.prediction.arguments import tell_pictures

    return tell_pictures(arguments, model)


def _options(verb: Callable[..., int]) -> list[str]:
    """The options of a verb, as they are typed."""
    names: list[str] = []
    for name, hint in get_type_hints(verb, include_extras=True).items():
        told = [item.name for item in getattr(hint, "__metadata__", ()) if isinstance(item, Parameter)]
        written = [str(text) for texts in told for text in ([texts] if isinstance(texts, str) else texts or ())]
        names += written or [f"--{name.replace('_', '-')}"]
    return names


def gather(names: tuple[str, ...], list_file: str | None) -> "Iterator[Named]":
    """The pictures that were named, then those of the list; the list may name some that are not there."""
    from vitrail.prediction.arguments import check_standard_input
    from vitrail.prediction.pictures import find_pictures, name_paths, read_list

    check_standard_input(names, list_file)
    found = find_pictures(names)

    def both() -> "Iterator[Named]":
        yield from found
        if list_file is not None:
            yield from name_paths(read_list(list_file))

    return both()


def _report(count: int, broken: int, seconds: float) -> None:
    """On the error stream, so that the answers can be piped."""
    text = f"{counted(count, 'picture')} in {seconds:.1f} s, {count / seconds:,.0f} per second"
    if broken:
        text += f"; {broken:,} could not be read"
    SteadyConsole(stderr=True, highlight=False).print(text, style="yellow" if broken else "dim")
