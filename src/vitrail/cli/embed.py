"""`vitrail embed`: embeddings of pictures or of a data set, and a map of them."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from vitrail.cli.commands import Device, Merge, Precision, Runtime, read_merge
from vitrail.cli.predict import ListFile, Model, Pictures, tell_apart
from vitrail.cli.printing import SteadyConsole, plain, print_end
from vitrail.data.config import DataConfig
from vitrail.errors import ConfigError
from vitrail.files import check_run_folder, new_run_folder
from vitrail.wording import counted

if TYPE_CHECKING:
    from vitrail.verbs.embed import Embeddings

BROKEN = 1
_PLAIN = DataConfig()


def embed(
    *pictures: Pictures,
    model: Model = None,
    data: str | None = None,
    split: Annotated[tuple[str, ...], Parameter(consume_multiple=True, negative=(), show_default=False)] = (),
    config: Annotated[DataConfig, Parameter(name="*")] = _PLAIN,
    list_file: ListFile = None,
    form: Annotated[Literal["npz", "parquet"], Parameter(name="--format")] = "npz",
    draw: Annotated[Literal["pca", "tsne", "none"], Parameter(name="--map")] = "pca",
    out: Path | None = None,
    batch_size: int | None = None,
    runtime: Runtime = "auto",
    precision: Precision = "float32",
    merge: Merge = None,
    device: Device = "auto",
) -> int:
    """Write the embeddings of pictures or of a data set.

    Parameters
    ----------
    pictures
        [MODEL] PICTURES…, as for `vitrail predict`.
    data
        A data set instead of pictures: see `vitrail data --help`.
    split
        The splits of the data set [default: all].
    form
        The kind of file to write.
    draw
        The 2-D map of the features to draw.
    out
        The folder to write to [default: runs/embed-N].
    batch_size
        Pictures per forward pass [default: whatever suits the model].
    """
    from vitrail.verbs.embed import check_arguments
    from vitrail.verbs.embed import embed as embed_all
    from vitrail.verbs.settings import changed_settings

    check_run_folder(out)
    settings = changed_settings(config)
    check_arguments(data=data, split=split, settings=settings, form=form, method=draw, batch_size=batch_size)
    source, names = tell_apart(pictures, model, embed)
    if data is not None and (names or list_file):
        raise ConfigError(f"pass pictures or --data, not both; got --data {data} and {list_file or names[0]}.")
    embeddings = embed_all(
        source,
        names if data is None else None,
        data=data,
        split=split,
        list_file=list_file,
        format=form,
        map=draw,
        out=lambda: new_run_folder("embed", out),
        batch_size=batch_size,
        runtime=runtime,
        precision=precision,
        merge=read_merge(merge),
        device=device,
        progress=True,
        **settings,
    )
    print_embeddings(embeddings)
    following = ["vitrail", "eval", source, data or "DATA", "--probe", "knn", "linear"]
    print_end(embeddings.written, shlex.join(following))
    return BROKEN if embeddings.errors else 0


def print_embeddings(embeddings: "Embeddings") -> None:
    """The counts, and the pictures that were left out."""
    console = SteadyConsole(highlight=False, markup=False, soft_wrap=True)
    count, width = embeddings.features.shape
    console.print(f"{counted(count, 'picture')}, {counted(width, 'feature')} each")
    if embeddings.map_error:
        console.print(f"no map: {embeddings.map_error}", style="yellow")
    for name, why in list(embeddings.errors.items())[:10]:
        console.print(plain(f"left out {name}: {why}"), style="yellow")
    if len(embeddings.errors) > 10:
        console.print(f"… and {len(embeddings.errors) - 10} more", style="yellow")
