"""`vitrail.search`: the pictures of a collection that are nearest to a picture, by their embeddings."""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, overload

import numpy as np
from rich.console import RenderableType
from rich.text import Text

from vitrail.errors import ConfigError, InputError, VitrailError, suggest
from vitrail.files import atomic_path, open_csv
from vitrail.prediction import Predictor
from vitrail.prediction.collection import Collection, open_collection
from vitrail.prediction.inverted_lists import build_index, kept_index, load_faiss, search_index
from vitrail.prediction.neighbours import Nearest, Neighbour, find_nearest
from vitrail.prediction.results import Floats
from vitrail.progress import Progress, ending, left_out, pick_progress, working
from vitrail.verbs.call import Out, Pictures, check_out, make_out, resolve_model, resolve_pictures
from vitrail.wording import counted, plain, reason

if TYPE_CHECKING:
    import torch
    from PIL import Image

    from vitrail.data.pixels import Picture
    from vitrail.data.sheet import SheetRow

Method = Literal["exact", "approximate", "auto"]
METHODS = ("exact", "approximate", "auto")

LARGE = 1_000_000  # pictures: an exact search of more takes longer than it takes to load a model
SHOWN = 20  # queries in a table
MOST_ON_SHEET, MOST_BESIDE = 60, 10  # queries on a sheet, and neighbours of each
TILE = 112  # pixels of a picture on the sheet


@dataclass(frozen=True, kw_only=True)
class Found:
    """What is nearest to one query."""

    query: str  # its path, or its number among the pictures passed
    neighbours: tuple[Neighbour, ...]  # the nearest first
    picture: "Picture | None" = field(default=None, repr=False, compare=False)  # None: the query was a vector


@dataclass(frozen=True, kw_only=True)
class SearchResults(Sequence[Found]):
    """What was found for each query."""

    where: str  # the index
    method: Literal["exact", "approximate"]
    queries: tuple[Found, ...]
    searched: int  # pictures of the index
    broken: int  # pictures of the index that have no embedding
    errors: Mapping[str, str] = field(default_factory=dict[str, str])  # query → why it could not be read
    note: str = ""
    written: tuple[Path, ...] = ()
    following: str = field(default="", repr=False)  # a command to try next
    collection: Collection | None = field(default=None, repr=False, compare=False)  # that was searched

    def __len__(self) -> int:
        return len(self.queries)

    @overload
    def __getitem__(self, index: int) -> Found: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Found, ...]: ...
    def __getitem__(self, index: int | slice) -> Found | tuple[Found, ...]:
        return self.queries[index]

    @property
    def exit_code(self) -> int:
        """1: some of the pictures to search for could not be read."""
        return int(bool(self.errors))

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        queries = [{"query": each.query, "neighbours": [asdict(near) for near in each.neighbours]} for each in self]
        facts = {"index": self.where, "method": self.method, "searched": self.searched, "broken": self.broken}
        return facts | {
            "queries": queries,
            "errors": dict(self.errors),
            "written": [str(path) for path in self.written],
        }

    def lines(self) -> Iterator[RenderableType]:
        """What the command prints."""
        for found in self[:SHOWN]:
            yield Text(plain(found.query), "bold")
            longest = max(len(near.label or "") for near in found.neighbours) if found.neighbours else 0
            for near in found.neighbours:
                label = f"{plain(near.label or ''):{longest}}  " if longest else ""
                yield f"  {near.similarity:.4f}  {label}{plain(near.picture)}"
        if len(self) > SHOWN:
            yield f"… and {counted(len(self) - SHOWN, 'more picture')}"
        yield f"\n{self._summary()}"
        if self.note:
            yield f"note: {self.note}"
        yield from left_out(self.errors)
        yield from ending(self.written, self.following)

    def _summary(self) -> str:
        how = "every one compared" if self.method == "exact" else "approximately"
        broken = f"; {self.broken:,} more without an embedding" if self.broken else ""
        return f"{counted(self.searched, 'picture')} in {self.where}, {how}{broken}"

    @property
    def sheet(self) -> "Image.Image":
        """Each query beside its neighbours, or the first ones if there are many."""
        from vitrail.data.sheet import draw_sheet

        shown = f"; the first {MOST_ON_SHEET} of {len(self):,} queries" if len(self) > MOST_ON_SHEET else ""
        near = [each.row for found in self[:MOST_ON_SHEET] for each in found.neighbours[:MOST_BESIDE]]
        known = {} if self.collection is None else self.collection.pictures(near)
        rows = [_sheet_row(found, known) for found in self[:MOST_ON_SHEET]]
        return draw_sheet(f"the nearest of {self._summary()}{shown}", rows, tile=TILE)

    def save(self, folder: str | Path) -> tuple[Path, ...]:
        """Write search.jpg, search.json and search.csv; the paths written."""
        folder = Path(folder)
        sheet, facts, rows = (folder / f"search.{suffix}" for suffix in ("jpg", "json", "csv"))
        try:
            with atomic_path(sheet) as draft:
                self.sheet.save(draft, "JPEG", quality=90)
            with atomic_path(facts) as draft:
                content = {name: value for name, value in self.to_dict().items() if name != "written"}
                draft.write_text(json.dumps(content, indent=1), encoding="utf-8")
            with (
                atomic_path(rows) as draft,
                open_csv(draft, ("query", "rank", "picture", "similarity", "row", "label")) as write,
            ):
                for found in self:
                    for rank, near in enumerate(found.neighbours, 1):
                        write((found.query, rank, near.picture, round(near.similarity, 6), near.row, near.label))
        except OSError as error:
            raise ConfigError(f"{folder}: the results cannot be written there ({reason(error)}).") from error
        return sheet, facts, rows

    def _repr_png_(self) -> bytes:
        from vitrail.explanation.heatmap import png_bytes

        return png_bytes(self.sheet)


