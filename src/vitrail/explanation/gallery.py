"""Explained pictures: what `vitrail.explain` returns, prints and writes."""

import io
import math
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, overload

import numpy as np
from PIL import Image
from rich.console import RenderableType
from rich.text import Text
from torch import Tensor

from vitrail.data.pixels import Picture
from vitrail.data.sheet import Tile
from vitrail.errors import ConfigError
from vitrail.explanation.faithfulness import Faithfulness, MethodChoice
from vitrail.explanation.heatmap import (
    draw_pair,
    explanation_sheet,
    heads_sheet,
    layers_sheet,
    overlay,
    png_bytes,
    shrink,
)
from vitrail.explanation.raw_attention import AttentionMaps, attention_maps
from vitrail.explanation.saliency import Explanation, Method, Subject, open_subject
from vitrail.files import atomic_path
from vitrail.prediction import Predictor
from vitrail.prediction.listing import STDIN
from vitrail.progress import Progress, left_out, pick_progress, table
from vitrail.wording import counted, plain, reason

SCORES = ("deletion ↓", "insertion ↑", "score")
MOST_ON_SHEET = 60
LONGEST_STEM = 200  # bytes; on most disks a name with its ending has at most 255
SHOWN = 640  # pixels of the longer side in a notebook


@dataclass(frozen=True, kw_only=True)
class Explained:
    """One picture with its explanation. The picture is opened again when it is drawn, so that many take no memory."""

    source: str  # its path, or its number among the pictures passed
    stem: str  # the name of its files
    explanation: Explanation
    faithfulness: Faithfulness | None = None  # deletion and insertion, if they were measured
    choice: MethodChoice | None = None  # how method "auto" chose
    layers: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None
    picture: Picture = field(repr=False)
    predictor: Predictor = field(repr=False)

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
        return self.draw()[2]

    def open(self) -> Subject:
        """The picture itself, ready to be drawn on."""
        return open_subject(self.picture, self.predictor.preprocess, self.name)

    def draw(self) -> tuple[Subject, Explanation, Image.Image]:
        """The picture itself, its explanation, and the overlay."""
        subject = self.open()
        return subject, self.explanation, overlay(subject, self.map)

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
        return png_bytes(shrink(self.overlay, SHOWN))


