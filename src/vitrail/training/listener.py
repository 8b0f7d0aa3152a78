"""What a run tells those who watch: the command's progress bar, TensorBoard, a notebook."""

from collections.abc import Iterable
from pathlib import Path

from vitrail.training.curves import Row


class Listener:
    """Hears everything and does nothing; override what matters."""

    def prepared(self, what: str, done: int, total: int) -> None:
        """A part of what comes before the first step, such as the features of pictures, is done."""

    def began(self, total_steps: int, done_steps: int, epochs: int) -> None:
        """The loop is about to start, perhaps in the middle of a resumed run."""

    def planned(self, total_steps: int, epochs: int) -> None:
        """A time budget now holds another number of epochs."""

    def stepped(self, step: int, loss: float, images_per_second: float) -> None:
        """One step is done."""

    def finished_epoch(self, row: Row, is_best: bool) -> None:
        """One epoch is done, evaluated and written down."""

    def said(self, message: str) -> None:
        """Something that a person should know."""

    def saved(self, path: Path) -> None:
        """A checkpoint is on the disk."""

    def ended(self) -> None:
        """The loop is over, for whatever reason."""


class Listeners(Listener):
    """Several of them as one."""

    def __init__(self, members: Iterable[Listener]) -> None:
        self.members = list(members)

    def prepared(self, what: str, done: int, total: int) -> None:
        for member in self.members:
            member.prepared(what, done, total)

    def began(self, total_steps: int, done_steps: int, epochs: int) -> None:
        for member in self.members:
            member.began(total_steps, done_steps, epochs)

    def planned(self, total_steps: int, epochs: int) -> None:
        for member in self.members:
            member.planned(total_steps, epochs)

    def stepped(self, step: int, loss: float, images_per_second: float) -> None:
        for member in self.members:
            member.stepped(step, loss, images_per_second)

    def finished_epoch(self, row: Row, is_best: bool) -> None:
        for member in self.members:
            member.finished_epoch(row, is_best)

    def said(self, message: str) -> None:
        for member in self.members:
            member.said(message)

    def saved(self, path: Path) -> None:
        for member in self.members:
            member.saved(path)

    def ended(self) -> None:
        for member in self.members:
            member.ended()
