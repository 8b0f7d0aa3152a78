"""`vitrail.embed`: the embeddings of pictures or of a data set, and a map of them."""

import shlex
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack, get_args

import numpy as np
from rich.console import RenderableType
from rich.text import Text

from vitrail.data.source import Dataset, Source
from vitrail.errors import ConfigError, InputError, suggest
from vitrail.evaluation import MapMethod
from vitrail.files import RUNS, WriteRow, atomic_path, load_pyarrow, new_run_folder, open_csv
from vitrail.prediction import Predictor
from vitrail.prediction.feature_files import FeatureFormat, check_features_path, read_features, write_features
from vitrail.prediction.feature_table import TEXTS, FeatureTable, Texts, collect_features
from vitrail.prediction.results import Floats, Named
from vitrail.progress import Advance, Progress, ending, left_out, pick_progress, working
from vitrail.registry import PrecisionChoice, RuntimeChoice
from vitrail.rng import start_of_permutation
from vitrail.verbs.call import (
    Out,
    Pictures,
    RuntimeRequest,
    check_out,
    refuse_settings,
    resolve_dataset,
    resolve_model,
    resolve_pictures,
)
from vitrail.verbs.keywords import DataSettings, changed_settings, read_data_settings
from vitrail.wording import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_POINTS = 5000  # on a map; t-SNE of more takes minutes and shows no more
MOST_ERRORS = 1000  # that are kept in memory where a file lists them all


@dataclass(frozen=True, kw_only=True, eq=False)
class FeatureMap:
    """Features as points on a plane; a notebook shows the drawing."""

    points: np.ndarray[Any, Any]  # (n, 2)
    places: np.ndarray[Any, Any]  # (n,) the rows of the features that they show
    labels: tuple[str, ...] | None
    title: str

    def figure(self) -> "Figure":
        """The drawing, coloured by class."""
        from vitrail.evaluation.plots import map_figure

        return map_figure(self.points, self.labels, self.title)

    def save(self, path: str | Path) -> Path:
        """Write the drawing to a picture file."""
        from vitrail.canvas import save_figure

        save_figure(self.figure(), Path(path))
        return Path(path)

    def _repr_png_(self) -> bytes:
        buffer = BytesIO()
        self.figure().savefig(buffer, format="png", bbox_inches="tight")
        return buffer.getvalue()


@dataclass(frozen=True, kw_only=True, eq=False)
class Embeddings:
    """The features of pictures, one row each.

    What was written to a file stays there: `features` of an .npy file are mapped into memory; those of other files, and
    `pictures`, `labels` and `splits` of any file, are read when they are first used. The file must still be there.
    """

    table: FeatureTable = field(repr=False)
    errors: dict[str, str] = field(default_factory=dict[str, str], repr=False)  # picture → why it could not be read
    num_errors: int = 0  # of which a file's `errors` are the first; errors.csv beside it lists all
    folder: Path | None = None
    written: tuple[Path, ...] = ()
    map_error: str = ""  # why no map could be drawn; the features are written
    following: str = field(default="", repr=False)  # a command to try next

    @property
    def features(self) -> Floats:
        """(N, D)."""
        return self.table.features

    @cached_property
    def pictures(self) -> tuple[str, ...]:
        """(N,) their names."""
        return self.table.texts("picture")

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """(N,) of a data set."""
        return self.table.texts("label")

    @cached_property
    def splits(self) -> tuple[str, ...]:
        """(N,) of a data set."""
        return self.table.texts("split")

    def __len__(self) -> int:
        return self.table.shape[0]

    @property
    def exit_code(self) -> int:
        """1: some pictures could not be read."""
        return int(self.num_errors > 0)

    def to_dict(self) -> dict[str, Any]:
        """What is known of them but the features, for JSON."""
        count, width = self.table.shape
        written = [str(path) for path in self.written]
        return {
            "pictures": count,
            "width": width,
            "errors": self.errors,
            "num_errors": self.num_errors,
            "map_error": self.map_error,
            "written": written,
        }

    def lines(self) -> Iterator[RenderableType]:
        """What the command prints."""
        count, width = self.table.shape
        yield f"{counted(count, 'picture')}, {counted(width, 'feature')} each"
        if self.map_error:
            yield Text(f"no map: {self.map_error}", style="yellow")
        yield from left_out(self.errors, count=self.num_errors)
        yield from ending(self.written, self.following)

    def save(self, path: str | Path) -> Path:
        """Write the table to an .npz, .npy (with a .csv beside it) or .parquet file."""
        target = Path(path)
        with write_features(target, self.table.columns, self.table.shape[1]) as write:
            for texts, features in self.table.rows():
                write(texts, features)
        return target

    def map(self, method: MapMethod = "pca") -> FeatureMap:
        """The features on a plane, by "pca" or "tsne"; of very many, a fixed sample."""
        from vitrail.evaluation.probe import project

        places = np.sort(start_of_permutation(MOST_POINTS, 0, 0, len(self), "map"))
        count = counted(len(self), "picture")
        shown = count if len(places) == len(self) else f"{len(places):,} of {count}"
        return FeatureMap(
            points=project(self.table.features_at(places), method),
            places=places,
            labels=self.table.texts_at("label", places) if "label" in self.table.columns else None,
            title=f"{'t-SNE' if method == 'tsne' else 'PCA'} of {shown}",
        )


