"""What a task must say: how its labels are learned, answered, measured, calibrated and shown.

A task is a value that goes with a model to every file and every runtime, so that this module, and the module of each
task, need no torch to be imported: losses import it when they are computed.

Shapes: N pictures, C outputs of the model (a class, a label or a measured value each). Targets are (N,) indices,
(N, C) zeros and ones, or (N, C) numbers.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np

from vitrail.errors import ConfigError, suggest
from vitrail.registry import TASKS, LabelKind
from vitrail.schema import IF_USED, from_dict
from vitrail.tasks.familiarity import Familiarity
from vitrail.tasks.rates import Rate, Share

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

    from vitrail.blocks import Block, Fact, Table
    from vitrail.canvas import Theme

Array = np.ndarray[Any, Any]
Integers = np.ndarray[Any, np.dtype[np.int64]]
Booleans = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True, kw_only=True)
class Goal:
    """What a training run asks of its loss, beside the task itself."""

    loss: str = ""  # one of the task's losses; empty: its first
    label_smoothing: float = 0.0
    balance: str = "none"  # one of the task's ways to make up for uneven labels
    counts: tuple[int, ...] = ()  # training pictures with each label, in the order of the outputs
    pictures: int = 0  # of training, in all


class Answer(NamedTuple):
    """What the outputs for one picture mean; what a task does not have stays empty.

    Where the label of a picture is a class or a set, rows of predictions show the labels; where it is values, the
    values, one for each output.
    """

    labels: tuple[str, ...] = ()  # best first
    scores: tuple[float, ...] = ()  # their probabilities
    indices: tuple[int, ...] = ()  # of these labels among the model's outputs
    label_set: tuple[str, ...] | None = None  # with a coverage: labels with a guarantee
    values: tuple[float, ...] = ()  # in the order of the outputs
    intervals: tuple[tuple[float, float], ...] | None = None  # with a coverage: around each value, with a guarantee


@dataclass(frozen=True, kw_only=True)
class Trust(ABC):
    """What a calibration on validation pictures found; goes with the model. Each task has its own."""

    kind: str = field(default="one", metadata=IF_USED)  # the task's name
    data: str  # whose pictures, and which split: "digits, val"
    pictures: int  # how many
    familiarity: Familiarity | None = None

    @classmethod
    def __parse__(cls, values: Mapping[str, Any], where: str) -> "Trust":
        """One from a file, by its kind; older files have none, and are of one label."""
        return from_dict(_module_of(values.get("kind", "one"), f"{where}.kind").TRUST, values, where)

    def reordered(self, order: Sequence[int]) -> Self:
        """The same for outputs in another order: the new first is the old `order[0]`."""
        return self

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """The numbers that people and programs ask for, as JSON values."""

    @abstractmethod
    def describe(self) -> list[str]:
        """The same as lines of text."""

    @abstractmethod
    def check_coverage(self, coverage: float) -> None:
        """Refuse a coverage that this calibration cannot promise."""


class Drawing(NamedTuple):
    """A figure to be drawn for a light or a dark page, with its alternative text and a caption."""

    draw: "Callable[[Theme], Figure]"
    alt: str
    caption: str = ""


class Right(NamedTuple):
    """Which pictures are answered correctly, and what their share is called."""

    name: str  # for people: top-1 accuracy
    key: str  # in metrics.json: top1
    pictures: Booleans  # (N,)


class Compared(NamedTuple):
    """The number by which corrupted pictures are compared with clean ones."""

    name: str
    share: Rate | Share


class Results(ABC):
    """What a model's outputs for some labelled pictures are worth: the numbers, and how to show them.

    What is abstract, every task must say; the rest it may say better than is said here.
    """

    galleries: ClassVar[tuple[str, str]] = ("Worst mistakes", "Correct predictions")  # headings of the page

    @abstractmethod
    def verdict(self, model: str, pictures: str) -> str:
        """The result in one sentence; `pictures` is such as "1,000 test pictures of flowers"."""

    @abstractmethod
    def headline(self) -> "list[Fact]":
        """The numbers that a reader wants first, with their intervals."""

    @abstractmethod
    def rows(self) -> list[tuple[str, str]]:
        """What the command prints: a name and a number with its interval each."""

    @abstractmethod
    def table(self) -> "Table":
        """A row for each class, label or value, as texts; for the command and the page."""

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """All numbers as JSON values; undefined ones are None."""

    @abstractmethod
    def columns(self) -> tuple[str, ...]:
        """The columns of predictions.csv between the picture and the error."""

    @abstractmethod
    def predictions(self) -> Iterable[Sequence[Any]]:
        """The cells of these columns for each picture, in order."""

    @abstractmethod
    def tables(self) -> "dict[str, tuple[Sequence[str], Iterable[Sequence[Any]]]]":
        """Other CSV files by their names: the columns, and the rows."""

    @abstractmethod
    def drawings(self, title: str) -> dict[str, Drawing]:
        """Figures by the name of their file, such as confusion_matrix.png; without a title, each has its own."""

    @abstractmethod
    def blocks(self) -> "list[Block]":
        """What the page says of the results beside the headline, the table and the drawings."""

    @abstractmethod
    def trust_blocks(self) -> "list[Block]":
        """What the page says of the calibration; nothing without one."""

    @abstractmethod
    def worst(self, count: int) -> Integers:
        """The pictures with the worst mistakes, the worst first; none that is right."""

    @abstractmethod
    def best(self, count: int) -> Integers:
        """Some pictures that are right, such as one of each class."""

    @abstractmethod
    def caption(self, index: int) -> str:
        """What was predicted for a picture, and what is true."""

    @abstractmethod
    def explained(self, index: int) -> int:
        """The output of the model whose reasons are shown for a picture."""

    # What follows from these, unless a task has better words or numbers ---------------------------------------------

    @property
    def metrics(self) -> Any:
        """The numbers for programs: `evaluation.metrics`."""
        return self.facts()

    def trained_on(self, counts: Sequence[int]) -> Self:
        """The same, given how many training pictures have each label."""
        return self

    def title(self) -> str:
        """The result in a few words, for the titles of figures."""
        first = self.headline()[0]
        return f"{first.name} {first.value}"

    def details(self) -> dict[str, Any]:
        """What else metrics.json holds, after everything else, such as the numbers of each class."""
        return {}

    def summary(self) -> list[tuple[str, str]]:
        """The rows that a notebook shows."""
        return self.rows()

    def short_table(self, most: int) -> "Table":
        """The table as the command prints it, with at most this many rows."""
        table = self.table()
        return table._replace(rows=table.rows[:most])

    def remarks(self) -> list[str]:
        """Sentences that the command prints below the table."""
        return []

    def calibration_facts(self) -> dict[str, float]:
        """The numbers that a calibration is judged by."""
        return {name: value for name, value in self.facts().items() if isinstance(value, float)}

    def calibration_rows(self) -> dict[str, str]:
        """The same as texts."""
        return {name.replace("_", " "): f"{value:.4g}" for name, value in self.calibration_facts().items()}

    def compared(self) -> Compared | None:
        """The first metric, if it is from 0 to 1, by which corrupted pictures are compared; None if it is not."""
        return None

    def right(self) -> Right | None:
        """Which pictures are right; None for a task that has no right and wrong."""
        return None

    def true_label(self, index: int) -> str:
        """What is true of a picture, in a few words."""
        return self.caption(index)

    def sheet_caption(self, index: int) -> str:
        """The caption of a picture on a sheet, which has little room."""
        return self.caption(index)

    def about_sheet(self, shown: int) -> str:
        """What the pictures on the sheet of the worst mistakes are."""
        return f"the {shown} with the largest errors"

    def about_worst(self, shown: int) -> str:
        """What the page says about the worst pictures, or that there are none."""
        return "These have the largest errors." if shown else "No picture is wrong."

    def about_best(self, shown: int) -> str:
        """What the page says about the pictures that are right, or that there are none."""
        return "Some of those that are right." if shown else "No picture is right."


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """What the labels of a model mean: a value that is stored with it."""

    kind: str
    losses: ClassVar[tuple[str, ...]]  # by name, the default first
    balances: ClassVar[tuple[str, ...]] = ("none",)
    metrics: ClassVar[Mapping[str, bool]]  # of validation, by name → whether higher is better; the first is the default
    compares: ClassVar[bool] = False  # whether corrupted pictures can be compared with clean ones: `Results.compared`
    softens: ClassVar[bool] = False  # whether a teacher's answers are probabilities, which a temperature can soften
    # Settings that recipes of classes have and this task should not, unless its user asks for them.
    unsuited: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    noun: ClassVar[tuple[str, str]]  # what an output stands for, in messages: class, classes
    output: ClassVar[str] = "probabilities"  # what `graph` gives, as the graphs of exports name it
    same: ClassVar[str] = "the same class"  # what pictures get of two runtimes that agree
    explained: ClassVar[int | None] = None  # the output whose reasons are shown by default; None: the highest

    @classmethod
    def __parse__(cls, values: Any, where: str) -> "Task":
        """One from a file, by its kind."""
        facts: Mapping[str, Any] = values if isinstance(values, Mapping) else {"kind": values}
        return from_dict(_module_of(facts.get("kind"), f"{where}.kind").TASK, facts, where)

    @property
    def labels(self) -> LabelKind:
        """What the label of a picture is."""
        return TASKS[self.kind].labels

    # Learning -----------------------------------------------------------------------------------------------------

    def fitted(self, targets: Array) -> Self:
        """The task with what the training targets tell, such as their mean and standard deviation."""
        return self

    def check_goal(self, goal: Goal) -> None:  # noqa: B027 - most can do everything
        """Refuse what the loss cannot do, before anything is computed."""

    @abstractmethod
    def loss(self, outputs: "Tensor", targets: "Tensor", goal: Goal) -> "Tensor":
        """The mean loss of (B, C) outputs, which training minimises; targets may be mixed: float (B, C)."""

    def learned_from(self, outputs: "Tensor", teacher: "Task", order: Sequence[int]) -> "Tensor":
        """The outputs of a teacher as this task's own, (B, C): `order` are those that this task has."""
        return outputs[:, list(order)]

    def imitation(self, outputs: "Tensor", answers: "Tensor", temperature: float, *, hard: bool) -> "Tensor":
        """The mean distance of (B, C) outputs from a teacher's `answers`, which training minimises; `hard`: from what
        it chooses. Unless a task has better: squared, without a temperature or a choice (`softens`)."""
        return (outputs - answers).square().mean()

    @abstractmethod
    def chance(self, targets: Array) -> float:
        """The loss of guessing without looking: far above it, training has diverged."""

    @abstractmethod
    def score(self, outputs: "Tensor", targets: "Tensor") -> Any:
        """What validation keeps of some pictures: small, on the CPU, and the same however pictures are batched."""

    @abstractmethod
    def summarize(self, parts: Sequence[Any]) -> dict[str, float]:
        """The metrics of all parts: "loss", the mean loss without smoothing or weights, and each of `metrics`."""

    # Using ---------------------------------------------------------------------------------------------------------

    @abstractmethod
    def probabilities(self, outputs: Any, trust: Trust | None) -> Array:
        """What outputs (…, C) mean, in double precision: probabilities, or the values themselves."""

    @abstractmethod
    def answer(
        self, outputs: Array, names: Sequence[str], trust: Trust | None, *, top_k: int, coverage: float | None
    ) -> Answer:
        """What the outputs (C,) for one picture mean."""

    @abstractmethod
    def graph(self, outputs: "Tensor", trust: Trust | None) -> "Tensor":
        """The same as `probabilities`, in operations of torch that every runtime has."""

    @abstractmethod
    def restore(self, meanings: Any, trust: Trust | None) -> Array:
        """Outputs of which `probabilities` makes these, in double precision."""

    def show(self, meaning: float) -> str:
        """One of the numbers of `probabilities` for people."""
        return f"{meaning:.1%}"

    def thresholds(self, trust: Trust | None, count: int) -> tuple[float, ...] | None:
        """The probabilities from which each of `count` labels applies, where several can."""
        return None

    def same_answers(self, expected: Array, actual: Array, trust: Trust | None) -> Array:
        """Which of N pictures get the same answer of two (N, C) outputs: (N,)."""
        return expected.argmax(axis=1) == actual.argmax(axis=1)

    # Explaining -----------------------------------------------------------------------------------------------------

    def evidence(self, outputs: "Tensor", targets: "Tensor") -> "Tensor":
        """What methods that follow gradients explain of (B, C) outputs, for one target of each: (B,)."""
        return outputs.gather(1, targets[:, None])[:, 0]

    def influence(self, whole: "Tensor", changed: "Tensor", target: int) -> "Tensor":
        """How much of what a picture's outputs (C,) say about the target is lost in (N, C) for changed ones: (N,)."""
        return (whole[target] - changed[:, target]).float()

    def support(self, whole: "Tensor", changed: "Tensor", target: int) -> "Tensor":
        """How far the outputs (N, C) for changed pictures still say what `whole` (C,) does of the target: 0 to 1."""
        return self.graph(changed.float(), None)[:, target]

    # Going along with the head ---------------------------------------------------------------------------------------

    def check(self, count: int, trust: Trust | None) -> None:
        """Refuse a calibration of another task, and facts that are not about this number of outputs."""
        if trust is not None and trust.kind != self.kind:
            raise ConfigError(f"a calibration for the task {trust.kind!r} says nothing about {self.kind!r}.")

    def reordered(self, order: Sequence[int]) -> Self:
        """The same for outputs in another order: the new first is the old `order[0]`."""
        return self

    def unfitted(self) -> Self:
        """The same for a new head, without what was found in the training data of the old one."""
        return self

    # Measuring ------------------------------------------------------------------------------------------------------

    def average(self, outputs: Sequence[Array]) -> Array:
        """The outputs (N, C) for several views of the same pictures as one, for test-time augmentation."""
        return np.mean(outputs, axis=0)

    @abstractmethod
    def measure(
        self, outputs: Array, targets: Array, names: Sequence[str], trust: Trust | None, coverage: float
    ) -> Results:
        """How good (N, C) outputs are, with the calibration if there is one."""

    @abstractmethod
    def calibrate(self, outputs: Array, targets: Array, names: Sequence[str], data: str) -> Trust:
        """What these pictures, which the model was not trained on, tell about its outputs; too few are an error."""


def _module_of(name: Any, where: str) -> Any:
    if not isinstance(name, str) or name not in TASKS:
        raise ConfigError(f"{where} must be a task; got {str(name)[:50]!r}; {suggest(str(name)[:50], list(TASKS))}")
    return import_module(TASKS[name].module)


def make_task(name: str, **facts: Any) -> Task:
    """The task of this name."""
    return _module_of(name, "task").TASK(**facts)