def _sheet_row(found: Found, known: "Mapping[int, Picture]") -> "SheetRow":
    """A query and its neighbours; what cannot be opened is an empty frame with its name."""
    from vitrail.data.sheet import SheetRow, Tile, draw_picture
    from vitrail.explanation.heatmap import shrink

    def tile(picture: "Picture | None", caption: str) -> Tile:
        image = None if picture is None else draw_picture(picture)
        return Tile(image if image is None else shrink(image, TILE), caption)

    near = [
        tile(known.get(each.row, each.picture), _caption(f"{each.similarity:.3f}", each))
        for each in found.neighbours[:MOST_BESIDE]
    ]
    return SheetRow(title=Path(found.query).name, tiles=[tile(found.picture, "query"), *near])


def _caption(similarity: str, near: Neighbour) -> str:
    return "\n".join([f"{similarity}  {near.label}" if near.label is not None else similarity, Path(near.picture).name])


def search(
    index: str | Path,
    pictures: "Pictures | Floats",
    *,
    model: Predictor | str | Path | None = None,
    top_k: int = 10,
    method: Method = "auto",
    device: "str | torch.device" = "auto",
    out: Out = None,
    progress: bool | Progress = False,
) -> SearchResults:
    """The pictures of an index that are nearest to each of some pictures, by the cosine similarity of embeddings.

    An index is what `vitrail embed` writes. A picture that cannot be read is listed in `errors`.

    Args:
        index: Where to search: the folder of a job or of `vitrail embed`, or a .parquet, .npz or .npy file of
            embeddings; a path, or an address such as s3://bucket/out.
        pictures: INDEX PICTURES…: what to search for; a file, a folder or a pattern, as for `vitrail predict`. In
            Python, also bytes, PIL pictures, arrays and tensors; or embeddings: a float array (N, D) or (D,).
        model: The checkpoint that the index was made with [default: the one that the job names]. In Python, also a
            loaded model.
        top_k: How many neighbours to give for each picture.
        method: exact compares every picture; approximate builds an index for faiss once, which is kept, and reads
            an eighth of it; auto: exact for up to a million pictures, which takes a few seconds, unless there is such
            an index already.
        device: Where to compute: auto, cpu, cuda, cuda:1, mps, …
        out: The folder to write to [default: runs/search-N]. In Python, nothing is written by default.
    """
    if top_k < 1:
        raise ConfigError(f"must be at least 1; got {top_k}.", field="top_k")
    if method not in METHODS:
        raise ConfigError(f"has no {method!r}; {suggest(str(method), METHODS)}", field="method")
    if method == "approximate":
        load_faiss()
    check_out(out)
    show = pick_progress(progress)
    vectors = _as_vectors(pictures)
    asked = None if vectors is not None else resolve_pictures(cast("Pictures", pictures))
    collection = open_collection(index)
    if asked is None:
        assert vectors is not None
        queries = _Queries(vectors=vectors, pictures={f"vector {number}": None for number in range(len(vectors))})
    else:
        gathered = asked.gather()
        queries = _embed(_open_model(model, collection, device, gathered, speaks=progress is not False), gathered, show)
    count, width = collection.table.shape
    if queries.vectors.shape[1] != width:
        raise InputError(
            f"embeddings must have {width:,} features, as those of {collection.name}; got "
            f"{queries.vectors.shape[1]:,}. Use the model that the index was made with: `model=`."
        )
    chosen, note = _choose_method(collection, method)
    if chosen == "approximate":
        nearest = search_index(kept_index(collection) or build_index(collection, show), queries.vectors, top_k)
    else:
        with show("comparing", count) as advance:
            nearest = find_nearest(collection.blocks(advance), queries.vectors, top_k)
    results = SearchResults(
        where=collection.name,
        method=chosen,
        queries=tuple(_describe(queries, nearest, collection)),
        searched=nearest.searched,
        broken=count - nearest.searched,
        errors=queries.errors,
        note=note,
        following=shlex.join(["vitrail", "explain", queries.model, next(iter(queries.pictures))]),
        collection=collection,
    )
    folder = make_out(out, "search")
    return results if folder is None else replace(results, written=results.save(folder))


