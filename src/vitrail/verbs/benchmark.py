"""`vitrail.benchmark`: how fast one model is on each runtime of this machine, and how far its answers stay the same."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vitrail.data.source import Dataset
from vitrail.errors import ConfigError
from vitrail.files import check_run_folder
from vitrail.prediction import Predictor
from vitrail.progress import Progress
from vitrail.registry import RuntimeName
from vitrail.threads import num_cores
from vitrail.verbs.call import DataArgument, resolve_dataset, resolve_model
from vitrail.verbs.keywords import renamed
from vitrail.weights.metadata import ClassNames

if TYPE_CHECKING:
    from vitrail.verbs.comparison import Comparison

PICTURES = 200  # of a data set, at most
SECONDS = 2.0


@dataclass(frozen=True, kw_only=True)
class BenchmarkPlan:
    """What is combined with what, and how it is measured."""

    runtimes: Sequence[str] | None
    precisions: Sequence[str] | None
    merges: list[int]
    batches: list[int]
    threads: list[int]
    exports: Sequence[str | Path]
    compare: Sequence[str]
    compiled: bool
    data: DataArgument | None
    split: str | None
    pictures: int
    by_position: bool
    seconds: float
    out: str | Path | None


@renamed(classes="class_names")
def benchmark(
    model: Predictor | str | Path,
    *,
    runtimes: Sequence[RuntimeName] | None = None,
    precision: Sequence[str] | None = None,
    merge: Sequence[int] = (0,),
    exports: Sequence[str | Path] = (),
    batch: Sequence[int] = (1, 8),
    threads: Sequence[int] = (),
    compare: Sequence[str] = (),
    compiled: bool = False,
    data: Dataset | str | Path | None = None,
    split: str | None = None,
    pictures: int = PICTURES,
    class_names: ClassNames | None = None,
    by_position: bool = False,
    seconds: float = SECONDS,
    out: str | Path | None = None,
    progress: bool | Progress = False,
) -> "Comparison":
    """Measure one model on the processor, in every combination of what is named, and compare the answers.

    All contestants are built first and then take turns; the quieter half of the turns counts. A model that is an export
    is measured as it is, beside others of the same weights.

    Args:
        model: A checkpoint: a file, a run folder, hf://owner/name, google://NAME or a bundled name; or an export. In
            Python, also a loaded model.
        runtimes: The runtimes to measure [default: all that are installed].
        precision: Of float32,bf16 [default: float32, and bf16 where the processor computes in it].
        merge: How many patches each block merges; several numbers give a curve.
        exports: What `vitrail export` has made of the same weights, such as an int8 model, to run beside them.
        batch: Pictures of one call.
        threads: Cores of one call [default: all].
        compare: Run the same weights in timm,transformers,torchvision.
        compiled: Also run what runs in torch through torch.compile, which takes minutes to compile.
        data: Pictures with classes, for the accuracy of each: a folder, a table or the name of a data set. In Python,
            also an open data set.
        split: train, val, test or all [default: test, or val if there is no test split].
        pictures: How many of the pictures to use at most.
        class_names: A file with the names of the model's classes, one per line in the model's order, or JSON (index →
            name). In Python, also the names themselves.
        by_position: For a checkpoint without class names: its classes are those of the data, in the same order.
        seconds: How long each row is measured.
        out: A folder for benchmark.json, benchmark.md and benchmark.png.
    """
    plan = BenchmarkPlan(
        runtimes=runtimes,
        precisions=precision,
        merges=_numbers("merge", merge, 0),
        batches=_numbers("batch", batch, 1),
        threads=_numbers("threads", threads or (num_cores(),), 1, os.cpu_count() or 1),
        exports=exports,
        compare=compare,
        compiled=compiled,
        data=None if data is None else resolve_dataset(data),
        split=split,
        pictures=pictures,
        by_position=by_position,
        seconds=seconds,
        out=out,
    )
    _check(plan)
    source = resolve_model(model, class_names=class_names)
    from vitrail.verbs.contest import carry_out

    return carry_out(source, plan, progress)


def _numbers(name: str, values: Sequence[int], least: int, most: int | None = None) -> list[int]:
    upper = "" if most is None else f" and at most {most}"
    if not values or any(value < least or (most is not None and value > most) for value in values):
        got = ", ".join(map(str, values)) or "none"
        raise ConfigError(f"must be whole numbers of at least {least}{upper}; got {got}.", field=name)
    return list(dict.fromkeys(values))


def _check(plan: BenchmarkPlan) -> None:
    """What is wrong with the other arguments, before anything is loaded."""
    if plan.data is None and (plan.split is not None or plan.by_position or plan.pictures != PICTURES):
        raise ConfigError("`split=`, `pictures=` and `by_position=` go with `data=`; name the data, or omit them.")
    if not 0 < plan.seconds < float("inf"):
        raise ConfigError(f"must be above 0; got {plan.seconds}.", field="seconds")
    if plan.pictures < 1:
        raise ConfigError(f"must be at least 1; got {plan.pictures}.", field="pictures")
    if plan.out is not None:
        check_run_folder(Path(plan.out))