def embed(
    model: Predictor | str | Path | None,
    pictures: Pictures | None = None,
    *,
    data: Dataset | str | Path | None = None,
    split: str | Sequence[str] = (),
    list_file: str | None = None,
    format: FeatureFormat = "npz",  # noqa: A002 - the flag's name
    map: MapMethod | Literal["none"] = "pca",  # noqa: A002 - the flag's name
    out: Out = None,
    batch_size: int | None = None,
    runtime: RuntimeChoice = "auto",
    precision: PrecisionChoice = "float32",
    merge: int | Sequence[int] | None = None,
    device: str = "auto",
    progress: bool | Progress = False,
    **settings: Unpack[DataSettings],
) -> Embeddings:
    """The embeddings of pictures or of a data set: the features that the model's head gets.

    A picture that cannot be read is left out and listed in `errors`. With `out`, rows go to the file as they are
    computed, so that memory does not grow with their number; errors.csv then lists all pictures that were left out, and
    `errors` the first 1,000. For archives, see `vitrail.run_job`. The `settings` are the fields of `DataConfig`.

    Args:
        model: A checkpoint, as for `vitrail predict`. In Python, also a loaded model.
        pictures: [MODEL] PICTURES…, as for `vitrail predict`.
        data: A data set instead of pictures: see `vitrail data --help`. The labels and splits come with the features.
        split: The splits of the data set, such as train,val [default: all].
        list_file: A file with one path per line; - for standard input.
        format: The kind of file to write: features.npz, features.npy with the names in features.csv, or
            features.parquet.
        map: The 2-D map of the features to draw.
        out: The folder to write to [default: runs/embed-N]. In Python, nothing is written by default.
        batch_size: Pictures per forward pass [default: whatever suits the model].
        runtime: The backend; auto: the fastest whose answers equal torch's, measured once if there is enough to do.
        precision: The number format; auto: bf16, or your int8 export of this model, if it is measured to be faster.
        merge: Merge about this many similar patches in each block, for speed, such as 8; or a number for each block,
            such as 8,8,4,4.
        device: Where to compute: auto, cpu, cuda, cuda:1, mps, …
    """
    config = read_data_settings(embed, settings)
    if "max_broken_rate" in settings:
        raise ConfigError(
            "has no use here: pictures that cannot be read are left out and listed.", field="max_broken_rate"
        )
    splits = (split,) if isinstance(split, str) else tuple(split)
    check_arguments(
        data=data, split=splits, settings=changed_settings(config), form=format, method=map, batch_size=batch_size
    )
    check_out(out)
    if out is not None and not isinstance(out, bool):
        check_features_path(Path(out) / f"features.{format}")
    found = resolve_pictures(pictures, list_file) if data is None or pictures or list_file is not None else None
    if data is not None and found is not None:
        raise ConfigError("pass pictures or `data=`, not both.")
    request = RuntimeRequest(runtime=runtime, precision=precision, merge=merge)
    source = resolve_model(model, device=device, request=request)
    argument = None if data is None else resolve_dataset(data, config)
    show, shows = pick_progress(progress), progress is not False
    predictor = source.open(speaks=shows)
    if argument is None:
        assert found is not None
        predictor = source.put(predictor, *found.size_up(), speaks=shows)
        rows = _Rows(TEXTS[:1], _pictures_of(predictor, found.stream(), batch_size))
    else:
        dataset = argument.open(speaks=shows)
        sources = [(name, dataset.split(name)) for name in splits or dataset.splits]
        count = sum(len(each) for _, each in sources)
        some = (picture for _, each in sources for _, picture in each.stream(range(len(each))))
        predictor = source.put(predictor, count, some, speaks=shows)
        rows = _Rows(TEXTS, _data_of(predictor, sources, dataset, batch_size), count)
    where = "DATA" if argument is None else argument.name
    following = f"vitrail eval {shlex.join([source.source, where])} --probe knn,linear"
    with _new_folder(out) as folder:
        embeddings = rows.collect(show) if folder is None else rows.write(folder, format, show)
    embeddings = replace(embeddings, following=following)
    if folder is None or map == "none":
        return embeddings
    with working("drawing the map", speaks=shows):
        return _draw(embeddings, folder / f"map_{map}.png", map)


@contextmanager
def _new_folder(out: Out) -> Generator[Path | None]:
    """The folder to write to, if there is one; after a failure, the folders that were made go if they are empty."""
    if out is None or out is False:
        yield None
        return
    place = RUNS if out is True else Path(out)
    made = [path for path in (place, *place.parents) if not path.exists()]
    folder = new_run_folder("embed", None if out is True else place)
    try:
        yield folder
    except BaseException:
        with suppress(OSError):
            for path in [folder, *made] if out is True else made:
                path.rmdir()
        raise


