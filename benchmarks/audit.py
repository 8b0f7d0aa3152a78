"""What `vitrail data audit` finds of planted faults: flipped labels, near duplicates, pictures of something else.

    python -m benchmarks.audit PHOTOGRAPHS --weights MODEL [--split test] [--others FOLDER]

- labels: 3 % are flipped at random, with several seeds. The share of the flips among the first 3 % of the list.
- duplicates: a third of the photographs get a copy that is resized, recompressed or mirrored, or several of these.
  Recall and precision of the pairs that are reported; two photographs that were the same before count as mistaken.
- outliers: noise, plain colours, handwritten digits, and the pictures of `--others`, labelled at random. The area under
  the ROC curve of their scores.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import vitrail
from benchmarks.timing import print_machine
from vitrail.data.pixels import EXTENSIONS
from vitrail.data.sheet import load_picture
from vitrail.data.source import Dataset
from vitrail.evaluation.audit import score_outliers
from vitrail.evaluation.label_noise import cross_validate, deal_folds, find_wrong_labels
from vitrail.evaluation.measurement import pick_split
from vitrail.evaluation.ood import area_under_roc
from vitrail.evaluation.probe import extract
from vitrail.prediction import Predictor

FLIPPED = 0.03
SEEDS = range(100, 130)  # others than those on which the method was chosen
SIZES = (0.25, 0.33, 0.5, 0.75, 1.5, 2.0)
QUALITIES = (10, 20, 40, 60, 85)
KINDS = (("size",), ("quality",), ("mirror",), ("size", "quality"), ("size", "mirror"), ("size", "quality", "mirror"))


def measure_labels(vectors: Any, labels: Any, num_classes: int) -> None:
    count = round(FLIPPED * len(labels))
    shares: list[float] = []
    listed: list[int] = []
    for seed in SEEDS:
        random = np.random.default_rng(seed)
        flipped = random.permutation(len(labels))[:count]
        noisy = labels.copy()
        noisy[flipped] = (noisy[flipped] + random.integers(1, num_classes, count)) % num_classes
        folds = deal_folds(noisy, np.arange(len(noisy)))
        suspects = find_wrong_labels(cross_validate(vectors, noisy, folds, num_classes), noisy)
        shares.append(len(set(suspects[:count]) & set(flipped)) / count)
        listed.append(len(suspects))
    spread = f"{len(SEEDS)} seeds, {min(shares):.1%} to {max(shares):.1%}"
    print(f"labels: {count} of {len(labels):,} flipped; {np.mean(shares):.1%} among the first {count} ({spread})")
    print(f"        {np.mean(listed):.0f} listed on average")


def measure_outliers(predictor: Predictor, vectors: Any, labels: Any, num_classes: int, others: Path | None) -> None:
    random = np.random.default_rng(0)
    digits = vitrail.open_data("digits").split("test")
    plain = [Image.new("RGB", (224, 224), tuple(random.integers(0, 256, 3).tolist())) for _ in range(5)]
    odd: dict[str, list[Any]] = {
        "noise": [random.integers(0, 256, (224, 224, 3), dtype=np.uint8) for _ in range(5)],
        "plain colours": plain,
        "digits": [picture for index in range(10) if (picture := load_picture(digits, index)) is not None],
    }
    if others is not None:
        odd[others.name] = [str(path) for path in sorted(others.rglob("*")) if path.suffix.lower() in EXTENSIONS][:50]
    odd["all of them"] = [picture for pictures in odd.values() for picture in pictures]
    for name, pictures in odd.items():
        more = np.stack([each.vector for each in predictor.embed(pictures) if each.vector is not None])
        their = random.integers(0, num_classes, len(more))
        scores = score_outliers(np.concatenate([vectors, more]), np.concatenate([labels, their]), num_classes)
        area = area_under_roc(scores[len(labels) :], scores[: len(labels)])
        print(f"outliers: {name} ({len(more)}): area under the ROC curve {area:.3f}")


def plant_copies(data: Dataset, folder: Path) -> set[frozenset[str]]:
    """The photographs and, for a third of them, a copy; the pairs."""
    random = np.random.default_rng(0)
    everything = [(split, index) for split, source in data.splits.items() for index in range(len(source))]
    chosen = {tuple(everything[place]) for place in random.permutation(len(everything))[: len(everything) // 3]}
    pairs: set[frozenset[str]] = set()
    for number, (split, index) in enumerate(everything):
        source = data.splits[split]
        image = load_picture(source, index)
        if image is None:
            continue
        label = f"class {source.labels[index]}"
        own, copy = Path(split, label, f"{number}.png"), Path(str(random.choice(["train", "val"])), label)
        for path in (folder / own.parent, folder / copy):
            path.mkdir(parents=True, exist_ok=True)
        image.save(folder / own, compress_level=1)
        if (split, index) in chosen:
            kind, copy = KINDS[len(pairs) % len(KINDS)], copy / f"{number}-copy.jpg"
            share = float(random.choice(SIZES)) if "size" in kind else 1.0
            edited = image.resize((round(image.width * share), round(image.height * share)))
            if "mirror" in kind:
                edited = edited.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
            edited.save(folder / copy, quality=int(random.choice(QUALITIES)) if "quality" in kind else 92)
            pairs.add(frozenset((own.as_posix(), copy.as_posix())))
    return pairs


def measure_duplicates(data: Dataset, predictor: Predictor) -> None:
    with tempfile.TemporaryDirectory() as place:
        pairs = plant_copies(data, Path(place))
        audit = vitrail.audit_data(place, weights=predictor)
    found = {frozenset((each.sample.key, each.other.key)) for each in audit.duplicates}
    recall, precision = len(found & pairs) / len(pairs), len(found & pairs) / max(len(found), 1)
    print(f"duplicates: {len(pairs)} planted, {len(found)} reported; recall {recall:.1%}, precision {precision:.1%}")
    for pair in sorted(map(sorted, found - pairs)):
        print(f"        mistaken: {' and '.join(pair)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--weights", required=True)
    parser.add_argument("--split", default="", help="only this split, which the model was not trained on")
    parser.add_argument("--others", type=Path, help="a folder of pictures of other things")
    options = parser.parse_args()
    print_machine()
    data, predictor = vitrail.open_data(options.data), vitrail.load(options.weights, runtime="auto")
    features = extract(predictor, pick_split(data, options.split or "all"))
    measure_labels(features.vectors, features.labels, len(data.classes))
    measure_outliers(predictor, features.vectors, features.labels, len(data.classes), options.others)
    if not options.split:
        measure_duplicates(data, predictor)


if __name__ == "__main__":
    main()
