"""What a run reports to observers: the command's progress bar, TensorBoard, a notebook."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from vitrail.data.check.findings import DataFinding
from vitrail.errors import MissingExtraError
from vitrail.training.config import TRAININGS, Training
from vitrail.training.curves import EpochRow


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a run will do, and the time and memory that it will need, as measured."""

    data: str
    classes: int
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

    @property
    def training(self) -> Training:
        """What is trained, and on what."""
        return TRAININGS[self.config["start"]["train"]]


class Listener:
    """Hears everything and does nothing; override what matters."""

    def checked(self, findings: Sequence[tuple[DataFinding, int]], data: str) -> None:
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

    def finished_epoch(self, row: EpochRow, is_best: bool) -> None:
        """One epoch is done, evaluated and recorded."""

    def said(self, message: str) -> None:
        """Something that users should know."""

    def saved(self, path: Path) -> None:
        """A checkpoint is on the disk."""

    def ended(self) -> None:
        """The loop is over, for whatever reason."""


class Listeners(Listener):
    """Several listeners as one: each hears every event."""

    def __init__(self, members: Iterable[Listener]) -> None:
        self.members = list(members)
        for event in (name for name in vars(Listener) if not name.startswith("_")):
            setattr(self, event, partial(self._tell, event))

    def _tell(self, event: str, *values: object, **named: object) -> None:
        for member in self.members:
            getattr(member, event)(*values, **named)


def require_tensorboard() -> Any:
    """torch's writer, or an error that says how to install it."""
    try:
        return cast("Any", import_module("torch.utils.tensorboard"))
    except ImportError as error:
        raise MissingExtraError("`track=True`", "track") from error


class TensorBoard(Listener):
    """Writes to `tensorboard/` in the run folder; a resumed run replaces what came after its checkpoint."""

    def __init__(self, folder: Path) -> None:
        self._module = require_tensorboard()
        self._folder = folder / "tensorboard"
        self._writer: Any = None

    def began(self, total_steps: int, done_steps: int, epochs: int) -> None:
        self._writer = self._module.SummaryWriter(str(self._folder), purge_step=done_steps + 1)

    def stepped(self, step: int, loss: float, images_per_second: float) -> None:
        self._writer.add_scalar("train/loss", loss, step)

    def finished_epoch(self, row: EpochRow, is_best: bool) -> None:
        for name in ("lr", "val_loss", "val_accuracy", "images_per_second"):
            value = getattr(row, name)
            if value is not None:
                self._writer.add_scalar(f"epoch/{name}", value, row.step)

    def ended(self) -> None:
        if self._writer is not None:
            self._writer.close()
