"""Accuracy under each corruption and severity, as curves."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vitrail.data.source import Dataset
from vitrail.evaluation.corruptions import SEVERITIES, STRENGTHS, corruption
from vitrail.evaluation.measurement import measure_split
from vitrail.evaluation.metrics import Rate
from vitrail.evaluation.names import ViewName
from vitrail.prediction import Predictor


@dataclass(frozen=True, kw_only=True)
class Robustness:
    """Top-1 accuracy without corruption, and of each corruption at severities 1 to 5."""

    clean: Rate
    curves: dict[str, tuple[Rate, ...]]

    @property
    def mean(self) -> float:
        """Over all corruptions and severities."""
        rates = [rate.value for curve in self.curves.values() for rate in curve]
        return sum(rates) / len(rates)


def measure_robustness(
    predictor: Predictor,
    dataset: Dataset,
    split: str = "test",
    *,
    kinds: Sequence[str] = tuple(STRENGTHS),
    tta: ViewName | None = None,
    limit: int | None = None,
    by_position: bool = False,
    progress: Callable[[int], None] = lambda _: None,
) -> Robustness:
    """Evaluate once for every corruption and severity, on the same `limit` samples."""

    def top1(kind: str | None = None, severity: int = 0) -> Rate:
        change = None if kind is None else corruption(kind, severity, predictor.preprocess)
        answers = measure_split(
            predictor,
            dataset,
            split,
            tta=tta,
            change=change,
            limit=limit,
            by_position=by_position,
            progress=progress,
        )
        return answers.metrics.top1

    curves = {kind: tuple(top1(kind, severity) for severity in SEVERITIES) for kind in kinds}
    return Robustness(clean=top1(), curves=curves)
