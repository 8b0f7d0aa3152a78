"""`results.csv`, one row per epoch, and `results.png`, its curves."""

import csv
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import IO, Any

from matplotlib.figure import Figure
from torch import nn

from vitrail.canvas import open_frame, save_figure
from vitrail.errors import DataError
from vitrail.files import atomic_path
from vitrail.training.config import TrainConfig
from vitrail.training.optim import group_parameters

RESULTS = "results.csv"
LARGEST = 64 * 2**20  # bytes of a file that we read
LARGEST_NUMBER = 1e15  # of any column


@dataclass(frozen=True, kw_only=True)
class EpochRow:
    """One epoch."""

    epoch: int
    step: int
    lr: float  # the highest of all groups of weights
    train_loss: float
    val_loss: float | None
    val_accuracy: float | None
    images_per_second: float
    seconds: float  # since the run began, without pauses


def append_row(path: Path, row: EpochRow) -> None:
    """Add one epoch to the file, which begins with a header; a row that cannot be written leaves nothing behind."""
    size = path.stat().st_size if path.exists() else 0
    try:
        with path.open("a", newline="", encoding="utf-8") as file:
            _write_rows(file, [row], head=not size)
    except OSError:
        with suppress(OSError):
            os.truncate(path, size) if size else path.unlink(missing_ok=True)
        raise


def _write_rows(file: IO[str], rows: Iterable[EpochRow], *, head: bool) -> None:
    writer = csv.writer(file)
    if head:
        writer.writerow(field.name for field in fields(EpochRow))
    writer.writerows([_text(getattr(row, field.name)) for field in fields(EpochRow)] for row in rows)


def _text(value: float | None) -> str:
    return "" if value is None else repr(value) if isinstance(value, int) else f"{value:.8g}"


def read_rows(path: Path) -> list[EpochRow]:
    """All whole rows; the last one may have been cut off by a crash."""
    if not path.exists():
        return []
    try:
        if path.stat().st_size > LARGEST:
            raise ValueError(f"it has more than {LARGEST:,} bytes")
        text = path.read_text(encoding="utf-8")
        lines = text[: text.rfind("\n") + 1].splitlines()  # a truncated number may look valid
        return _parse(csv.DictReader(lines))
    except (OSError, LookupError, TypeError, ValueError, csv.Error) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else error
        raise DataError(
            f"{path} is damaged ({str(reason)[:200]}); correct it, or remove it to continue without the epochs so far."
        ) from error


def _parse(lines: Iterable[dict[str, str]]) -> list[EpochRow]:
    rows: list[EpochRow] = []
    for line in lines:
        row = _row(line)
        if row.epoch <= (rows[-1].epoch if rows else -1):  # 0 is the head alone, before fine-tuning
            raise ValueError(f"epoch {row.epoch} comes after {rows[-1].epoch if rows else 'none'}")
        rows.append(row)
    return rows


def _row(line: dict[str, str]) -> EpochRow:
    values: dict[str, Any] = {}
    for field in fields(EpochRow):
        text = line[field.name]
        if text == "" and field.name in ("val_loss", "val_accuracy"):
            values[field.name] = None
            continue
        value = int(text) if field.name in ("epoch", "step") else float(text)
        if not 0 <= value <= LARGEST_NUMBER:
            raise ValueError(f"{field.name} is {text[:40]}")
        values[field.name] = value
    return EpochRow(**values)


def keep_rows(path: Path, epochs: int) -> list[EpochRow]:
    """Remove what came after the checkpoint from which a run continues."""
    kept = [row for row in read_rows(path) if row.epoch <= epochs]
    if not kept:
        path.unlink(missing_ok=True)
        return kept
    with atomic_path(path) as draft, draft.open("w", newline="", encoding="utf-8") as file:
        _write_rows(file, kept, head=True)
    return kept


OVERFITTED = 1.05  # times the lowest validation loss
INK, QUIET, ACCENT = "#1b2a41", "#8d99ae", "#c8553d"
COLORS = (INK, ACCENT, "#3a7d7c", "#b08a2e")  # of learning rates
OPTIMIZERS = {"adamw": "AdamW", "sgd": "SGD", "muon": "Muon"}


