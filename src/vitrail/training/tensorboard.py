"""Curves for TensorBoard, for those who have the `track` extra."""

from importlib import import_module
from pathlib import Path
from typing import Any, cast

from vitrail.errors import MissingExtraError
from vitrail.training.curves import Row
from vitrail.training.listener import Listener


def require_tensorboard() -> Any:
    """torch's writer, or an error that says how to install it."""
    try:
        return cast("Any", import_module("torch.utils.tensorboard"))
    except ImportError as error:
        raise MissingExtraError("track=True", "track") from error


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

    def finished_epoch(self, row: Row, is_best: bool) -> None:
        for name in ("lr", "val_loss", "val_accuracy", "images_per_second"):
            value = getattr(row, name)
            if value is not None:
                self._writer.add_scalar(f"epoch/{name}", value, row.step)

    def ended(self) -> None:
        if self._writer is not None:
            self._writer.close()
