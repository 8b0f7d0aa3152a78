"""`results.csv`, one row per epoch, and `results.png`, its curves."""

import csv
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure
from torch import nn

from vitrail.canvas import open_frame, save_figure
from vitrail.errors import ConfigError, DataError, suggest
from vitrail.files import atomic_path
from vitrail.tasks.task import Task
from vitrail.training.config import TrainConfig
from vitrail.training.optim import group_parameters
from vitrail.wording import SHARES, name_metric

RESULTS = "results.csv"
LARGEST = 64 * 2**20  # bytes of a file that we read
LARGEST_NUMBER = 1e15  # of any column
COUNTS = ("epoch", "step")
FIRST = (*COUNTS, "lr", "train_loss", "val_loss")  # the columns that every run has, before and after its metrics
LAST = ("images_per_second", "seconds")


@dataclass(frozen=True, kw_only=True)
class EpochRow:
    """One epoch."""

    epoch: int
    step: int
    lr: float  # the highest of all groups of weights
    train_loss: float
    val_loss: float | None
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])  # of validation, by name
    train_metrics: Mapping[str, float] = field(default_factory=dict[str, float])  # means over the epoch's steps
    shown: tuple[str, ...] = ()  # the metrics of validation that people follow; none: the first
    images_per_second: float
    seconds: float  # since the run began, without pauses

    def cells(self) -> dict[str, str]:
        """Column → text."""
        values: dict[str, float | None] = {name: getattr(self, name) for name in FIRST}
        values |= {f"train_{name}": value for name, value in self.train_metrics.items()}
        values |= {f"val_{name}": value for name, value in self.metrics.items()}
        values |= {name: getattr(self, name) for name in LAST}
        return {name: _text(value) for name, value in values.items()}