@dataclass(frozen=True, kw_only=True)
class Explanations(Sequence[Explained]):
    """Several pictures explained by one method."""

    model: str  # the name of the model
    method: Method
    choice: MethodChoice | None = None  # how method "auto" chose
    pictures: tuple[Explained, ...]
    failures: dict[str, str] = field(default_factory=dict[str, str])  # picture → why it could not be explained
    source: str = field(default="", repr=False)  # where the model is from
    targeted: bool = field(default=False, repr=False)  # a class was asked for, rather than the predicted one
    written: tuple[Path, ...] = field(default=(), repr=False)

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
        return self._sheet([draw_pair(*explained.draw()) for explained in self.pictures[:MOST_ON_SHEET]])

    def save(self, folder: str | Path, *, progress: bool | Progress = False) -> tuple[Path, ...]:
        """Write a sheet of all pictures, and for each its overlay, heads, layers and raw maps; the paths written."""
        folder = Path(folder)
        written: list[Path] = []
        pairs: list[tuple[Tile, Tile]] = []
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with pick_progress(progress)("drawing", len(self.pictures)) as advance:
                for explained in self.pictures:
                    drawn = explained.draw()
                    written += _write(explained, drawn[0], drawn[2], folder)
                    if len(pairs) < MOST_ON_SHEET:
                        pairs.append(draw_pair(*drawn))
                    advance(1)
            with atomic_path(folder / "sheet.png") as draft:
                self._sheet(pairs).save(draft)
        except OSError as error:
            raise ConfigError(f"{folder}: the explanations cannot be written there ({reason(error)}).") from error
        return folder / "sheet.png", *written

    def _sheet(self, pairs: Sequence[tuple[Tile, Tile]]) -> Image.Image:
        note = self.choice.reason if self.choice else f"method {self.method}"
        if len(pairs) < len(self.pictures):
            note = f"the first {len(pairs)} of {counted(len(self.pictures), 'picture')}; {note}"
        return explanation_sheet(f"{self.model}: why?", note, pairs)

    def _repr_png_(self) -> bytes:
        return png_bytes(self.sheet)

    @property
    def exit_code(self) -> int:
        """1: some pictures could not be explained."""
        return int(bool(self.failures))

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        choice = self.choice
        return {
            "method": self.method,
            "reason": choice.reason if choice else "as requested",
            "methods": {} if choice is None else {name: _scores(score) for name, score in choice.scores.items()},
            "method_failures": {} if choice is None else choice.failures,
            "pictures": [
                {
                    "name": explained.name,
                    "predicted": explained.explanation.predicted,
                    "confidence": _number(explained.explanation.confidence),
                    "target": explained.explanation.label,
                    "probability": _number(explained.explanation.probability),
                    "faithfulness": None if explained.faithfulness is None else _scores(explained.faithfulness),
                }
                for explained in self
            ],
            "failures": self.failures,
            "written": [str(path) for path in self.written],
        }

    def lines(self) -> Iterator[RenderableType]:
        """What the command prints."""
        scored = any(explained.faithfulness for explained in self)
        names = ["picture", "predicted", "", *(["explained", ""] if self.targeted else [])]
        yield table(map(self._cells, self), *names, *(SCORES[:2] if scored else ()), left=len(names), edge=False)
        if self.choice is None:
            yield f"\nmethod {self.method}"
        else:
            yield from _choice_lines(self.choice)
        for path, why in self.failures.items():
            yield Text("not explained ", style="yellow") + Text(plain(why if path in why else f"{path}: {why}"))
        if not self.written:
            return
        inside = any(path.stem.endswith("heads") for path in self.written)  # which an export does not show
        files = f"overlays, {'heads, layers, ' if inside else ''}raw maps (npz)"
        yield f"\nwrote {plain(str(self.written[0]))} and {counted(len(self.written) - 1, 'file')} beside it: {files}"
        yield f"next: {shlex.join(['vitrail', 'figures' if inside else 'predict', self.source, self[0].source])}"

    def _cells(self, explained: Explained) -> list[str]:
        explanation, score = explained.explanation, explained.faithfulness
        cells = [explained.name, explanation.predicted, _shown(explanation, explanation.confidence)]
        cells += [explanation.label, _shown(explanation, explanation.probability)] if self.targeted else []
        return cells + ([] if score is None else [f"{score.deletion:.3f}", f"{score.insertion:.3f}"])


def _choice_lines(choice: MethodChoice) -> Iterator[RenderableType]:
    """How the methods did, and which was chosen."""
    if choice.scores:
        rows = sorted(choice.scores.items(), key=lambda item: -item[1].score)
        styles = {choice.method: "bold", "random": "dim"}
        numbers = [(name, *(f"{value:.3f}" for value in _scores(score).values())) for name, score in rows]
        yield ""
        yield table(
            ([Text(cell, styles.get(row[0], "")) for cell in row] for row in numbers), "method", *SCORES, edge=False
        )
    yield from left_out(choice.failures)
    yield f"\nauto chose {choice.reason}"


def _number(value: float) -> float | None:
    """JSON has no NaN."""
    return None if math.isnan(value) else value


def _scores(score: Faithfulness) -> dict[str, float]:
    return {"deletion": score.deletion, "insertion": score.insertion, "score": score.score}


def _shown(explanation: Explanation, number: float) -> str:
    return "" if math.isnan(number) else explanation.task.show(number)


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


def _write(explained: Explained, subject: Subject, full: Image.Image, folder: Path) -> Iterator[Path]:
    """The files of one picture; an export gives no attention to draw."""
    pictures, attention = {"overlay": full}, None
    if explained.predictor.in_torch:
        attention = attention_maps(explained.predictor.model, subject.image[None]).cpu()
        shown = attention.select(explained.layers, explained.heads)
        num_heads = max(shown.heads)
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