def check_arguments(
    *,
    data: Dataset | str | Path | None,
    split: Sequence[str],
    settings: Mapping[str, Any],
    form: str,
    method: str,
    batch_size: int | None,
) -> None:
    """Refuse what cannot work, before anything is opened; `settings` are those about data that were passed."""
    formats, maps = get_args(FeatureFormat), (*get_args(MapMethod), "none")
    for name, value, known in (("format", form, formats), ("map", method, maps)):
        if value not in known:
            raise ConfigError(f"has no {value!r}; {suggest(str(value), known)}", field=name)
    if form == "parquet":
        load_pyarrow("writing Parquet")
    if batch_size is not None and batch_size < 1:
        raise ConfigError(f"must be at least 1; got {batch_size}.", field="batch_size")
    names = [f"`{name}=`" for name in settings]
    if data is None and (split or names):
        arguments = [*(["`split=`"] if split else ()), *names]
        raise ConfigError(f"{', '.join(arguments)} {'goes' if len(arguments) == 1 else 'go'} with `data=`.")
    refuse_settings(data, settings)


Computed = tuple[Texts, Floats | str]  # the texts of a row; its features, or why there are none


def _pictures_of(predictor: Predictor, stream: Iterable[Named], batch_size: int | None) -> Iterator[Computed]:
    return (((name,), value) for name, value in predictor.features(stream, batch_size))


def _data_of(
    predictor: Predictor, sources: Iterable[tuple[str, Source]], dataset: Dataset, batch_size: int | None
) -> Iterator[Computed]:
    for split, source in sources:
        named, cell = source.stream(range(len(source))), dataset.labelling.cell
        for index, (key, value) in enumerate(predictor.features(named, batch_size)):
            yield (key, cell(source.labels[index], dataset.classes), split), value


class _Rows:
    """The rows of one call, on their way to memory or to a file."""

    def __init__(self, columns: Sequence[str], rows: Iterator[Computed], total: int | None = None) -> None:
        self._columns, self._computed, self._total = columns, rows, total
        self._errors: dict[str, str] = {}
        self._num_errors = 0

    def collect(self, progress: Progress) -> Embeddings:
        """All rows in memory."""
        with progress("pictures", self._total) as advance:
            width, rows = self._begin(self._errors.__setitem__, advance)
            table = collect_features(rows, self._columns, width)
        return Embeddings(table=table, errors=self._errors, num_errors=self._num_errors)

    def write(self, folder: Path, form: FeatureFormat, progress: Progress) -> Embeddings:
        """All rows in a file; the files appear when the last row is known."""
        path, list_of_errors = folder / f"features.{form}", folder / "errors.csv"
        with progress("pictures", self._total) as advance, _error_writer(list_of_errors) as write_error:

            def note(name: str, why: str) -> None:
                write_error(name, why)
                if len(self._errors) < MOST_ERRORS:
                    self._errors[name] = why

            width, rows = self._begin(note, advance)
            with write_features(path, self._columns, width) as write:
                for texts, features in rows:
                    write(texts, features)
        written = (path, *([path.with_suffix(".csv")] if form == "npy" else ()))
        written += (list_of_errors,) if self._num_errors else ()
        return Embeddings(
            table=read_features(path),
            errors=self._errors,
            num_errors=self._num_errors,
            folder=folder,
            written=written,
        )

    def _begin(self, note: Callable[[str, str], None], advance: Advance) -> tuple[int, Iterator[tuple[Texts, Floats]]]:
        """How wide the rows are, and the rows with features; `note` gets the names of the others, and why."""

        def readable() -> Iterator[tuple[Texts, Floats]]:
            for texts, value in self._computed:
                if isinstance(value, str):
                    self._num_errors += 1
                    note(texts[0], value)
                else:
                    yield texts, value
                advance(1)

        rows = readable()
        first = next(rows, None)
        if first is None:
            raise InputError(f"no picture could be read; the first: {next(iter(self._errors.values()), 'none given')}")
        return len(first[1]), chain([first], rows)


@contextmanager
def _error_writer(path: Path) -> Generator[Callable[[str, str], None]]:
    """What lists pictures that could not be read, in a file; without any there is none, nor one of an earlier call."""
    with ExitStack() as stack:

        @cache
        def open_list() -> WriteRow:
            return stack.enter_context(open_csv(stack.enter_context(atomic_path(path)), ("picture", "error")))

        yield lambda name, why: open_list()((name, why))
    if not open_list.cache_info().currsize:
        path.unlink(missing_ok=True)


def _draw(embeddings: Embeddings, path: Path, method: MapMethod) -> Embeddings:
    """The same with a map; the features are written already, and stay if it fails."""
    try:
        drawn = embeddings.map(method).save(path)
    except InputError as error:
        return replace(embeddings, map_error=str(error))
    return replace(embeddings, written=(*embeddings.written, drawn))
