"""How far the bundled model can be trusted, by several methods: the tables of docs/trust.md.

    python -m benchmarks.trust --cifar DIR [--fashion-mnist DIR] [--photographs FOLDER] [--splits 40]

DIR holds CIFAR-10, or Fashion-MNIST's idx files; FOLDER holds class folders of photographs, of which those named in
`KNOWN` are left out because CIFAR-10 has such pictures; scikit-learn's digits are always there. Everything is fitted on
the 2,500 validation pictures that the model was not trained on (and, for familiarity, on some training pictures).
`halves` fits on one half of them and measures on the other, over several splits: that is what the choices were made
by. The test pictures are measured with the same code, and decide nothing.
"""

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.special import logsumexp

import vitrail
from vitrail.data import DataConfig, open_data
from vitrail.data.source import Source
from vitrail.evaluation.measurement import choose, pick_split, run
from vitrail.evaluation.ood import TRAINING_PICTURES, area_under_roc, fit_familiarity
from vitrail.prediction import Predictor
from vitrail.tasks import one_metrics as metrics
from vitrail.tasks.one import calibrate
from vitrail.tasks.one_calibration import Scaling, fit_scaling

Array = np.ndarray[Any, Any]
Numbers = tuple[Array, Array, Array]  # logits, features, labels
KNOWN = ("english_springer", "garbage_truck")  # photographs of a dog and of trucks
LEVELS = (0.9, 0.95, 0.99)


def look(predictor: Predictor, source: Source, limit: int | None = None) -> Numbers:
    """The logits, features and labels of pictures."""
    width = predictor.num_classes

    def compute(images: Array) -> Array:
        return np.concatenate(predictor.runtime.logits_and_features(images), axis=1)

    kept, numbers, _ = run(predictor, source, choose(len(source), limit), compute)
    return numbers[:, :width].astype(np.float64), numbers[:, width:].astype(np.float64), source.labels[kept]


# Probabilities ------------------------------------------------------------------------------------------------------


def only_temperature(logits: Array, targets: Array) -> Scaling:
    grid = np.exp(np.linspace(math.log(0.5), math.log(2), 400))
    losses = [metrics.measure(logits / number, targets).nll for number in grid]
    return Scaling(float(grid[int(np.argmin(losses))]))


def print_calibration(console: Console, val: Numbers, test: Numbers, splits: int) -> None:
    table = Table(
        "probabilities", "temperature", "evenly spread", "ECE, halves", "NLL, halves", "ECE, test", "NLL, test"
    )
    fits: dict[str, Callable[[Array, Array], Scaling | None]] = {
        "as they are": lambda *_: Scaling(),
        "temperature": only_temperature,
        "temperature and evenly spread share (ours)": fit_scaling,
    }
    for name, fit in fits.items():
        halved: list[tuple[float, float]] = []
        for one, other in halves(len(val[0]), splits):
            halved.append(errors(val[0][other], val[2][other], fit(val[0][one], val[2][one]) or Scaling()))
        scaling = fit(val[0], val[2]) or Scaling()
        ece, nll = np.mean(halved, axis=0)
        after = errors(test[0], test[2], scaling)
        cells = (f"{scaling.temperature:.3f}", f"{scaling.smoothing:.1%}", f"{ece:.2%}", f"{nll:.4f}")
        table.add_row(name, *cells, f"{after[0]:.2%}", f"{after[1]:.4f}")
    console.print(table)


def errors(logits: Array, targets: Array, scaling: Scaling) -> tuple[float, float]:
    measured = metrics.measure(calibrate(logits, *scaling), targets)
    return measured.calibration.error, measured.nll


