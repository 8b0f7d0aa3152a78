"""`vitrail.predict`: labels for pictures."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

from vitrail.errors import ConfigError
from vitrail.files import sha256_of
from vitrail.prediction import Prediction, Predictor
from vitrail.prediction.inputs import STDIN
from vitrail.prediction.predictor import Named
from vitrail.prediction.results import LazyPredictions, Request
from vitrail.registry import PrecisionChoice, RuntimeChoice
from vitrail.verbs.call import Pictures, RuntimeRequest, gather_pictures, is_single, size_up, stream_pictures
from vitrail.verbs.loading import check_model, open_model
from vitrail.verbs.rows import Columns, Compute, FileFormat, choose_file_format, open_file, resumed
from vitrail.weights.metadata import ClassNames
from vitrail.weights.resolve import DEFAULT_MODEL, files_of, locate

TOP_K = 3


class _Rows(ABC):
    """Predictions that can be written to a file."""

    columns: Columns  # what the rows hold

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

    def save(
        self,
        out: str | Path,
        format: FileFormat | None = None,  # noqa: A002
        *,
        raw: bool = False,
        resume: bool = False,
    ) -> Path:
        """Write a .jsonl, .csv or .parquet file, which appears when it is whole; of a stream, what is left of it.

        Cells of a CSV file that a spreadsheet would take for formulas are neutralised, unless `raw`. With `resume`,
        rows are kept as they are computed: if the job is interrupted, the same call continues it.
        """
        path = Path(out)
        form = choose_file_format(format, path, raw=raw)
        with (
            self.kept_beside(path) if resume else nullcontext(self.stream()) as rows,
            open_file(form, path, self.columns, raw=raw) as write,
        ):
            for row in rows:
                write(row)
        return path


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
    """The predictions for pictures that nobody has counted: each is computed when it is asked for, and only once."""

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


def predict(
    model: Predictor | str | Path | None,
    pictures: Pictures | None = None,
    *,
    list_file: str | Path | None = None,
    classes: ClassNames | None = None,
    top_k: int = TOP_K,
    coverage: float | None = None,
    abstain: bool = False,
    batch_size: int | None = None,
    runtime: RuntimeChoice = "auto",
    precision: PrecisionChoice = "float32",
    merge: int | Sequence[int] | None = None,
    preprocess: str | None = None,
    progress: bool = False,
    device: "str | torch.device" = "auto",
) -> Prediction | Predictions | PredictionStream:
    """The most likely classes of one picture; of several, a sequence that is computed as it is read.

    For a generator, and for a list on standard input, it is a stream of predictions, each computed only once.
    A single picture that cannot be read is an error; of several, it is a row with its `error`.

    Args:
        model: a loaded model, or what `vitrail.load` takes; None for the bundled CIFAR-10 model.
        pictures: paths, bytes, PIL pictures, arrays or tensors; a folder and a pattern such as `photos/*.jpg` stand
            for several.
        list_file: a file with one path per line, for more pictures.
        classes: the names of the model's classes, in order, or a file of them, for a checkpoint without names.
        top_k: how many classes to name for each picture.
        coverage: also give each picture the set of labels that holds the truth this often, such as 0.95; for a
            calibrated model.
        abstain: give no label to pictures that are unlike anything seen in training; for a calibrated model.
        batch_size: pictures per forward pass; by default whatever suits the model.
        runtime: torch, onnx or openvino; auto takes the fastest whose answers equal torch's, if there is enough to do.
        precision: float32, bf16, or auto: bf16 where it is measured to be faster.
        merge: merge about so many similar patches away in each block, for speed; see docs/model.md.
        preprocess: for an ONNX file of another tool, how its pictures are prepared: google, timm, timm-imagenet, hf,
            torchvision, dinov2 or clip.
        progress: show on the error stream which runtime was chosen.
    """
    for name, number in (("top_k", top_k), ("batch_size", batch_size)):
        if number is not None and number < 1:
            raise ConfigError(f"must be at least 1; got {number}.", field=name)
    wanted = RuntimeRequest(runtime=runtime, precision=precision, merge=merge, preprocess=preprocess)
    check_model(model, device, classes, wanted)
    if isinstance(model, str | Path):
        locate(model, allow_export=True)
    if pictures is not None and list_file is None and is_single(pictures):
        ((name, picture),) = gather_pictures(pictures).items()
        predictor = open_model(model, device, classes, wanted=wanted)
        if wanted.given():  # for one picture, only what was asked for by name can be worth it
            predictor = wanted.put(predictor, 1)
        answered = predictor.predict(picture, top_k=top_k, coverage=coverage, abstain=abstain)
        return replace(answered, picture=name)
    stream = stream_pictures(pictures, list_file)
    predictor = open_model(model, device, classes, wanted=wanted)
    if not isinstance(model, Predictor):
        predictor = wanted.put(predictor, *size_up(pictures, list_file), speaks=progress)
    request = Request(top_k=top_k, coverage=coverage, abstain=abstain)
    columns = Columns(
        top_k=min(top_k, predictor.num_classes or top_k),
        label_set=coverage is not None,
        familiarity=predictor.judges_familiarity,
    )

    def describe() -> dict[str, Any]:
        source = predictor.source if isinstance(model, Predictor) else model or DEFAULT_MODEL
        files = files_of(locate(source, allow_export=True).fetch()) if source else []
        facts = {"model": {file.name: sha256_of(file) for file in files}, "classes": predictor.classes}
        return facts | {"top_k": top_k, "coverage": coverage, "abstain": abstain} | vars(wanted)

    compute, size = predictor.answering(request, batch_size)
    if (pictures is not None and not isinstance(pictures, Sized | Path)) or str(list_file) == STDIN:
        return PredictionStream(compute(stream), columns)
    return Predictions(lambda: stream_pictures(pictures, list_file), compute, size, columns, describe)
