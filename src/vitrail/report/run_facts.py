"""What the folder of a training run says about its model, and what was measured: for the model's card."""

import csv
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from vitrail.data.check.findings import RECORD, CheckRecord, read_record
from vitrail.data.split import SPLITS
from vitrail.errors import ConfigError, DataError
from vitrail.schema import from_dict
from vitrail.tasks.rates import Rate, rate, rate_text
from vitrail.training.config import TrainConfig
from vitrail.training.result import Run, read_run
from vitrail.training.run_folder import LARGEST, METRICS, SPLIT, read_config
from vitrail.untrusted import parse_json, read_bytes
from vitrail.weights.addresses import check_address
from vitrail.wording import show_metric


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """What the folder of a training run says."""

    config: TrainConfig
    run: Run | None = None  # None: it has not ended
    numbers: Mapping[str, Any] = field(default_factory=dict[str, Any])  # `evaluation` of metrics.json
    check: CheckRecord | None = None
    splits: Mapping[str, int] = field(default_factory=dict[str, int])  # → pictures; empty if the run did not list them

    @property
    def base(self) -> str:
        """The hub's owner/name of the weights that it started from; "" for a file or none."""
        return check_address(weights).partition("@")[0] if "://" in (weights := self.config.start.weights or "") else ""

    @property
    def data(self) -> str:
        """What the data are called; their folder concerns nobody else."""
        return str(self.numbers.get("data") or (self.check.data if self.check else Path(self.config.data).name))


def read_facts(folder: Path) -> RunFacts:
    """The facts of a run, from its folder."""
    finished = (folder / METRICS).is_file()
    numbers: Any = parse_json(read_bytes(folder / METRICS, LARGEST)).get("evaluation") if finished else None
    return RunFacts(
        config=read_config(folder),
        run=read_run(folder) if finished else None,
        numbers=numbers or {},
        check=read_record(folder / RECORD),
        splits=_count_splits(folder / SPLIT),
    )


def _count_splits(path: Path) -> dict[str, int]:
    if not path.is_file():
        return {}
    with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        counts = Counter(str(row.get("split")) for row in csv.DictReader(file))
    return {name: counts[name] for name in SPLITS if counts[name]}


class Measured(NamedTuple):
    """What was measured on held-out pictures."""

    split: str
    pictures: int
    rows: list[tuple[str, str]]  # a name and a number with its interval each, the most important first
    first: dict[str, float]  # the first metric
    top1: Rate | None = None  # of one class per picture


def measured_of(facts: RunFacts | None) -> Measured | None:
    """The result on held-out pictures; None if there is none."""
    if facts is None or facts.run is None:
        return None
    numbers = facts.numbers
    scores = {name: score for name, score in (("test", facts.run.test), ("val", facts.run.val)) if score is not None}
    if "top1" in numbers:
        return _of_classes(str(numbers["split"]), read_rate(numbers["top1"]), numbers)
    split = str(numbers.get("split") or next(iter(scores), ""))
    if split not in scores:
        return None
    score = scores[split]
    if not numbers and "accuracy" in score.metrics:
        return _of_classes(split, rate(round(score.metrics["accuracy"] * score.count), score.count), {})
    rows = [(name.replace("_", " "), show_metric(name, value)) for name, value in score.metrics.items()]
    rows = list(numbers.get("summary", dict(rows)).items())
    return Measured(split, numbers.get("pictures", score.count), rows, dict(list(score.metrics.items())[:1]))


def _of_classes(split: str, top1: Rate, numbers: Mapping[str, Any]) -> Measured:
    rows = [("top-1 accuracy", rate_text(top1))]
    if numbers:
        rows += [("top-5 accuracy", rate_text(read_rate(numbers["top5"])))] if numbers["top5"] else []
        rows += _optional(numbers, "balanced accuracy", "balanced_accuracy", "{:.2%}")
        rows += _optional(numbers, "macro F1", "macro_f1", "{:.3f}")
        rows += _optional(numbers, "negative log-likelihood", "nll", "{:.4f}")
        rows += _optional(numbers, "Brier score", "brier", "{:.4f}")
        rows += _optional(numbers, "calibration error", "calibration_error", "{:.2%}")
    return Measured(split, top1.total, rows, {"accuracy": top1.value}, top1)


def read_rate(values: Any) -> Rate:
    """A rate of metrics.json."""
    try:
        return from_dict(Rate, values)
    except ConfigError as error:
        raise DataError(f"{METRICS} of the run is damaged: {error.message}") from error


def _optional(numbers: Mapping[str, Any], title: str, key: str, form: str) -> list[tuple[str, str]]:
    """A row for a number that is defined."""
    return [] if numbers.get(key) is None else [(title, form.format(numbers[key]))]
