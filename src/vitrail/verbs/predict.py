"""`vitrail.predict`: labels for pictures."""

import shlex
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrail.errors import ConfigError
from vitrail.files import sha256_of
from vitrail.prediction import Prediction, Predictor
from vitrail.prediction.results import TOP_K, LazyPredictions, Named, Request
from vitrail.prediction.row_tables import Columns, columns_of
from vitrail.progress import Progress, SteadyConsole, ending, pick_progress, progress_bar
from vitrail.registry import PrecisionChoice, RuntimeChoice
from vitrail.verbs.call import Pictures, RuntimeRequest, resolve_model, resolve_pictures
from vitrail.verbs.keywords import renamed
from vitrail.verbs.rows import (
    UNFAMILIAR,
    Compute,
    RowFormat,
    TerminalTable,
    Write,
    choose_format,
    open_file,
    resumed,
    text_writer,
)
from vitrail.weights.metadata import ClassNames
from vitrail.weights.resolve import files_of
from vitrail.wording import counted

if TYPE_CHECKING:
    import torch


class _Rows(ABC):
    """Predictions that can be printed, or written to a file, one after the other."""

    columns: Columns  # what the rows hold
    form: RowFormat = "table"  # in which they are printed
    raw = False
    following: tuple[str, ...] = ()  # a command to try next
    written: tuple[Path, ...] = ()
    count = broken = unfamiliar = 0  # of the rows that were printed or written
    seconds = 0.0

    @abstractmethod
    def stream(self) -> Iterator[Prediction]:
        """Every prediction once, in order; none of them is kept."""

    @abstractmethod
    def kept_beside(self, out: Path) -> AbstractContextManager[Iterator[Prediction]]:
        """The rows, each kept beside `out` until that file is whole; an interrupted job is continued."""

    @property
    def top_k(self) -> int:
        """Classes of each row: as many as asked for, or all where the model has fewer."""
        return self.columns.top_k

    @property
    def exit_code(self) -> int:
        """1: some pictures could not be read."""
        return int(self.broken > 0)

    def save(
        self,
        out: str | Path,
        format: RowFormat | None = None,  # noqa: A002
        *,
        raw: bool = False,
        resume: bool = False,
        progress: bool | Progress = False,
    ) -> Path:
        """Write a .jsonl, .csv or .parquet file, which appears when it is whole; of a stream, what is left of it.

        Cells of a CSV file that a spreadsheet would take for formulas are neutralised, unless `raw`. With `resume`,
        rows are kept as they are computed: if the job is interrupted, the same call continues it.
        """
        path = Path(out)
        form = choose_format(format, path, raw=raw)
        with (
            self.kept_beside(path) if resume else nullcontext(self.stream()) as rows,
            open_file(form, path, self.columns, raw=raw) as write,
        ):
            self._write(rows, write, pick_progress(progress))
        self.written = (path,)
        return path

    def show_rows(self) -> None:
        """Print the rows, if they were not written, then a summary on the error stream, so that rows can be piped."""
        if not self.written:
            write = TerminalTable(self.columns).write
            if self.form != "table":
                write = text_writer(self.form, sys.stdout, self.columns, raw=self.raw)
            shown = sys.stdout.isatty()  # the rows themselves show progress, and a bar would get in the way
            self._write(self.stream(), write, partial(progress_bar, speaks=not shown))
        text = f"{counted(self.count, 'picture')} in {self.seconds:.1f} s, {self.count / self.seconds:,.0f} per second"
        text += f"; {self.unfamiliar:,} {UNFAMILIAR}" if self.unfamiliar else ""
        text += f"; {self.broken:,} could not be read" if self.broken else ""
        SteadyConsole(stderr=True, highlight=False).print(text, style="yellow" if self.broken else "dim")
        if self.written:
            console = SteadyConsole(highlight=False, markup=False, soft_wrap=True)
            console.print("\n".join(ending(self.written, shlex.join(self.following))))

    def _write(self, rows: Iterator[Prediction], write: Write, progress: Progress) -> None:
        start = time.perf_counter()
        self.count = self.broken = self.unfamiliar = 0
        with progress("pictures") as advance:
            for row in rows:
                write(row)
                self.count += 1
                self.broken += row.error is not None
                self.unfamiliar += row.familiar is False
                advance(1)
        self.seconds = time.perf_counter() - start


class Predictions(LazyPredictions, _Rows):
    """The predictions for several pictures, as a sequence."""

    def __init__(
        self,
        pictures: Callable[[], Iterable[Named]],
        compute: Compute,
        batch_size: int,
        columns: Columns,
        describe: Callable[[], dict[str, Any]],
    ) -> None:
        super().__init__(pictures, compute, batch_size)
        self.columns = columns
        self._describe = describe  # the job: whatever changes its answers

    def kept_beside(self, out: Path) -> AbstractContextManager[Iterator[Prediction]]:
        return resumed(out, self._describe(), iter(self._open()), self._compute)


class PredictionStream(Iterator[Prediction], _Rows):
    """The predictions for pictures that were not counted: each is computed when it is asked for, and only once."""

    def __init__(self, rows: Iterator[Prediction], columns: Columns) -> None:
        self._rows = rows
        self.columns = columns

    def __next__(self) -> Prediction:
        return next(self._rows)

    def stream(self) -> Iterator[Prediction]:
        """What is left of it."""
        return self

    def kept_beside(self, out: Path) -> AbstractContextManager[Iterator[Prediction]]:
        raise ConfigError(
            "needs pictures that can be listed again: a folder, a pattern, a list of them or a file with their "
            "names; not a generator or standard input.",
            field="resume",
        )