def halves(count: int, splits: int) -> list[tuple[Array, Array]]:
    orders = [np.random.default_rng(seed).permutation(count) for seed in range(splits)]
    return [(order[: count // 2], order[count // 2 :]) for order in orders]


# Label sets ---------------------------------------------------------------------------------------------------------


def rank_scores(shares: Array, method: str, penalty: float = 0.0, free: int = 1) -> Array:
    """The scores of all labels in the order of their ranks."""
    ranked = -np.sort(-shares, axis=1)
    beyond = penalty * np.maximum(np.arange(1, shares.shape[1] + 1) - free, 0)
    if method == "LAC":
        return 1 - ranked
    drawn = np.random.default_rng(0).random((len(shares), 1)) if method == "random" else 0.0
    return np.cumsum(ranked, axis=1) - ranked + drawn * ranked + beyond


def cover(val: tuple[Array, Array], other: tuple[Array, Array], level: float, **settings: Any) -> tuple[float, ...]:
    """Coverage, mean size and the share of empty sets on other pictures."""
    own = np.sort(rank_scores(val[0], **settings)[np.arange(len(val[0])), rank_of(*val)])
    threshold = own[math.ceil((len(own) + 1) * level) - 1]
    sizes = (rank_scores(other[0], **settings) <= threshold).sum(axis=1)
    return float((rank_of(*other) < sizes).mean()), float(sizes.mean()), float((sizes == 0).mean())


def rank_of(shares: Array, targets: Array) -> Array:
    return metrics.answer(np.log(np.maximum(shares, 1e-300)), targets).rank


def print_sets(console: Console, val: Numbers, test: Numbers, splits: int) -> None:
    scaling = fit_scaling(val[0], val[2]) or Scaling()
    shares, others = (np.exp(calibrate(numbers[0], *scaling)) for numbers in (val, test))
    methods: dict[str, dict[str, Any]] = {
        "LAC: 1 - probability": {"method": "LAC"},
        "APS, randomised": {"method": "random"},
        "RAPS 0.1, randomised": {"method": "random", "penalty": 0.1},
        "APS, mass ahead": {"method": "ahead"},
        "RAPS 0.01, mass ahead (ours)": {"method": "ahead", "penalty": 0.01},
        "RAPS 0.05, mass ahead": {"method": "ahead", "penalty": 0.05},
    }
    for level in LEVELS:
        table = Table(
            f"label sets, {level:.0%}", "held, halves", "labels, halves", "held, test", "labels, test", "empty"
        )
        for name, settings in methods.items():
            parts = [
                cover((shares[one], val[2][one]), (shares[two], val[2][two]), level, **settings)
                for one, two in halves(len(shares), splits)
            ]
            held, size, _ = np.mean(parts, axis=0)
            after = cover((shares, val[2]), (others, test[2]), level, **settings)
            cells = (f"{held:.2%}", f"{size:.3f}", f"{after[0]:.2%}", f"{after[1]:.3f}", f"{after[2]:.1%}")
            table.add_row(name, *cells)
        console.print(table)


# Familiarity --------------------------------------------------------------------------------------------------------


def familiarity_methods(train: Numbers, val: Numbers) -> dict[str, Callable[[Numbers], Array]]:
    """Method → a score for each picture, higher where it is more familiar."""
    known = fit_familiarity(train[1], train[2], val[1])
    assert known is not None
    mean = train[1].mean(axis=0)
    centres = np.stack([train[1][train[2] == label].mean(axis=0) for label in np.unique(train[2])])
    within, whole = train[1] - centres[train[2]], train[1] - mean
    precision, marginal = (np.linalg.inv(part.T @ part / len(part)) for part in (within, whole))
    vectors = np.linalg.eigh(whole.T @ whole)[1][:, :-32]
    directions = train[1] / np.linalg.norm(train[1], axis=1, keepdims=True)

    def distance(features: Array) -> Array:
        return np.min([_square(features - centre, precision) for centre in centres], axis=0)

    def nearest(features: Array) -> Array:
        unit = features / np.linalg.norm(features, axis=1, keepdims=True)
        return np.partition(unit @ directions.T, -10, axis=1)[:, -10]

    def residual(features: Array) -> Array:
        return np.linalg.norm((features - mean) @ vectors, axis=1)

    scale = train[0].max(axis=1).mean() / residual(train[1]).mean()
    return {
        "probability": lambda it: it[0].max(axis=1) - energy(it[0]),
        "maximum logit": lambda it: it[0].max(axis=1),
        "energy": lambda it: energy(it[0]),
        f"10th nearest of {TRAINING_PICTURES:,}, cosine": lambda it: nearest(it[1]),
        "ViM, 32 directions": lambda it: energy(it[0]) - scale * residual(it[1]),
        "Mahalanobis, one centre": lambda it: -_square(it[1] - mean, marginal),
        "Mahalanobis, relative": lambda it: _square(it[1] - mean, marginal) - distance(it[1]),
        "Mahalanobis, class centres": lambda it: -distance(it[1]),
        "the same, 32 directions (ours)": lambda it: known.scores(it[1]),
    }


def energy(logits: Array) -> Array:
    return np.asarray(logsumexp(logits, axis=1))


def _square(offsets: Array, precision: Array) -> Array:
    return ((offsets @ precision) * offsets).sum(axis=1)


def print_familiarity(
    console: Console, train: Numbers, val: Numbers, test: Numbers, others: dict[str, Numbers]
) -> None:
    table = Table("familiarity: AUROC, FPR at 95 % TPR", *others, "mean AUROC")
    for name, score in familiarity_methods(train, val).items():
        own = score(test)
        cells: list[str] = []
        areas: list[float] = []
        for strange in map(score, others.values()):
            areas.append(area_under_roc(own, strange))
            passed = (strange >= np.quantile(own, 0.05)).mean()
            cells.append(f"{areas[-1]:.3f}, {passed:.1%}")
        table.add_row(name, *cells, f"{np.mean(areas):.3f}")
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cifar", type=Path, required=True)
    parser.add_argument("--fashion-mnist", type=Path)
    parser.add_argument("--photographs", type=Path)
    parser.add_argument("--splits", type=int, default=40)
    asked = parser.parse_args()
    predictor, console = vitrail.load(), Console(width=160)
    data = open_data("cifar10", DataConfig(data_dir=asked.cifar)).with_validation(0.05, 0)  # as it was trained
    val, test = (look(predictor, data.split(name)) for name in ("val", "test"))
    train = look(predictor, data.split("train"), TRAINING_PICTURES)
    print_calibration(console, val, test, asked.splits)
    print_sets(console, val, test, asked.splits)
    others = {"digits": look(predictor, pick_split(open_data("digits"), "all"))}
    if asked.fashion_mnist is not None:
        others["Fashion-MNIST"] = look(predictor, open_data(asked.fashion_mnist).split("test"))
    if asked.photographs is not None:
        photographs = open_data(asked.photographs)
        everything = pick_split(photographs, "all")
        names = [photographs.classes[label] for label in everything.labels]
        others["photographs"] = look(
            predictor, everything.select([index for index, name in enumerate(names) if name not in KNOWN])
        )
    print_familiarity(console, train, val, test, others)


if __name__ == "__main__":
    main()
