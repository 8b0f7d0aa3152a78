"""How much a checkpoint's frozen features hold: simple classifiers on them, and a map of them on a plane."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from typing import Any, cast, get_args

import numpy as np

from vitrail.data.source import Dataset, Source, refuse_broken
from vitrail.errors import ConfigError, DataError, InputError, suggest
from vitrail.evaluation import MapMethod, ProbeName
from vitrail.evaluation.measurement import Singles, choose, run
from vitrail.prediction import Predictor
from vitrail.progress import Advance, Progress, silent
from vitrail.rng import permutation
from vitrail.tasks.one_metrics import Integers
from vitrail.tasks.rates import Rate, rate

NEIGHBOURS = 20
TEMPERATURE = 0.07  # this and the number of neighbours are DINO's (Caron et al., 2021)
SWEEP = tuple(10.0**power for power in range(-5, 3))  # of C, the inverse of the regularisation
BLOCK = 1024  # test features that are compared with all others at once
MAX_ITERATIONS = 1000


@dataclass(frozen=True, kw_only=True, eq=False)
class FeatureSet:
    """The features (N, D) of one split with their labels: computed once, used by every probe."""

    vectors: Singles
    labels: Integers


@dataclass(frozen=True, kw_only=True)
class ProbeSplits:
    """What probes are fitted on, tuned on (if they are) and measured on: no picture is in two of these."""

    train: Source
    val: Source | None
    test: Source
    carved: bool  # val was taken from the training pictures
    max_broken_rate: float  # as of the data set

    @property
    def sources(self) -> tuple[Source, ...]:
        return tuple(source for source in (self.train, self.val, self.test) if source is not None)


@dataclass(frozen=True, kw_only=True)
class NeighbourResult:
    """A kNN probe: its accuracy on the test split, and how many neighbours voted."""

    top1: Rate
    k: int


@dataclass(frozen=True, kw_only=True)
class LinearResult:
    """A linear probe: its accuracy on the test split, and the sweep that chose C on the validation split."""

    top1: Rate
    best_c: float
    validation: dict[float, float]  # C → accuracy


@dataclass(frozen=True, kw_only=True)
class ShotResult:
    """n-shot probes on several draws of the training pictures."""

    shots: int
    mean: float
    std: float
    trials: tuple[float, ...]


def plan_probes(dataset: Dataset, split: str, kinds: Sequence[ProbeName], shots: int) -> ProbeSplits | None:
    """The pictures for the requested probes; what cannot work is refused here."""
    unknown = [kind for kind in kinds if kind not in get_args(ProbeName)]
    if unknown:
        raise ConfigError(f"has no {unknown[0]!r}; {suggest(str(unknown[0]), get_args(ProbeName))}", field="probe")
    if not kinds:
        return None
    dataset.require_classes("a probe")
    parts = choose_parts(dataset, split, selects="linear" in kinds or "shots" in kinds)
    if "shots" in kinds:
        check_shots(parts.train.labels, shots)
    return parts


def choose_parts(dataset: Dataset, measured: str, *, selects: bool) -> ProbeSplits:
    """The pictures for probes that are measured on one split; with `selects`, also some to tune a setting on.

    Those are from another split, or else a tenth of the training pictures.
    """
    if measured in ("train", "all"):
        raise DataError(f"a probe must be measured on a split other than train; got {measured!r}.")
    train, test, val, carved = dataset.split("train"), dataset.split(measured), None, False
    if selects:
        others = [name for name in ("val", "test") if name != measured and name in dataset.splits]
        carved = not others
        splits = replace(dataset, splits={"train": train}).with_validation().splits if carved else dataset.splits
        train, val = splits["train"], splits.get("val" if carved else others[0])
        if val is None:
            raise DataError(
                f"a linear probe needs separate pictures to choose C, and {dataset.name} has one training picture of "
                'each class; add some, or use `probe="knn"`.'
            )
    return ProbeSplits(train=train, val=val, test=test, carved=carved, max_broken_rate=dataset.max_broken_rate)


def check_shots(labels: Integers, shots: int) -> None:
    """Refuse more training pictures of each class than there are."""
    counts = np.bincount(labels)
    fewest = int(counts[counts > 0].min())
    if not 1 <= shots <= fewest:
        raise ConfigError(f"shots must be from 1 to {fewest}, the pictures of the smallest class; got {shots}.")


def extract(
    predictor: Predictor, source: Source, progress: Advance = lambda _: None, max_broken_rate: float | None = None
) -> FeatureSet:
    """The features of pictures, in their order; at most this share of them may be unreadable."""
    samples = choose(len(source), None)
    kept, vectors, broken = run(predictor, source, samples, predictor.runtime.features, progress=progress)
    refuse_broken(broken, len(samples), max_broken_rate)
    return FeatureSet(vectors=vectors, labels=source.labels[kept])


def knn(
    train: FeatureSet, test: FeatureSet, *, k: int = NEIGHBOURS, temperature: float = TEMPERATURE
) -> NeighbourResult:
    """The k nearest by cosine vote, each with exp(similarity / temperature), as DINO does it."""
    if k < 1:
        raise ConfigError(f"the number of neighbours must be at least 1; got {k}.")
    k = min(k, len(train.labels))
    bank, queries = _unit(train.vectors), _unit(test.vectors)
    num_classes = int(max(train.labels.max(), test.labels.max())) + 1
    correct = 0
    for start in range(0, len(queries), BLOCK):
        similar = queries[start : start + BLOCK] @ bank.T  # (B, N)
        nearest = np.argpartition(-similar, k - 1, axis=1)[:, :k]
        votes = np.exp(np.take_along_axis(similar, nearest, axis=1).astype(np.float64) / temperature)
        totals = np.zeros((len(nearest), num_classes))
        np.add.at(totals, (np.arange(len(nearest))[:, None], train.labels[nearest]), votes)
        correct += int((totals.argmax(axis=1) == test.labels[start : start + BLOCK]).sum())
    return NeighbourResult(top1=rate(correct, len(test.labels)), k=k)


def linear(train: FeatureSet, val: FeatureSet, test: FeatureSet, *, sweep: Sequence[float] = SWEEP) -> LinearResult:
    """Logistic regression on standardised features; C is chosen on the validation split, never on the test split."""
    scale = _scaler(train.vectors)
    inputs, seen = scale(train.vectors), scale(val.vectors)
    models = {c: _fit(inputs, train.labels, c) for c in sweep}
    validation = {c: float((model.predict(seen) == val.labels).mean()) for c, model in models.items()}
    best = max(sweep, key=lambda c: (validation[c], -c))  # among equals, the simplest
    correct = int((models[best].predict(scale(test.vectors)) == test.labels).sum())
    return LinearResult(top1=rate(correct, len(test.labels)), best_c=best, validation=validation)


def few_shot(
    train: FeatureSet,
    val: FeatureSet,
    test: FeatureSet,
    *,
    shots: int,
    trials: int = 3,
    sweep: Sequence[float] = SWEEP,
) -> ShotResult:
    """Linear probes on `shots` training pictures of each class, drawn anew in each trial."""
    check_shots(train.labels, shots)
    classes = np.unique(train.labels)
    rates: list[float] = []
    for trial in range(trials):
        order = permutation(trial, 0, len(train.labels), "shots")
        chosen = np.concatenate([order[train.labels[order] == label][:shots] for label in classes])
        few = FeatureSet(vectors=train.vectors[chosen], labels=train.labels[chosen])
        rates.append(linear(few, val, test, sweep=sweep).top1.value)
    return ShotResult(shots=shots, mean=float(np.mean(rates)), std=float(np.std(rates)), trials=tuple(rates))


def _join(*parts: FeatureSet) -> FeatureSet:
    return FeatureSet(
        vectors=np.concatenate([part.vectors for part in parts]), labels=np.concatenate([part.labels for part in parts])
    )


def _unit(vectors: Singles) -> Singles:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def _scaler(vectors: Singles) -> Callable[[Singles], Singles]:
    mean, std = vectors.mean(axis=0), vectors.std(axis=0)
    return lambda values: (values - mean) / np.where(std > 0, std, 1)


def _fit(inputs: Singles, labels: Integers, c: float) -> Any:
    """scikit-learn's logistic regression; in a sweep, a fit that stopped early is good enough."""
    sklearn_linear = cast("Any", import_module("sklearn.linear_model"))
    exceptions = cast("Any", import_module("sklearn.exceptions"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", exceptions.ConvergenceWarning)
        return sklearn_linear.LogisticRegression(C=c, max_iter=MAX_ITERATIONS).fit(inputs, labels)


def run_probes(
    predictor: Predictor, parts: ProbeSplits, kinds: Sequence[ProbeName], shots: int, progress: Progress = silent
) -> dict[str, Any]:
    """The results of every probe, on features that are computed once."""
    with progress("features", sum(map(len, parts.sources))) as advance:
        train, test, val = (
            None if source is None else extract(predictor, source, advance, parts.max_broken_rate)
            for source in (parts.train, parts.test, parts.val)
        )
    assert train is not None
    assert test is not None
    results: dict[str, Any] = {}
    with progress("fitting the probes", len(kinds)) as advance:
        if "knn" in kinds:  # which tunes nothing, so it may use all training pictures
            results["knn"] = asdict(knn(_join(train, val) if val is not None and parts.carved else train, test))
            advance(1)
        if val is not None and "linear" in kinds:
            fitted = linear(train, val, test)
            results["linear"] = {"top1": asdict(fitted.top1), "C": fitted.best_c, "validation": fitted.validation}
            advance(1)
        if val is not None and "shots" in kinds:
            results["shots"] = asdict(few_shot(train, val, test, shots=shots))
            advance(1)
    return results


MOST_COMPONENTS = 50  # t-SNE starts from the principal components, as its authors advise


def project(features: np.ndarray[Any, Any], method: MapMethod = "pca", seed: int = 0) -> np.ndarray[Any, Any]:
    """(N, D) → (N, 2), the same every time."""
    if len(features) < 3:
        raise InputError(f"a map needs at least 3 pictures; got {len(features)}.")
    if not np.isfinite(features).all():
        raise InputError("a map needs numbers, and some features are NaN or infinite.")
    if (features == features[0]).all():  # t-SNE would divide by their variance
        raise InputError(f"a map needs pictures that differ, and the features of all {len(features):,} are the same.")
    decomposition = cast("Any", import_module("sklearn.decomposition"))
    width = 2 if method == "pca" else min(MOST_COMPONENTS, *features.shape)
    components = decomposition.PCA(width, svd_solver="full").fit_transform(np.asarray(features, dtype=np.float64))
    if method == "pca":
        return components
    manifold = cast("Any", import_module("sklearn.manifold"))
    perplexity = min(30.0, (len(features) - 1) / 3)
    return manifold.TSNE(perplexity=perplexity, init="pca", random_state=seed).fit_transform(components)
