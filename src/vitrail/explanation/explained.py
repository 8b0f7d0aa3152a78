"""Explained pictures: what users work with, and the files that are written."""

import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import overload

import numpy as np
from PIL import Image
from torch import Tensor

from vitrail.data.pixels import Picture
from vitrail.errors import ConfigError
from vitrail.explanation.attention import AttentionMaps, attention_maps
from vitrail.explanation.choice import Choice
from vitrail.explanation.explanation import Explanation, Loaded, Method, Subject, open_subject
from vitrail.explanation.faithfulness import Faithfulness
from vitrail.explanation.render import (
    MOST_ON_SHEET,
    Drawn,
    draw,
    explanation_sheet,
    heads_sheet,
    layers_sheet,
    overlay,
    shrink,
)
from vitrail.files import atomic_path
from vitrail.prediction.pictures import STDIN
from vitrail.progress import Progress, pick_progress
from vitrail.wording import counted, reason

LONGEST_STEM = 200  # bytes; on most disks a name with its ending has at most 255
SHOWN = 640  # pixels of the longer side in a notebook


@dataclass(frozen=True, kw_only=True)
class Explained:
    """One picture with its explanation. The picture is opened again when it is drawn, so that many take no memory."""

    source: str  # its path, or its number among the pictures passed
    stem: str  # the name of its files
    explanation: Explanation
    faithfulness: Faithfulness | None = None  # deletion and insertion, if they were measured
    choice: Choice | None = None  # how method "auto" chose
    layers: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None
    picture: Picture = field(repr=False)
    loaded: Loaded = field(repr=False)

    @property
    def name(self) -> str:
        """The picture's name without its folder."""
        return Path(self.source).name

    @property
    def map(self) -> Tensor:
        """(h, w): one number per patch; higher counted more."""
        return self.explanation.map

    @property
    def method(self) -> Method:
        return self.explanation.method

    @property
    def overlay(self) -> Image.Image:
        """The whole picture with the map over what the model saw of it."""
        return overlay(self.open(), self.map)

    def open(self) -> Subject:
        """The picture itself, ready to be drawn on."""
        return open_subject(self.picture, self.loaded.preprocess, self.name)

    def save(self, path: str | Path) -> Path:
        """Write the overlay as a picture of the kind that the name ends with."""
        path = Path(path)
        if path.suffix.lower() not in Image.registered_extensions():
            raise ConfigError(f"an overlay is saved as a picture, such as why.png; got {path}.")
        picture = self.overlay
        try:
            with atomic_path(path) as draft:
                picture.save(draft)
        except OSError as error:
            raise ConfigError(f"{path}: cannot be written ({reason(error)}).") from error
        return path

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        shrink(self.overlay, SHOWN).save(buffer, "PNG")
        return buffer.getvalue()


@dataclass(frozen=True, kw_only=True)
class Explanations(Sequence[Explained]):
    """Several pictures explained by one method."""

    model: str  # the name of the model
    method: Method
    choice: Choice | None = None  # how method "auto" chose
    pictures: tuple[Explained, ...]
    failures: dict[str, str] = field(default_factory=dict[str, str])  # picture → why it could not be explained

    def __len__(self) -> int:
        return len(self.pictures)

    @overload
    def __getitem__(self, index: int) -> Explained: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Explained, ...]: ...
    def __getitem__(self, index: int | slice) -> Explained | tuple[Explained, ...]:
        return self.pictures[index]

    @property
    def sheet(self) -> Image.Image:
        """All pictures beside their overlays, or the first ones if there are many."""
        return self._sheet([_draw(explained) for explained in self.pictures[:MOST_ON_SHEET]])

    def save(self, folder: str | Path, *, progress: bool | Progress = False) -> tuple[Path, ...]:
        """Write a sheet of all pictures, and for each its overlay, heads, layers and raw maps; the paths written."""
        folder = Path(folder)
        written: list[Path] = []
        drawn: list[Drawn] = []
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with pick_progress(progress)("drawing", len(self.pictures)) as advance:
                for explained in self.pictures:
                    subject = explained.open()
                    full = overlay(subject, explained.map)
                    written += _write(explained, subject, full, folder)
                    if len(drawn) < MOST_ON_SHEET:
                        drawn.append(draw(subject, explained.explanation, full))
                    advance(1)
            with atomic_path(folder / "sheet.png") as draft:
                self._sheet(drawn).save(draft)
        except OSError as error:
            raise ConfigError(f"{folder}: the explanations cannot be written there ({reason(error)}).") from error
        return folder / "sheet.png", *written

    def _sheet(self, drawn: Sequence[Drawn]) -> Image.Image:
        note = self.choice.reason if self.choice else f"method {self.method}"
        if len(drawn) < len(self.pictures):
            note = f"the first {len(drawn)} of {counted(len(self.pictures), 'picture')}; {note}"
        return explanation_sheet(f"{self.model}: why?", note, drawn)

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.sheet.save(buffer, "PNG")
        return buffer.getvalue()


def unique_stems(sources: Iterable[str]) -> list[str]:
    """The names of each picture's files: the picture's own, with a number if two share a name."""
    stems: dict[str, None] = {}
    for source in sources:
        stem = "stdin" if source == STDIN else _cut(Path(source).stem)
        unique, number = stem, 2
        while unique in stems:
            unique, number = f"{stem}-{number}", number + 1
        stems[unique] = None
    return list(stems)


def _cut(stem: str) -> str:
    whole = stem.encode("utf-8", "surrogateescape")
    return stem if len(whole) <= LONGEST_STEM else whole[:LONGEST_STEM].decode("utf-8", "ignore")


def _draw(explained: Explained) -> Drawn:
    subject = explained.open()
    return draw(subject, explained.explanation, overlay(subject, explained.map))


def _write(explained: Explained, subject: Subject, full: Image.Image, folder: Path) -> Iterator[Path]:
    """The files of one picture; an export gives no attention to draw."""
    pictures, attention = {"overlay": full}, None
    if explained.loaded.in_torch:
        attention = attention_maps(explained.loaded.model, subject.image[None]).cpu()
        shown = attention.select(explained.layers, explained.heads)
        num_heads = attention.maps.shape[2]
        heads = [head % num_heads for head in explained.heads or range(num_heads)]
        title = f"{subject.name}: attention"
        pictures["heads"] = heads_sheet(f"{title}, head by head", subject, shown, heads)
        pictures["layers"] = layers_sheet(f"{title}, layer by layer", subject, attention)
    for kind, picture in pictures.items():
        path = folder / f"{explained.stem}-{kind}.png"
        with atomic_path(path) as draft:
            picture.save(draft)
        yield path
    yield _write_maps(folder / f"{explained.stem}.npz", explained.explanation, attention)


def _write_maps(path: Path, explanation: Explanation, attention: AttentionMaps | None) -> Path:
    """The raw numbers: `map` (h, w), `attention` (layers, heads, h, w), and where the map is in the picture."""
    view = explanation.view
    arrays = {
        "map": explanation.map.numpy(),
        "method": np.array(explanation.method),
        "target": np.array(-1 if explanation.target is None else explanation.target),
        "label": np.array(explanation.label),
        "picture": np.array(view.picture),
        "view": np.array([view.top, view.left, view.height, view.width]),
    }
    if attention is not None:
        arrays |= {"attention": attention.maps[0].numpy(), "layers": np.array(attention.names)}
    buffer = io.BytesIO()  # of a file that cannot be written, zipfile raises errors of its own
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    with atomic_path(path) as draft:
        draft.write_bytes(buffer.getbuffer())
    return path