@renamed(classes="class_names")
def predict(
    model: Predictor | str | Path | None,
    pictures: Pictures | None = None,
    *,
    list_file: str | Path | None = None,
    class_names: ClassNames | None = None,
    top_k: int | None = None,
    coverage: float | None = None,
    abstain: bool = False,
    format: RowFormat | None = None,  # noqa: A002 - the flag's name
    out: str | Path | None = None,
    resume: bool = False,
    raw: bool = False,
    batch_size: int | None = None,
    runtime: RuntimeChoice = "auto",
    precision: PrecisionChoice = "float32",
    merge: int | Sequence[int] | None = None,
    preprocess: str | None = None,
    progress: bool = False,
    device: "str | torch.device" = "auto",
) -> Prediction | Predictions | PredictionStream:
    """The answer for one picture, as its task is; for several, a sequence that is computed as it is read.

    For a generator, and for a list on standard input, it is a stream of predictions, each computed only once.
    A single picture that cannot be read is an error; of several, it is a row with its `error`. For archives, see
    `vitrail.run_job`.

    Args:
        model: A checkpoint: a file, a run folder, hf://owner/name, google://NAME or a bundled name; None for the
            bundled CIFAR-10 model. In Python, also a loaded model.
        pictures: [MODEL] PICTURES…: the first argument is the model if it is a .safetensors, .npz or .onnx file, a run
            folder, a folder with an OpenVINO export, hf://owner/name, google://NAME or cifar10; otherwise the bundled
            cifar10 is used. A picture is a file, a folder with everything below it, a quoted pattern such as
            `'photos/**/*.jpg'`, or - for one picture on standard input. In Python, also bytes, PIL pictures, arrays and
            tensors.
        list_file: A file with one path per line; - for standard input.
        class_names: A file with the names of the model's classes, one per line in the model's order, or JSON (index →
            name). In Python, also the names themselves.
        top_k: How many labels to give for each picture, at most [default: 5 classes; of several labels, all that
            apply].
        coverage: Also give the set of labels, or the interval of each value, that holds the truth this often, such as
            0.95; for a calibrated model.
        abstain: Give no answer to pictures that are unlike anything seen in training; for a calibrated model.
        format: How to write the predictions [default: a table, or the format that the file's name implies].
        out: Write the predictions to this .jsonl, .csv or .parquet file.
        resume: Keep the rows of the file as they are computed; after an interruption, the same command continues. Of a
            job: continue it.
        raw: Write the cells of CSV files unchanged, for programs. By default, a cell that a spreadsheet would take
            for a formula gets a leading apostrophe, and control characters are spelled out.
        batch_size: Pictures per forward pass [default: whatever suits the model].
        runtime: The backend; auto: the fastest whose answers equal torch's, measured once if there is enough to do.
        precision: The number format; auto: bf16, or your int8 export of this model, if it is measured to be faster.
        merge: Merge about this many similar patches in each block, for speed, such as 8; or a number for each block,
            such as 8,8,4,4.
        preprocess: For an ONNX file of another tool, how its pictures are prepared: google, timm, timm-imagenet, hf,
            torchvision, dinov2 or clip.
        progress: Show on the error stream which runtime was chosen.
        device: Where to compute: auto, cpu, cuda, cuda:1, mps, …
    """
    for name, number in (("top_k", top_k), ("batch_size", batch_size)):
        if number is not None and number < 1:
            raise ConfigError(f"must be at least 1; got {number}.", field=name)
    file = None if out is None else Path(out)
    form = choose_format(format, file, raw=raw)
    if resume and file is None:
        raise ConfigError("continues a file of predictions, or a job; name it with `out=` or `job=`.", field="resume")
    request = RuntimeRequest(runtime=runtime, precision=precision, merge=merge, preprocess=preprocess)
    found = resolve_pictures(pictures, list_file)
    source = resolve_model(model, device=device, class_names=class_names, request=request)
    predictor = source.open(speaks=progress)
    if found.is_single and file is None:
        ((name, picture),) = found.gather().items()
        if request.given():  # for one picture, only what was asked for by name can be worth it
            predictor = source.put(predictor, 1)
        answered = predictor.predict(picture, top_k=top_k, coverage=coverage, abstain=abstain)
        return replace(answered, picture=name)
    predictor = source.put(predictor, *found.size_up(), speaks=progress)
    answers = Request(top_k=top_k, coverage=coverage, abstain=abstain)
    columns = columns_of(predictor, answers)

    def describe() -> dict[str, Any]:
        files = files_of(source.place.fetch()) if source.source else []
        facts = {"model": {file.name: sha256_of(file) for file in files}, "classes": predictor.classes}
        asked = TOP_K if top_k is None and predictor.task.labels == "class" else top_k
        return facts | {"top_k": asked, "coverage": coverage, "abstain": abstain} | vars(request)

    compute, size = predictor.answering(answers, batch_size)
    rows: Predictions | PredictionStream
    if found.is_stream:
        rows = PredictionStream(compute(found.stream()), columns)
    else:
        rows = Predictions(found.stream, compute, size, columns, describe)
    rows.form, rows.raw = form, raw
    first = [str(picture) for picture in found.given if isinstance(picture, str)][:1] if not found.is_stream else []
    rows.following = ("vitrail", "embed", source.source, *first)
    if file is not None:
        rows.save(file, form, raw=raw, resume=resume, progress=progress)
    return rows
