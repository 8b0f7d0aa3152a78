"""`vitrail benchmark`: how fast one model is here, on every runtime and beside other libraries."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.table import Table

from vitrail.cli.commands import Classes, Json
from vitrail.cli.printing import SteadyConsole, plain, print_end, print_json
from vitrail.errors import ConfigError

if TYPE_CHECKING:
    from vitrail.verbs.comparison import Comparison

Flag = Parameter(negative=())
WIDEST = 200  # signs in a line; numbers that are cut off are worth nothing


def benchmark(
    model: str,
    *,
    runtimes: str | None = None,
    precision: str | None = None,
    merge: str = "0",
    exports: Annotated[
        tuple[Path, ...], Parameter(name="--with", consume_multiple=True, negative=(), show_default=False)
    ] = (),
    batch: str = "1,8",
    threads: str | None = None,
    compare: str | None = None,
    compiled: Annotated[bool, Parameter(name="--compile", negative=())] = False,
    data: str | None = None,
    split: str | None = None,
    pictures: int | None = None,
    classes: Classes = None,
    by_position: Annotated[bool, Flag] = False,
    seconds: float | None = None,
    out: Path | None = None,
    as_json: Json = False,
) -> None:
    """Measure a model on the processor: milliseconds, images per second, size, and how far its answers stay the same.

    Every combination of the lists (with commas) is measured. All contestants are built first and then take turns; the
    quieter half of the turns counts. With data, the accuracy of each is measured too.

    Parameters
    ----------
    model
        A checkpoint: a file, a run folder, hf://owner/name, google://NAME or a bundled name; or an export.
    runtimes
        Of torch,onnx,openvino [default: all that are installed].
    precision
        Of float32,bf16 [default: float32, and bf16 where the processor computes in it].
    merge
        How many patches each block merges away; several numbers give a curve.
    exports
        What `vitrail export` has made of the same weights, such as an int8 model, to run beside them.
    batch
        Pictures of one call.
    threads
        Cores of one call [default: all].
    compare
        Run the same weights in timm,transformers,torchvision.
    compiled
        Also run what runs in torch through torch.compile, which takes minutes to compile.
    data
        Pictures with classes, for the accuracy of each: a folder, a table or the name of a data set.
    split
        train, val, test or all [default: test, or else val].
    pictures
        How many of the pictures to use at most [default: 200].
    by_position
        The checkpoint has no class names, and its classes are the data's in their order.
    seconds
        How long each row is measured [default: 2].
    out
        A folder for benchmark.json, benchmark.md and benchmark.png.
    """
    merges, batches, cores = (_numbers(*each) for each in (("merge", merge), ("batch", batch), ("threads", threads)))
    from vitrail.verbs import benchmark as verb
    from vitrail.verbs.benchmark import PICTURES

    result = verb.benchmark(
        model,
        runtimes=_names(runtimes),
        precision=_names(precision),
        merge=merges,
        exports=exports,
        batch=batches,
        threads=cores,
        compare=_names(compare) or (),
        compiled=compiled,
        data=data,
        split=split,
        pictures=PICTURES if pictures is None else pictures,
        classes=classes,
        by_position=by_position,
        seconds=verb.SECONDS if seconds is None else seconds,
        out=out,
        progress=True,
    )
    if as_json:
        print_json(result.to_dict())
    else:
        _print(result, model)


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def _numbers(name: str, text: str | None) -> list[int]:
    names = _names(text) or []
    if not all(item.isdecimal() for item in names) or (text is not None and not names):
        raise ConfigError(f"{name}= must be whole numbers with commas between them, such as 1,8; got {text!r}.")
    return [int(item) for item in names]


def _print(result: "Comparison", model: str) -> None:
    console = SteadyConsole(highlight=False, markup=False)
    console.print(plain(result.title), style="bold", soft_wrap=True)
    table = Table(*result.columns, box=None)
    for column in table.columns[2:]:
        column.justify = "right"
    for row in result.rows:
        table.add_row(*(plain(cell(row)) for cell in result.columns.values()))
    console.width = max(console.width, console.measure(table, options=console.options.update(max_width=WIDEST)).maximum)
    console.print(table)
    console.print(result.compared, soft_wrap=True)
    if result.missing:
        missing = ", ".join(result.missing)
        console.print(f'not installed: {missing}; pip install "vitrail[export]" adds them', soft_wrap=True)
    print_end(result.written, shlex.join(["vitrail", "export", model, "model.onnx"]))