def is_better(accuracy: float, loss: float, best_accuracy: float, lowest_loss: float) -> bool:
    """Whether an epoch replaces the best so far.

    Among equally accurate ones, the later wins, unless its loss has risen, which means that it has overfitted.
    """
    return accuracy > best_accuracy or (accuracy == best_accuracy and loss <= OVERFITTED * lowest_loss)


def best_row(evaluated: Sequence[EpochRow]) -> EpochRow:
    """The epoch whose weights are kept, of those with a validation."""
    best, lowest = evaluated[0], float("inf")
    for row in evaluated:
        accuracy, loss = row.val_accuracy or 0.0, row.val_loss or 0.0
        lowest = min(lowest, loss)
        if is_better(accuracy, loss, best.val_accuracy or 0.0, lowest):
            best = row
    return best


def learning_rates(model: nn.Module, config: TrainConfig, depth: int) -> dict[str, float]:
    """The highest learning rate of each group of weights by its name: the optimiser, and their layers.

    Where the rate falls from layer to layer, the last ones and the first stand for all.
    """
    if trained := config.start.training.part:
        return {trained: config.optim.lr}
    kinds: dict[str, set[float]] = {}
    for group in group_parameters(model, config.optim, depth):
        kinds.setdefault(group.kind, set()).add(group.lr)
    rates: dict[str, float] = {}
    for kind in sorted(kinds, key=lambda kind: -max(kinds[kind])):
        name = OPTIMIZERS[kind]
        part = "" if len(kinds) == 1 else ", matrices" if kind == "muon" else ", the rest"
        high, low = max(kinds[kind]), min(kinds[kind])
        if high == low:
            rates[f"{name}{part or ', all weights'}"] = high
        else:
            rates |= {f"{name}{part}, last layers": high, f"{name}{part}, first layer": low}
    return rates


def draw_curves(rows: Sequence[EpochRow], path: Path, title: str, rates: dict[str, float] | None = None) -> None:
    """Loss, accuracy and learning rates over the epochs; `rates` are the highest of each group of weights."""
    figure = Figure(figsize=(11, 3.4), layout="constrained")
    loss, accuracy, rate = figure.subplots(1, 3)
    epochs = [row.epoch for row in rows]
    dots: dict[str, Any] = {"marker": "o", "markersize": 4} if len(rows) == 1 else {}  # one point makes no line
    evaluated = [row for row in rows if row.val_loss is not None and row.val_accuracy is not None]
    loss.plot(epochs, [row.train_loss for row in rows], color=INK, label="training", **dots)
    if evaluated:
        places = [row.epoch for row in evaluated]
        loss.plot(places, [row.val_loss for row in evaluated], color=ACCENT, label="validation", **dots)
        best = best_row(evaluated)
        percent = [100 * (row.val_accuracy or 0.0) for row in evaluated]
        accuracy.plot(places, percent, color=ACCENT)
        top = 100 * (best.val_accuracy or 0.0)
        accuracy.plot([best.epoch], [top], "o", color=ACCENT)
        chosen = ", which it chose" if len(evaluated) > 1 else ""
        accuracy.set_title(f"validation accuracy: {top:.2f} % at epoch {best.epoch}{chosen}", fontsize=10)
    groups = rates or {"highest of all weights": 1.0}
    highest = max(groups.values())
    for (name, peak), color in zip(groups.items(), COLORS, strict=False):
        values = [row.lr * peak / highest if highest else row.lr for row in rows]
        rate.plot(epochs, values, color=color, label=name, **dots)
    loss.set_title("loss", fontsize=10)
    loss.legend(frameon=False)
    rate.set_title("learning rate at the end of the epoch", fontsize=10)
    rate.legend(frameon=False, fontsize=8)
    accuracy.set_ylabel("%")
    open_frame(loss, accuracy, rate)
    for axes in (loss, accuracy, rate):
        axes.set_xlabel("epoch")
        axes.grid(color=QUIET, alpha=0.25)
        axes.locator_params(axis="x", integer=True)
    figure.suptitle(title, fontsize=11)
    save_figure(figure, path, dpi=120)
