"""The probes of `vitrail eval`: what they need, found before any work, and what they measure."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from vitrail.cli.printing import progress_bar, working

if TYPE_CHECKING:
    from vitrail.data.source import Dataset
    from vitrail.evaluation.probe import Features, Parts
    from vitrail.prediction import Predictor

Probe = Literal["knn", "linear", "shots"]


def plan_probes(dataset: "Dataset", split: str, kinds: Sequence[Probe], shots: int) -> "Parts | None":
    """The pictures for the probes that are asked for; what cannot work is refused here."""
    from vitrail.evaluation.probe import check_shots, choose_parts

    if not kinds:
        return None
    parts = choose_parts(dataset, split, selects="linear" in kinds or "shots" in kinds)
    if "shots" in kinds:
        check_shots(parts, shots)
    return parts


def run_probes(
    predictor: "Predictor", parts: "Parts", kinds: Sequence[Probe], shots: int, *, speaks: bool
) -> dict[str, Any]:
    """Every probe on features that are computed once."""
    from vitrail.evaluation import probe

    with progress_bar("features", sum(len(source) for source in parts.sources), speaks=speaks) as advance:
        train, test = (probe.extract(predictor, source, advance) for source in (parts.train, parts.test))
        val = None if parts.val is None else probe.extract(predictor, parts.val, advance)
    with working("fitting the probes", speaks=speaks):
        return _fit(train, val, test, parts, kinds, shots)


def _fit(
    train: "Features", val: "Features | None", test: "Features", parts: "Parts", kinds: Sequence[Probe], shots: int
) -> dict[str, Any]:
    from vitrail.evaluation import probe
    from vitrail.evaluation.records import rate_facts

    results: dict[str, Any] = {}
    if "knn" in kinds:  # which chooses nothing, so it may learn from all training pictures
        near = probe.knn(probe.join(train, val) if val is not None and parts.carved else train, test)
        results["knn"] = {"top1": rate_facts(near.top1), "k": near.k}
    if val is not None and "linear" in kinds:
        found = probe.linear(train, val, test)
        results["linear"] = {"top1": rate_facts(found.top1), "C": found.best_c, "validation": found.validation}
    if val is not None and "shots" in kinds:
        few = probe.few_shot(train, val, test, shots=shots)
        results["shots"] = {"shots": few.shots, "mean": few.mean, "std": few.std, "trials": few.trials}
    return results
