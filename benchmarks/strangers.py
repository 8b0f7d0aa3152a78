"""How well models know what they do not know: the pictures of a data set against strangers.

    python -m benchmarks.strangers MODEL… --data cifar10 --data-dir DIR [--fashion-mnist DIR] [--photographs FOLDER…]
        [--known english_springer garbage_truck] [--scores]

For each model and each set of strangers: the area under the ROC curve of familiarity (`vitrail predict` computes the
same), the share of strangers that pass where 95 % of the data set's test pictures do, the share that the model calls
familiar, and the share that it calls familiar with a probability above 70 %; then the same two shares for a model that
is calibrated with another `--unfamiliar-rate`: 5, 10 or 20 %. Strangers are noise,
scikit-learn's digits, Fashion-MNIST's test pictures, and folders of class folders of photographs, of which classes that
the model knows are left out (`--known`). `--scores` also compares ways to tell strangers, each fitted on training
pictures. Pass other pictures to choose by than those whose figures you report.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import vitrail
from benchmarks.trust import KNOWN, Array, Numbers, familiarity_methods, look
from vitrail.data import DataConfig, Dataset, open_data
from vitrail.data.source import ArraySource, Source
from vitrail.evaluation.measurement import pick_split
from vitrail.evaluation.ood import PASSING, TRAINING_PICTURES, area_under_roc
from vitrail.prediction import Predictor
from vitrail.tasks.familiarity import spreads

SURE = 0.7  # the probability above which an answer sounds sure
RATES = (0.05, 0.1, 0.2)  # of ordinary pictures that are marked, beside the rate of the model
MOST = 2000  # strangers of a kind
NOISE = 500  # pictures of noise


def noise(size: tuple[int, int]) -> ArraySource:
    """Pixels drawn evenly, and blurred ones."""
    generator = np.random.default_rng(0)
    pixels = generator.integers(0, 256, (NOISE, 3, *size)).astype(np.float64)
    smooth = pixels[NOISE // 2 :]
    for axis in (2, 3):
        smooth = (np.roll(smooth, 1, axis) + smooth + np.roll(smooth, -1, axis)) / 3
    spread = (smooth - smooth.mean()) / smooth.std() * 60 + 128
    both = np.concatenate([pixels[: NOISE // 2], np.clip(spread, 0, 255)])
    return ArraySource(torch.from_numpy(both.astype(np.uint8)), np.zeros(NOISE, dtype=np.int64), "noise")


def photographs(folder: Path, known: list[str]) -> Source:
    """The pictures of a data set's folder but for those of classes that the model knows."""
    data = open_data(folder)
    everything = pick_split(data, "all")
    return everything.select([row for row, label in enumerate(everything.labels) if data.classes[label] not in known])


def open_strangers(asked: argparse.Namespace, size: tuple[int, int]) -> dict[str, Source]:
    """Every kind of strangers, by name."""
    sources: dict[str, Source] = {"noise": noise(size), "digits": pick_split(open_data("digits"), "all")}
    if asked.fashion_mnist is not None:
        sources["Fashion-MNIST"] = open_data(asked.fashion_mnist).split("test")
    return sources | {folder.name: photographs(folder, asked.known) for folder in asked.photographs}


def print_strangers(console: Console, model: Predictor, name: str, own: Numbers, strangers: dict[str, Numbers]) -> None:
    """What the model's own familiarity makes of strangers."""
    assert model.trust is not None
    known = model.trust.familiarity
    assert known is not None, "the model cannot tell what is familiar; run vitrail calibrate"
    right = (own[0].argmax(axis=1) == own[2]).mean()
    marked = ~known.accepts(known.shares(known.scores(own[1], own[0])))
    title = f"{name}: {right:.2%} right, {marked.mean():.1%} marked"
    rates = (known.unfamiliar_rate, *(each for each in RATES if each != known.unfamiliar_rate))
    table = Table(title, "pictures", "AUROC", "FPR95", *(f"familiar, and sure, at {each:.0%}" for each in rates))
    for kind, numbers in strangers.items():
        usual, scores = known.scores(own[1], own[0]), known.scores(numbers[1], numbers[0])
        shares, sure = known.shares(scores), model.probabilities(numbers[0]).max(axis=1) > SURE
        passed = (scores >= np.quantile(usual, 1 - PASSING)).mean()
        cells = [f"{area_under_roc(usual, scores):.3f}", f"{passed:.1%}"]
        cells += [
            f"{familiar.mean():.1%}, {(familiar & sure).mean():.1%}" for familiar in (shares >= each for each in rates)
        ]
        table.add_row(kind, str(len(scores)), *cells)
    console.print(table)


def print_scores(console: Console, train: Numbers, val: Numbers, own: Numbers, strangers: dict[str, Numbers]) -> None:
    """Ways to tell strangers: AUROC, and the share that passes where 95 % of the test pictures do."""
    methods: dict[str, Callable[[Numbers], Array]] = familiarity_methods(train, val)
    methods["maximum minus mean logit"] = lambda it: it[0].max(axis=1) - it[0].mean(axis=1)
    methods["spread of the logits"] = lambda it: spreads(it[0])
    table = Table("score", *strangers)
    for name, score in methods.items():
        usual = score(own)
        cells = [
            f"{area_under_roc(usual, scores):.3f}, {(scores >= np.quantile(usual, 1 - PASSING)).mean():.1%}"
            for scores in map(score, strangers.values())
        ]
        table.add_row(name, *cells)
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", help="checkpoints, by their names or paths")
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--fashion-mnist", type=Path)
    parser.add_argument("--photographs", type=Path, nargs="*", default=[])
    parser.add_argument("--known", nargs="*", default=list(KNOWN))
    parser.add_argument("--scores", action="store_true")
    asked = parser.parse_args()
    data: Dataset = open_data(asked.data, DataConfig(data_dir=asked.data_dir)).with_validation(0.05, 0)
    console = Console(width=160)
    for name in asked.models:
        model = vitrail.load(name)
        size = model.preprocess.size
        strangers = {kind: look(model, source, MOST) for kind, source in open_strangers(asked, size).items()}
        own = look(model, data.split("test"))
        print_strangers(console, model, name, own, strangers)
        if asked.scores:
            train, val = look(model, data.split("train"), TRAINING_PICTURES), look(model, data.split("val"))
            print_scores(console, train, val, own, strangers)


if __name__ == "__main__":
    main()