def append_row(path: Path, row: EpochRow) -> None:
    """Add one epoch to the file, which begins with a header; a row that cannot be written leaves nothing behind.

    The header is the first row's: what it does not name is left out.
    """
    size = path.stat().st_size if path.exists() else 0
    cells = row.cells()
    try:
        columns = _read_header(path) if size else list(cells)
        with path.open("a", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            if not size:
                writer.writerow(columns)
            writer.writerow([cells.get(name, "") for name in columns])
    except OSError:
        with suppress(OSError):
            os.truncate(path, size) if size else path.unlink(missing_ok=True)
        raise


def _read_header(path: Path) -> list[str]:
    with path.open(newline="", encoding="utf-8") as file:
        return next(csv.reader(file), [])


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
    values: dict[str, Any] = {name: _number(name, line[name]) for name in (*FIRST, *LAST)}
    if any(values[name] is None for name in (*FIRST, *LAST) if name != "val_loss"):
        raise ValueError("a number is missing")
    metrics: dict[str, dict[str, float]] = {"val": {}, "train": {}}
    for column, text in line.items():
        part, _, name = str(column).partition("_")
        if column in values or part not in metrics:
            continue
        if (value := _number(column, text, lowest=-LARGEST_NUMBER)) is not None:
            metrics[part][name] = value
    return EpochRow(**values, metrics=metrics["val"], train_metrics=metrics["train"])


def _number(name: str, text: str, lowest: float = 0.0) -> float | None:
    """What a cell holds; nothing where there was no validation."""
    if text == "":
        return None
    value = int(text) if name in COUNTS else float(text)
    if not lowest <= value <= LARGEST_NUMBER:
        raise ValueError(f"{name} is {text[:40]}")
    return value


def keep_rows(path: Path, epochs: int) -> list[EpochRow]:
    """Remove what came after the checkpoint from which a run continues."""
    kept = [row for row in read_rows(path) if row.epoch <= epochs]
    if not kept:
        path.unlink(missing_ok=True)
        return kept
    columns = _read_header(path)
    with atomic_path(path) as draft, draft.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows([row.cells().get(name, "") for name in columns] for row in kept)
    return kept


OVERFITTED = 1.05  # times the lowest validation loss
INK, QUIET, ACCENT = "#1b2a41", "#8d99ae", "#c8553d"
COLORS = (INK, ACCENT, "#3a7d7c", "#b08a2e")  # of learning rates
OPTIMIZERS = {"adamw": "AdamW", "sgd": "SGD", "muon": "Muon"}


SHORT = {"balanced": "balanced_accuracy", "knn": "knn_accuracy"}  # what else a metric may be called


class Choice(NamedTuple):
    """The metric that chooses the best epoch."""

    metric: str  # "loss", or one of the objective's metrics
    higher: bool  # whether higher is better
    keeps_last: bool = False  # the metric is only shown, and the last epoch is kept

    def rank(self, loss: float | None, metrics: Mapping[str, float]) -> float:
        """What is highest for the best epoch; nothing is lower than an epoch without the metric."""
        value = loss if self.metric == "loss" else metrics.get(self.metric)
        return -math.inf if value is None else value if self.higher else -value

    def is_better(self, rank: float, loss: float, best: float, lowest_loss: float) -> bool:
        """Whether an epoch replaces the best so far.

        Among equally good ones, the later wins, unless its loss has risen, which means that it has overfitted.
        """
        return self.keeps_last or rank > best or (rank == best and loss <= OVERFITTED * lowest_loss)

    @property
    def title(self) -> str:
        """For people."""
        return name_metric(self.metric)


def choice_of(config: TrainConfig, task: Task) -> Choice:
    """The metric that a config asks for; by default the task's first, or its balanced form if classes are balanced."""
    asked = SHORT.get(config.schedule.best, config.schedule.best)
    known = {**task.metrics, "loss": False}
    if asked == "auto":
        balanced = config.optim.balance != "none" and "balanced_accuracy" in task.metrics
        asked = "balanced_accuracy" if balanced else next(iter(task.metrics))
    name = asked
    if name not in known:
        raise ConfigError(f"has no {name!r} for this task; {suggest(name, ['auto', *known])}", field="best")
    return Choice(name, known[name])


def best_row(evaluated: Sequence[EpochRow], choice: Choice) -> EpochRow:
    """The epoch whose weights are kept, of those with a validation."""
    best, lowest = evaluated[0], math.inf
    for row in evaluated:
        loss = row.val_loss or 0.0
        lowest = min(lowest, loss)
        rank, highest = (choice.rank(each.val_loss, each.metrics) for each in (row, best))
        if choice.is_better(rank, loss, highest, lowest):
            best = row
    return best


def with_metric(evaluated: Sequence[EpochRow], choice: Choice) -> list[EpochRow]:
    """The epochs whose metric is known; some are measured only now and then."""
    return [row for row in evaluated if math.isfinite(_value(row, choice))]


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


def draw_curves(
    rows: Sequence[EpochRow], path: Path, title: str, choice: Choice, rates: dict[str, float] | None = None
) -> None:
    """Loss, the metric that chooses, and learning rates over the epochs; `rates` are the highest of each group of
    weights.
    """
    figure = Figure(figsize=(11, 3.4), layout="constrained")
    loss, metric, rate = figure.subplots(1, 3)
    epochs = [row.epoch for row in rows]
    dots: dict[str, Any] = {"marker": "o", "markersize": 4} if len(rows) == 1 else {}  # one point makes no line
    evaluated = [row for row in rows if row.val_loss is not None]
    loss.plot(epochs, [row.train_loss for row in rows], color=INK, label="training", **dots)
    if evaluated:
        places = [row.epoch for row in evaluated]
        loss.plot(places, [row.val_loss for row in evaluated], color=ACCENT, label="validation", **dots)
        measured = with_metric(evaluated, choice) or evaluated
        best = best_row(measured, choice)
        percent = choice.metric in SHARES
        values = [100 * value if percent else value for value in (_value(row, choice) for row in measured)]
        top = values[measured.index(best)]
        metric.plot([row.epoch for row in measured], values, color=ACCENT)
        metric.plot([best.epoch], [top], "o", color=ACCENT)
        chosen = ", which it chose" if len(evaluated) > 1 and not choice.keeps_last else ""
        reached = f"{top:.2f} %" if percent else f"{top:.4g}"
        metric.set_title(f"validation {choice.title}: {reached} at epoch {best.epoch}{chosen}", fontsize=10)
        metric.set_ylabel("%" if percent else choice.title)
    groups = rates or {"highest of all weights": 1.0}
    highest = max(groups.values())
    for (name, peak), color in zip(groups.items(), COLORS, strict=False):
        values = [row.lr * peak / highest if highest else row.lr for row in rows]
        rate.plot(epochs, values, color=color, label=name, **dots)
    loss.set_title("loss", fontsize=10)
    loss.legend(frameon=False)
    rate.set_title("learning rate at the end of the epoch", fontsize=10)
    rate.legend(frameon=False, fontsize=8)
    open_frame(loss, metric, rate)
    for axes in (loss, metric, rate):
        axes.set_xlabel("epoch")
        axes.grid(color=QUIET, alpha=0.25)
        axes.locator_params(axis="x", integer=True)
    figure.suptitle(title, fontsize=11)
    save_figure(figure, path, dpi=120)


def _value(row: EpochRow, choice: Choice) -> float:
    """The metric that chooses, of an epoch with a validation; NaN leaves a gap in the curve."""
    value = row.val_loss if choice.metric == "loss" else row.metrics.get(choice.metric)
    return math.nan if value is None else value