@dataclass(frozen=True, kw_only=True)
class _Queries:
    """What to search for."""

    vectors: Floats  # (Q, D)
    pictures: "Mapping[str, Picture | None]"  # (Q,) by their names; None for vectors that were passed
    errors: dict[str, str] = field(default_factory=dict[str, str])  # those that could not be read
    model: str = ""


def _as_vectors(pictures: "Pictures | Floats") -> Floats | None:
    """Embeddings (N, D), if the argument is not pictures; a grey picture of floats is passed in a list."""
    if not isinstance(pictures, np.ndarray) or pictures.ndim not in (1, 2) or pictures.dtype.kind != "f":
        return None
    vectors = np.atleast_2d(pictures).astype(np.float32)
    if not len(vectors) or not np.isfinite(vectors).all():
        raise InputError("embeddings must be finite numbers (N, D); got none, or some that are not finite.")
    return vectors


def _open_model(
    model: Predictor | str | Path | None,
    collection: Collection,
    device: "str | torch.device",
    pictures: "dict[str, Picture]",
    *,
    speaks: bool,
) -> Predictor:
    """The model of the call; or that of the job, just as the job had it."""
    if model is not None:
        source = resolve_model(model, device=device)
        return source.put(source.open(speaks=speaks), len(pictures), pictures.values(), speaks=speaks)
    if collection.job is None:
        raise ConfigError(f"must be passed: {collection.name} does not tell which model made it.", field="model")
    from vitrail.prediction.executors import open_model

    with working(f"loading {collection.job.spec.model['source']}", speaks=speaks):
        return open_model(collection.job, str(device))


def _embed(predictor: Predictor, pictures: "dict[str, Picture]", show: Progress) -> _Queries:
    vectors: dict[str, Floats] = {}
    errors: dict[str, str] = {}
    with show("pictures", len(pictures)) as advance:
        for name, value in predictor.features(pictures.items()):
            if isinstance(value, str):
                errors[name] = value
            else:
                vectors[name] = value
            advance(1)
    if not vectors:
        raise InputError(f"no picture could be read; the first: {next(iter(errors.values()), 'none given')}")
    read = {name: pictures[name] for name in vectors}
    return _Queries(vectors=np.stack(list(vectors.values())), pictures=read, errors=errors, model=predictor.source)


def _choose_method(collection: Collection, method: Method) -> tuple[Literal["exact", "approximate"], str]:
    """What "auto" takes, and a note about it."""
    if method != "auto":
        return method, ""
    is_large = collection.table.shape[0] > LARGE
    try:
        load_faiss()
    except VitrailError as error:
        return "exact", str(error) if is_large else ""
    return ("approximate" if is_large or kept_index(collection) else "exact"), ""


def _describe(queries: _Queries, nearest: Nearest, collection: Collection) -> Iterator[Found]:
    rows = np.unique(np.concatenate(nearest.rows))
    described = dict(zip(rows.tolist(), collection.describe(rows), strict=True))
    for (name, picture), own, similarities in zip(
        queries.pictures.items(), nearest.rows, nearest.similarities, strict=True
    ):
        neighbours = tuple(
            Neighbour(picture=described[row][0], similarity=similarity, row=row, label=described[row][1])
            for row, similarity in zip(own.tolist(), similarities.tolist(), strict=True)
        )
        yield Found(query=name, neighbours=neighbours, picture=picture)
