"""`vitrail embed`: features of pictures or of a data set, and a map of them."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from vitrail.cli.options import Device
from vitrail.cli.predict import ListFile, Model, Pictures, gather, tell_apart
from vitrail.cli.printing import SteadyConsole, plain, print_end, progress_bar, working
from vitrail.cli.rows import load_pyarrow
from vitrail.cli.runs import check_run_folder, new_run_folder
from vitrail.data.config import DataConfig
from vitrail.errors import ConfigError, InputError
from vitrail.wording import counted

if TYPE_CHECKING:
    from vitrail.prediction import Predictor

BROKEN = 1
MOST_POINTS = 5000  # on a map; t-SNE of more takes minutes and shows no more
_PLAIN = DataConfig()


@dataclass(kw_only=True)
class _Table:
    """What is written: a column each."""

    pictures: list[str] = field(default_factory=list[str])
    vectors: list[Any] = field(default_factory=list[Any])
    labels: list[str] = field(default_factory=list[str])
    splits: list[str] = field(default_factory=list[str])
    broken: dict[str, str] = field(default_factory=dict[str, str])


def embed(
    *pictures: Pictures,
    model: Model = None,
    data: str | None = None,
    split: Annotated[tuple[str, ...], Parameter(consume_multiple=True, negative=())] = (),
    config: Annotated[DataConfig, Parameter(name="*")] = _PLAIN,
    list_file: ListFile = None,
    form: Annotated[Literal["npz", "parquet"], Parameter(name="--format")] = "npz",
    draw: Annotated[Literal["pca", "tsne", "none"], Parameter(name="--map")] = "pca",
    out: Path | None = None,
    batch_size: int | None = None,
    device: Device = "auto",
) -> int:
    """Write what the model's head sees: vitrail embed [MODEL] PICTURES… or vitrail embed [MODEL] --data DATA

    What a model and a picture can be is said in `vitrail predict --help`. With a data set the labels and splits are
    written too. A picture that cannot be read is left out and named, and the exit code is 1.

    Parameters
    ----------
    pictures
        [MODEL] PICTURES…, as for `vitrail predict`.
    data
        A data set instead of pictures: see `vitrail data --help`.
    split
        The splits of the data set [default: all].
    form
        The file to write.
    draw
        The 2-D map to draw of the features.
    out
        The folder to write to [default: runs/embed-N].
    batch_size
        Pictures per call of the model [default: what suits it].
    """
    from vitrail.data.opening import check_where
    from vitrail.device import pick_device
    from vitrail.prediction import load

    if form == "parquet":
        load_pyarrow("writing Parquet")
    if batch_size is not None and batch_size < 1:
        raise ConfigError(f"--batch-size must be at least 1; got {batch_size}.")
    check_run_folder(out)
    if data is None and (given := [*(["--split"] if split else ()), *_data_options(config)]):
        raise ConfigError(f"{', '.join(given)} {'goes' if len(given) == 1 else 'go'} with --data.")
    place = pick_device(device)
    source, names = tell_apart(pictures, model, embed)
    if data is not None and (names or list_file):
        raise ConfigError(f"give pictures or --data, not both; got --data {data} and {list_file or names[0]}.")
    if data is None:
        stream = gather(names, list_file)
        table = _embed_pictures(load(source, device=place), stream, batch_size)
    else:
        check_where(data)
        table = _embed_data(load(source, device=place), data, config, split, batch_size)
    if not table.vectors:
        raise InputError(f"no picture could be read; the first: {next(iter(table.broken.values()), 'none given')}")
    folder = new_run_folder("embed", out)
    paths, note = [_write(table, folder, form)], ""
    if draw != "none":
        try:
            with working("drawing the map"):
                paths.append(_draw(table, folder, draw))
        except InputError as error:  # the features are what was asked for first
            note = f"no map: {error}"
    _print(table, note)
    print_end(paths, shlex.join(["vitrail", "eval", source, data or "DATA", "--probe", "knn", "linear"]))
    return BROKEN if table.broken else 0


def _data_options(config: DataConfig) -> list[str]:
    """The options about data that were given."""
    changed = (item.name for item in fields(config) if getattr(config, item.name) != getattr(_PLAIN, item.name))
    return [f"--{name.replace('_', '-')}" for name in changed]


def _embed_pictures(predictor: "Predictor", stream: Any, batch_size: int | None) -> _Table:
    table = _Table()
    with progress_bar("pictures") as advance:
        for name, value in predictor.features(stream, batch_size):
            if isinstance(value, str):
                table.broken[name] = value
            else:
                table.pictures.append(name)
                table.vectors.append(value.numpy())
            advance(1)
    return table


def _embed_data(
    predictor: "Predictor", where: str, config: DataConfig, splits: Sequence[str], batch_size: int | None
) -> _Table:
    from vitrail.data.opening import open_data

    with working(f"opening {where}"):
        dataset = open_data(where, config)
    chosen = splits or tuple(dataset.splits)
    table = _Table()
    with progress_bar("pictures", sum(len(dataset.split(name)) for name in chosen)) as advance:
        for name in chosen:
            source = dataset.split(name)
            pictures = ((source.key(index), source.picture(index)) for index in range(len(source)))
            for index, (key, value) in enumerate(predictor.features(pictures, batch_size)):
                if isinstance(value, str):
                    table.broken[key] = value
                else:
                    table.pictures.append(key)
                    table.vectors.append(value.numpy())
                    table.labels.append(dataset.classes[source.labels[index]])
                    table.splits.append(name)
                advance(1)
    return table


def _write(table: _Table, folder: Path, form: str) -> Path:
    import numpy as np

    from vitrail.files import atomic_path

    path = folder / f"features.{form}"
    vectors = np.stack(table.vectors)
    columns = {"picture": table.pictures, "label": table.labels, "split": table.splits}
    columns: dict[str, Any] = {name: values for name, values in columns.items() if values}
    with atomic_path(path) as draft:
        if form == "npz":
            with draft.open("wb") as file:
                np.savez(file, features=vectors, **columns)
        else:
            pa, pq = load_pyarrow("writing Parquet")
            lists = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), vectors.shape[1])
            pq.write_table(pa.table({**columns, "features": lists}), draft)
    return path


def _draw(table: _Table, folder: Path, method: Literal["pca", "tsne"]) -> Path:
    import numpy as np

    from vitrail.draws import permutation
    from vitrail.evaluation.plots import map_figure, save_figure
    from vitrail.evaluation.projection import project

    chosen = np.sort(permutation(0, 0, len(table.vectors), "map")[:MOST_POINTS])
    points = project(np.stack([table.vectors[place] for place in chosen]), method)
    labels = [table.labels[place] for place in chosen] if table.labels else None
    count = counted(len(table.vectors), "picture")
    shown = count if len(chosen) == len(table.vectors) else f"{len(chosen):,} of {count}"
    title = f"{'t-SNE' if method == 'tsne' else 'PCA'} of {shown}"
    path = folder / f"map_{method}.png"
    save_figure(map_figure(points, labels, title), path)
    return path


def _print(table: _Table, note: str) -> None:
    console = SteadyConsole(highlight=False, markup=False, soft_wrap=True)
    console.print(f"{counted(len(table.vectors), 'picture')}, {counted(len(table.vectors[0]), 'feature')} each")
    if note:
        console.print(note, style="yellow")
    for name, why in list(table.broken.items())[:10]:
        console.print(plain(f"left out {name}: {why}"), style="yellow")
    if len(table.broken) > 10:
        console.print(f"… and {len(table.broken) - 10} more", style="yellow")
