"""`vitrail.embed`: the embeddings of pictures or of a data set, and a map of them."""

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack, get_args

import numpy as np
from rich.console import RenderableType
from rich.text import Text

from vitrail.data.source import Dataset
from vitrail.errors import ConfigError, InputError, suggest
from vitrail.evaluation import MapMethod
from vitrail.files import as_utf8, atomic_path, load_pyarrow
from vitrail.prediction import Predictor
from vitrail.prediction.predictor import Named
from vitrail.progress import Progress, ending, left_out, pick_progress, working
from vitrail.registry import PrecisionChoice, RuntimeChoice
from vitrail.rng import permutation
from vitrail.verbs.call import (
    Out,
    Pictures,
    RuntimeRequest,
    check_out,
    make_out,
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

Floats = np.ndarray[Any, np.dtype[np.float32]]


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
    """The features of pictures, one row each."""

    features: Floats = field(repr=False)  # (N, D)
    pictures: tuple[str, ...] = field(repr=False)  # (N,) their names
    labels: tuple[str, ...] = field(default=(), repr=False)  # (N,) of a data set
    splits: tuple[str, ...] = field(default=(), repr=False)  # (N,) of a data set
    errors: dict[str, str] = field(default_factory=dict[str, str], repr=False)  # picture → why it could not be read
    folder: Path | None = None
    written: tuple[Path, ...] = ()
    map_error: str = ""  # why no map could be drawn; the features are written
    following: str = field(default="", repr=False)  # a command to try next

    def __len__(self) -> int:
        return len(self.features)

    @property
    def exit_code(self) -> int:
        """1: some pictures could not be read."""
        return int(bool(self.errors))

    def to_dict(self) -> dict[str, Any]:
        """What is known of them but the features, for JSON."""
        count, width = self.features.shape
        written = [str(path) for path in self.written]
        return {
            "pictures": count,
            "width": width,
            "errors": self.errors,
            "map_error": self.map_error,
            "written": written,
        }

    def lines(self) -> Iterator[RenderableType]:
        """What the command prints."""
        count, width = self.features.shape
        yield f"{counted(count, 'picture')}, {counted(width, 'feature')} each"
        if self.map_error:
            yield Text(f"no map: {self.map_error}", style="yellow")
        yield from left_out(self.errors)
        yield from ending(self.written, self.following)

    def save(self, path: str | Path) -> Path:
        """Write the table to an .npz or .parquet file."""
        target = Path(path)
        columns = {"picture": self.pictures, "label": self.labels, "split": self.splits}
        columns: dict[str, Any] = {name: list(values) for name, values in columns.items() if values}
        if target.suffix not in (".npz", ".parquet"):
            raise ConfigError(f"features are saved as .npz or .parquet; got {target}.")
        with atomic_path(target) as draft:
            if target.suffix == ".npz":
                with draft.open("wb") as file:
                    np.savez(file, features=self.features, **columns)
            else:
                pa, pq = load_pyarrow("writing Parquet")
                columns = {name: list(map(as_utf8, values)) for name, values in columns.items()}
                lists = pa.FixedSizeListArray.from_arrays(pa.array(self.features.ravel()), self.features.shape[1])
                pq.write_table(pa.table({**columns, "features": lists}), draft)
        return target

    def map(self, method: MapMethod = "pca") -> FeatureMap:
        """The features on a plane, by "pca" or "tsne"; of very many, a fixed sample."""
        from vitrail.evaluation.probe import project

        places = np.sort(permutation(0, 0, len(self), "map")[:MOST_POINTS])
        count = counted(len(self), "picture")
        shown = count if len(places) == len(self) else f"{len(places):,} of {count}"
        return FeatureMap(
            points=project(self.features[places], method),
            places=places,
            labels=tuple(self.labels[place] for place in places) if self.labels else None,
            title=f"{'t-SNE' if method == 'tsne' else 'PCA'} of {shown}",
        )


def embed(
    model: Predictor | str | Path | None,
    pictures: Pictures | None = None,
    *,
    data: Dataset | str | Path | None = None,
    split: str | Sequence[str] = (),
    list_file: str | None = None,
    format: Literal["npz", "parquet"] = "npz",  # noqa: A002 - the flag's name
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

    A picture that cannot be read is left out and listed in `errors`. The `settings` are the fields of `DataConfig`.

    Args:
        model: A checkpoint, as for `vitrail predict`. In Python, also a loaded model.
        pictures: [MODEL] PICTURES…, as for `vitrail predict`.
        data: A data set instead of pictures: see `vitrail data --help`. The labels and splits come with the features.
        split: The splits of the data set, such as train,val [default: all].
        list_file: A file with one path per line; - for standard input.
        format: The kind of file to write.
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
        columns = _embed_pictures(predictor, found.stream(), batch_size, show)
    else:
        dataset = argument.open(speaks=shows)
        sources = [dataset.split(name) for name in splits or dataset.splits]
        some = (source.picture(place) for source in sources for place in range(len(source)))
        predictor = source.put(predictor, sum(len(source) for source in sources), some, speaks=shows)
        columns = _embed_data(predictor, dataset, splits, batch_size, show)
    where = "DATA" if argument is None else argument.name
    following = f"vitrail eval {shlex.join([source.source, where])} --probe knn,linear"
    embeddings = replace(columns.joined(), following=following)
    folder = make_out(out, "embed")
    if folder is None:
        return embeddings
    with working("drawing the map", speaks=shows and map != "none"):
        return _write(embeddings, folder, format, map)


@dataclass(kw_only=True)
class _Columns:
    """The results so far, as columns."""

    pictures: list[str] = field(default_factory=list[str])
    vectors: list[Floats] = field(default_factory=list[Floats])
    labels: list[str] = field(default_factory=list[str])
    splits: list[str] = field(default_factory=list[str])
    errors: dict[str, str] = field(default_factory=dict[str, str])

    def add(self, name: str, value: Floats | str) -> bool:
        """Whether the picture has features."""
        if isinstance(value, str):
            self.errors[name] = value
            return False
        self.pictures.append(name)
        self.vectors.append(value)
        return True

    def joined(self) -> Embeddings:
        if not self.vectors:
            raise InputError(f"no picture could be read; the first: {next(iter(self.errors.values()), 'none given')}")
        return Embeddings(
            features=np.stack(self.vectors),
            pictures=tuple(self.pictures),
            labels=tuple(self.labels),
            splits=tuple(self.splits),
            errors=self.errors,
        )


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
    for name, value, known in (("format", form, ("npz", "parquet")), ("map", method, (*get_args(MapMethod), "none"))):
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


def _embed_pictures(
    predictor: Predictor, stream: Iterable[Named], batch_size: int | None, progress: Progress
) -> _Columns:
    columns = _Columns()
    with progress("pictures") as advance:
        for name, value in predictor.features(stream, batch_size):
            columns.add(name, value)
            advance(1)
    return columns


def _embed_data(
    predictor: Predictor, dataset: Dataset, splits: Sequence[str], batch_size: int | None, progress: Progress
) -> _Columns:
    chosen = splits or tuple(dataset.splits)
    columns = _Columns()
    with progress("pictures", sum(len(dataset.split(name)) for name in chosen)) as advance:
        for name in chosen:
            source = dataset.split(name)
            named = ((source.key(index), source.picture(index)) for index in range(len(source)))
            for index, (key, value) in enumerate(predictor.features(named, batch_size)):
                if columns.add(key, value):
                    columns.labels.append(dataset.classes[source.labels[index]])
                    columns.splits.append(name)
                advance(1)
    return columns


def _write(embeddings: Embeddings, folder: Path, form: str, method: MapMethod | Literal["none"]) -> Embeddings:
    """The same with its files; the features are written first, so that they are safe if the map fails."""
    written = [embeddings.save(folder / f"features.{form}")]
    map_error = ""
    if method != "none":
        try:
            written.append(embeddings.map(method).save(folder / f"map_{method}.png"))
        except InputError as error:
            map_error = str(error)
    return replace(embeddings, folder=folder, written=tuple(written), map_error=map_error)
