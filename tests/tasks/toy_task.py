"""A task in one file: grades, classes that have an order, measured by how many grades a prediction is off."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import numpy as np
from matplotlib.figure import Figure
from torch.nn.functional import cross_entropy

from vitrail.blocks import Block, Fact, Numbers, Paragraph, Table
from vitrail.canvas import Theme, new_figure, paint
from vitrail.registry import TaskKind
from vitrail.tasks.task import Answer, Array, Drawing, Goal, Integers, Results, Task, Trust

KIND = TaskKind(name="grade", labels="class", module=__name__)  # for `register_task`


@dataclass(frozen=True, kw_only=True)
class GradeTrust(Trust):
    kind: Literal["grade"] = "grade"
    offset: float  # what is added to a grade

    def facts(self) -> dict[str, Any]:
        return {"data": self.data, "pictures": self.pictures, "offset": self.offset}

    def describe(self) -> list[str]:
        return [f"on {self.pictures} pictures of {self.data}: grades are moved by {self.offset:.2f}"]

    def check_coverage(self, coverage: float) -> None:
        pass


@dataclass(frozen=True, kw_only=True)
class Grade(Task):
    kind: Literal["grade"] = "grade"
    losses = ("cross-entropy",)
    metrics: ClassVar[Mapping[str, bool]] = MappingProxyType({"mean_distance": False})
    noun = ("grade", "grades")

    def loss(self, outputs: Any, targets: Any, goal: Goal) -> Any:
        return cross_entropy(outputs.float(), targets)

    def chance(self, targets: Array) -> float:
        return float(np.log(targets.max() + 1))

    def score(self, outputs: Any, targets: Any) -> Any:
        distances = self.grades(outputs.double().cpu().numpy(), None) - targets.cpu().numpy()
        return len(targets), float(np.abs(distances).sum()), float(cross_entropy(outputs, targets, reduction="sum"))

    def summarize(self, parts: Sequence[Any]) -> dict[str, float]:
        count, distance, loss = np.sum(parts, axis=0)
        return {"loss": loss / count, "mean_distance": distance / count}

    def probabilities(self, outputs: Any, trust: Trust | None) -> Array:
        shares = np.exp(outputs - np.max(outputs, axis=-1, keepdims=True)).astype(np.float64)
        return shares / shares.sum(axis=-1, keepdims=True)

    def graph(self, outputs: Any, trust: Trust | None) -> Any:
        return outputs.softmax(dim=-1)

    def restore(self, meanings: Any, trust: Trust | None) -> Array:
        return np.log(np.asarray(meanings, dtype=np.float64))

    def answer(
        self, outputs: Array, names: Sequence[str], trust: Trust | None, *, top_k: int, coverage: float | None
    ) -> Answer:
        grade = float(self.grades(outputs[None], trust)[0])
        nearest = min(max(round(grade), 0), len(names) - 1)
        share = float(self.probabilities(outputs, trust)[nearest])
        return Answer(labels=(names[nearest],), scores=(share,), indices=(nearest,), values=(grade,))

    def grades(self, outputs: Array, trust: Trust | None) -> Array:  # (N, C) → (N,)
        """The mean of the grades, weighted by their probabilities."""
        offset = trust.offset if isinstance(trust, GradeTrust) else 0.0
        return self.probabilities(outputs, trust) @ np.arange(outputs.shape[1]) + offset

    def measure(
        self, outputs: Array, targets: Array, names: Sequence[str], trust: Trust | None, coverage: float
    ) -> "GradeResults":
        return GradeResults(self.grades(outputs, trust), targets, names)

    def calibrate(self, outputs: Array, targets: Array, names: Sequence[str], data: str) -> GradeTrust:
        offset = float((targets - self.grades(outputs, None)).mean())
        return GradeTrust(data=data, pictures=len(targets), offset=offset)


class GradeResults(Results):
    """Nothing but what every task must say."""

    def __init__(self, grades: Array, targets: Array, names: Sequence[str]) -> None:
        self.grades, self.targets, self.names = grades, targets, names
        self.distances = np.abs(grades - targets)

    def verdict(self, model: str, pictures: str) -> str:
        return f"{model} is off by {self.distances.mean():.2f} grades for {pictures}."

    def headline(self) -> list[Fact]:
        return [Fact("mean distance", f"{self.distances.mean():.2f}", "in grades")]

    def rows(self) -> list[tuple[str, str]]:
        return [("mean distance", f"{self.distances.mean():.2f}")]

    def table(self) -> Table:
        rows = [(name, f"{int((self.targets == place).sum()):,}") for place, name in enumerate(self.names)]
        return Table(("grade", "pictures"), rows)

    def facts(self) -> dict[str, Any]:
        return {"mean_distance": float(self.distances.mean())}

    def columns(self) -> tuple[str, ...]:
        return ("true", "grade")

    def predictions(self) -> Iterator[Sequence[Any]]:
        return zip([self.names[place] for place in self.targets], self.grades.tolist(), strict=True)

    def tables(self) -> dict[str, tuple[Sequence[str], Iterable[Sequence[Any]]]]:
        counts = ((name, int((self.targets == place).sum())) for place, name in enumerate(self.names))
        return {"grades.csv": (("grade", "pictures"), counts)}

    def drawings(self, title: str) -> dict[str, Drawing]:
        def draw(theme: Theme) -> Figure:
            figure, axes = new_figure(4, 3)
            axes.hist(self.distances)
            axes.set_title(title or "distances")
            return paint(figure, theme)

        return {"distances.png": Drawing(draw, "Distances", "How far grades are off.")}

    def blocks(self) -> list[Block]:
        return [Paragraph("Grades have an order."), Numbers([Fact("largest distance", f"{self.distances.max():.2f}")])]

    def trust_blocks(self) -> list[Block]:
        return [Numbers([Fact("grades", "moved")])]

    def worst(self, count: int) -> Integers:
        return np.argsort(-self.distances, kind="stable")[:count]

    def best(self, count: int) -> Integers:
        return np.argsort(self.distances, kind="stable")[:count]

    def caption(self, index: int) -> str:
        return f"grade {self.grades[index]:.2f}, true {self.names[self.targets[index]]}"

    def explained(self, index: int) -> int:
        return int(self.targets[index])


TASK, TRUST = Grade, GradeTrust
