"""What a run reports to observers: the command's progress bar, trackers, a notebook."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from vitrail.schema import from_dict
from vitrail.training.config import TRAININGS, Selection, Training
from vitrail.wording import counted, duration, word_arguments

if TYPE_CHECKING:
    from vitrail.data.check.findings import DataFinding
    from vitrail.training.curves import EpochRow
    from vitrail.training.result import Run


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a run will do, and the time and memory that it will need, as measured."""

    data: str
    classes: int  # or labels, or values
    outputs: str = ""  # the same in words
    pictures: dict[str, int]  # of each split
    recipe: str
    model: str  # its name, or where the weights are from
    parameters: int
    image_size: tuple[int, int]  # height, width
    device: str
    ranks: int
    epochs: int
    minutes: float
    memory_mb: int
    config: dict[str, Any]  # all of it, as config.yaml has it
    trained: int = 0  # of the parameters
    chosen: str = ""  # what was chosen by default, and why
    folds: int = 0  # of all repeats, in which that many models are trained before the last one
    trials: int = 0  # of a search, each of which is such a run
    teacher: str = ""  # the model to learn from, and what it costs

    @property
    def training(self) -> Training:
        """What is trained, and on what."""
        return TRAININGS[self.config["start"]["train"]]

    exit_code = 0

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**vars(self), "chosen": word_arguments(self.chosen)}

    def lines(self) -> Iterator[str]:
        """What `vitrail train --dry-run` prints: the whole config, and what the run will need."""
        yield yaml.safe_dump(self.config, sort_keys=False, allow_unicode=True).rstrip()
        yield from self.describe()

    def describe(self) -> Iterator[str]:
        """The data, the model, and what the run will need, a line for each."""
        counts = ", ".join(f"{name} {count:,}" for name, count in self.pictures.items())
        yield f"data    {self.data}: {self.outputs or counted(self.classes, 'class')}; {counts}"
        height, width = self.image_size
        trained = "" if self.trained in (0, self.parameters) else f" of which {self.trained:,} are trained,"
        yield (
            f"model   {self.model}: {self.parameters:,} parameters,{trained} pictures of {width}×{height}, "
            f"recipe {self.recipe}"
        )
        if self.teacher:
            yield f"teacher {self.teacher}"
        if self.chosen:
            yield f"chosen  {self.chosen}"
        seconds = 60 * self.minutes
        selection = from_dict(Selection, self.config.get("selection", {}))
        each = seconds / self.epochs / selection.parts
        work = f"{counted(self.epochs, 'epoch')} of about {each:.1f} s ({duration(seconds)})"
        if self.training.on_features:
            epochs = f"{counted(self.epochs, 'epoch')} of the {self.training.part}"
            work = f"features once, in about {duration(seconds)}; then {epochs}"
        if models := self._models():
            work = f"{models}; {work}"
        batch = self.config["machine"]["batch_size"]
        yield f"plan    {work} on {self.device} × {self.ranks}, batch {batch}, memory {self.memory_mb:,} MB"

    def _models(self) -> str:
        """The models of folds and trials; "" if there is only one."""
        parts = [counted(self.trials, "trial")] if self.trials else []
        parts += [counted(self.folds, "fold") + (" of each" if parts else "")] if self.folds else []
        return ", ".join([*parts, *(["a last model on all pictures"] if self.folds else [])])


class Listener:
    """Hears everything and does nothing; override what matters."""

    def checked(self, findings: "Sequence[tuple[DataFinding, int]]", data: str) -> None:
        """The data have been checked; for each kind of serious finding, an example and the count."""

    def decided(self, plan: Plan) -> None:
        """Everything about a new run is settled."""

    def opened(self, folder: Path, *, resume: bool) -> None:
        """The run folder is locked, and is written to from now on."""

    def prepared(self, what: str, done: int, total: int) -> None:
        """Part of the work before the first step or after the last is done, such as the features of pictures."""

    def began(self, total_steps: int, done_steps: int, epochs: int) -> None:
        """The loop is about to start, perhaps in the middle of a resumed run."""

    def planned(self, total_steps: int, epochs: int) -> None:
        """A different number of epochs now fits into the time budget."""

    def stepped(self, step: int, loss: float, images_per_second: float) -> None:
        """One step is done."""

    def finished_epoch(self, row: "EpochRow", is_best: bool) -> None:
        """One epoch is done, evaluated and recorded."""

    def said(self, message: str) -> None:
        """Something that users should know."""

    def saved(self, path: Path) -> None:
        """A checkpoint is on the disk."""

    def ended(self) -> None:
        """The loop is over, for whatever reason."""

    def completed(self, run: "Run") -> None:
        """The run is measured and its report is written."""


class Listeners(Listener):
    """Several listeners as one: each hears every event."""

    def __init__(self, members: Iterable[Listener]) -> None:
        self.members = list(members)
        for event in (name for name in vars(Listener) if not name.startswith("_")):
            setattr(self, event, partial(self._tell, event))

    def _tell(self, event: str, *values: object, **named: object) -> None:
        for member in self.members:
            getattr(member, event)(*values, **named)


class Quiet(Listener):
    """Passes on what users should know, but no epochs: there are many, and each takes a moment.

    Of one of many runs, what it says is not passed on either.
    """

    def __init__(self, listener: Listener, *, says: bool = True) -> None:
        self.prepared = listener.prepared
        if says:
            self.said = listener.said
