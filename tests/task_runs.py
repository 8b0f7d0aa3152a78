"""A task's table of generated pictures and what a tiny run on it must answer, however it is asked."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from serving.conftest import InProcess
from vitrail.prediction import Prediction
from vitrail.serving.batching import Answer
from vitrail.serving.engine import Engine
from vitrail.serving.frames import Frame

LABELS, VALUES = ("sand", "sea", "sky"), ("width", "weight")
SPLITS = ("train",) * 32 + ("val",) * 60 + ("test",) * 28
QUICK = {"model": "compact-8", "epochs": 2, "batch_size": 16, "lr": 0.003, "seed": 1}
KINDS = ("several", "number")
BEST = Path("weights", "best.safetensors")


class Kind(NamedTuple):
    """One task: its pictures with their truth, and a run on them."""

    name: str
    root: Path
    truth: np.ndarray  # (pictures, labels or values)

    @property
    def run(self) -> Path:
        return self.root / "run"

    @property
    def data(self) -> str:
        return str(self.root / f"{self.name}.csv")

    @property
    def tests(self) -> list[Path]:
        return [self.root / self.name / f"{number:03}.png" for number in range(len(SPLITS)) if SPLITS[number] == "test"]

    @property
    def names(self) -> tuple[str, ...]:
        return VALUES if self.name == "number" else LABELS

    @property
    def uploads(self) -> list[tuple[str, tuple[str, bytes]]]:
        return [("picture", (path.name, path.read_bytes())) for path in self.tests]

    @property
    def metric(self) -> str:
        return {"several": "mAP", "number": "MAE"}[self.name]

    @property
    def reading(self) -> dict[str, Any]:
        """How Python is told which columns are labels, where that is not obvious."""
        return {"columns": {"label": ",".join(VALUES)}} if self.name == "number" else {}

    @property
    def columns(self) -> list[str]:
        """The same for the command."""
        return ["--columns.label", ",".join(VALUES)] if self.name == "number" else []

    @property
    def flags(self) -> list[str]:
        return [f"--{name.replace('_', '-')}={value}" for name, value in QUICK.items()] + self.columns

    def labels(self, split: str) -> np.ndarray:
        return self.truth[[each == split for each in SPLITS]]


def draw_pictures(name: str, root: Path) -> np.ndarray:
    """Noise that is brighter in the colour of each label, or in a part of a width; what is true of each picture."""
    rng = np.random.default_rng(0)
    marks, sizes = rng.integers(0, 2, (len(SPLITS), 3)), rng.uniform(2, 7, (len(SPLITS), 2)).round(3) * (1, 100)
    (root / name).mkdir()
    rows: list[Sequence[Any]] = [("picture", *(VALUES if name == "number" else ["label"]), "split")]
    for number, split in enumerate(SPLITS):
        pixels = rng.normal(70, 40, (8, 8, 3))
        if name == "number":
            pixels[:, : round(sizes[number, 0])] += sizes[number, 1] / 6
        else:
            pixels[:, :5] += 60 * marks[number]
        picture = f"{name}/{number:03}.png"
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(root / picture)
        cells = sizes[number].tolist() if name == "number" else [";".join(names_of(marks[number]))]
        rows.append((picture, *cells, split))
    with (root / f"{name}.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return sizes if name == "number" else marks


def names_of(marks: np.ndarray) -> list[str]:
    return [label for label, mark in zip(LABELS, marks, strict=True) if mark]


def check_same(ours: Prediction, theirs: Prediction) -> None:
    assert (theirs.labels, theirs.label_set, theirs.indices) == (ours.labels, ours.label_set, ours.indices)
    np.testing.assert_allclose(theirs.scores, ours.scores, atol=1e-4)
    np.testing.assert_allclose(theirs.values, ours.values, rtol=1e-4)
    np.testing.assert_allclose(theirs.intervals or (), ours.intervals or (), rtol=1e-4, atol=1e-3)


def serve_inside(model: Path) -> InProcess:
    """The service with its engine in this process."""
    engine = Engine(str(model), "torch", "float32", 10**6)

    def answer(facts: dict[str, Any], blob: bytes) -> Answer:
        frame = engine.run(Frame({"id": 0, "kind": "logits", "items": [facts]}, [blob]))
        return Answer(frame.facts["items"][0], frame.blobs)

    app = InProcess(answer)
    for host in app.service.hosts.values():
        host.facts = engine.describe()
    return app


def answer_of(row: dict[str, Any]) -> Prediction:
    """What a service says about one picture."""
    labels, pairs, label_set = row["labels"] or (), row["intervals"], row["label_set"]
    return Prediction(
        picture=row["picture"],
        labels=tuple(each["label"] for each in labels),
        scores=tuple(each["score"] for each in labels),
        indices=tuple(each["index"] for each in labels),
        label_set=None if label_set is None else tuple(label_set),
        values=tuple(row["values"] or ()),
        intervals=None if pairs is None else tuple((low, high) for low, high in pairs),
    )
