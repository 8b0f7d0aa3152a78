"""`audit`: what is probably wrong in a labelled data set, by a model's features. Each list has the worst first."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from vitrail.data.check.scan import PictureFacts, scan
from vitrail.data.source import Dataset, refuse_broken
from vitrail.data.split import SPLITS
from vitrail.errors import WeightsError
from vitrail.evaluation.gaussians import fit_gaussians
from vitrail.evaluation.label_noise import cross_validate, deal_folds, find_wrong_labels
from vitrail.evaluation.measurement import Singles, choose, pick_split, run
from vitrail.evaluation.near_duplicates import (
    Likeness,
    Neighbours,
    Pair,
    center,
    find_duplicates,
    find_neighbours,
    group_pairs,
)
from vitrail.prediction import Predictor
from vitrail.progress import Progress, silent
from vitrail.tasks.one_metrics import Floats, Integers

FENCE = 1.5  # interquartile ranges above the upper quartile from which a distance is unusual: Tukey's fence
MOST_OUTLIERS = 0.05  # of the pictures: where distances have a long tail, only the farthest are listed


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One picture of the data set."""

    key: str
    split: str
    label: str  # the name of its class
    index: int  # in its split


@dataclass(frozen=True, kw_only=True)
class DuplicatePicture:
    """A picture that could go, since another one stays that is the same or nearly."""

    sample: Sample
    other: Sample
    likeness: Likeness
    similarity: float  # of the features, at most 1

    @property
    def rank(self) -> int:
        """How bad it is: 0, the two have different labels; 1, they are in different splits; 2, neither."""
        return 0 if self.sample.label != self.other.label else 1 if self.sample.split != self.other.split else 2


@dataclass(frozen=True, kw_only=True)
class OutlierPicture:
    """A picture that is unlike every class."""

    sample: Sample
    score: float  # interquartile ranges above the upper quartile of all pictures' distances
    nearest: Sample  # the most similar picture
    similarity: float


@dataclass(frozen=True, kw_only=True)
class WrongLabel:
    """A label that may be wrong."""

    sample: Sample
    suggested: str
    probability: float  # of the suggested class
    label_probability: float  # of the label


@dataclass(frozen=True, kw_only=True)
class Audit:
    """What was found in a data set."""

    dataset: Dataset
    pictures: int  # that could be read
    labels: tuple[WrongLabel, ...]
    agreement: float  # the share of the labels that the probes agree with: what their doubts are worth
    duplicates: tuple[DuplicatePicture, ...]
    outliers: tuple[OutlierPicture, ...]
    unjudged: tuple[str, ...] = ()  # classes with one picture, whose label nothing can confirm
    broken: dict[str, str] = field(default_factory=dict[str, str])  # picture → why it could not be read


@dataclass(frozen=True, kw_only=True, eq=False)
class _Pictures:
    """The pictures of all splits; `kept` are the positions of those that could be read, each of which has features."""

    facts: Sequence[PictureFacts]
    classes: tuple[str, ...]
    kept: Integers
    vectors: Singles

    @cached_property
    def labels(self) -> Integers:
        return np.array([self.facts[position].label for position in self.kept], dtype=np.int64)

    def describe(self, position: int) -> Sample:
        fact = self.facts[position]
        return Sample(key=fact.key, split=fact.split, label=self.classes[fact.label], index=fact.index)


def audit(dataset: Dataset, predictor: Predictor, workers: int, progress: Progress = silent) -> Audit:
    """Examine every picture of all splits, and compare its features with those of the others."""
    source = pick_split(dataset, "all")
    with progress("features", len(source)) as advance:
        every = choose(len(source), None)
        kept, vectors, broken = run(predictor, source, every, predictor.runtime.features, progress=advance)
    refuse_broken(broken, len(source), dataset.max_broken_rate)
    if not np.isfinite(vectors).all():
        raise WeightsError(f"{predictor.source or 'the model'}: its features are not finite (NaN or infinite).")
    with progress("thumbnails", len(source)) as advance:
        facts = list(scan(dataset, workers, advance))  # in the order of the features
    pictures = _Pictures(facts=facts, classes=dataset.classes, kept=kept, vectors=vectors)
    centered = center(vectors)
    with progress("comparing", len(kept)) as advance:
        neighbours = find_neighbours(centered, progress=advance)
    pairs = find_duplicates(facts, kept, neighbours)
    groups = group_pairs(pairs, len(facts))
    labels, agreement, unjudged = _find_labels(pictures, groups[kept])
    return Audit(
        dataset=dataset,
        pictures=len(kept),
        labels=labels,
        agreement=agreement,
        duplicates=_pick_duplicates(pictures, pairs, groups, centered),
        outliers=_find_outliers(pictures, neighbours),
        unjudged=unjudged,
        broken=broken,
    )


def _find_labels(pictures: _Pictures, groups: Integers) -> tuple[tuple[WrongLabel, ...], float, tuple[str, ...]]:
    """Labels that may be wrong; the share of all that the probes agree with; and the classes that cannot be judged."""
    labels, classes = pictures.labels, pictures.classes
    several = np.array([len(np.unique(groups[labels == label])) > 1 for label in range(len(classes))])
    judged = np.flatnonzero(several[labels])
    unjudged = tuple(classes[label] for label in np.unique(labels).tolist() if not several[label])
    if not len(judged):
        return (), 0.0, unjudged
    own = labels[judged]
    probabilities = cross_validate(pictures.vectors[judged], own, deal_folds(own, groups[judged]), len(classes))
    found: list[WrongLabel] = []
    for place in find_wrong_labels(probabilities, own).tolist():
        best = int(probabilities[place].argmax())
        found.append(
            WrongLabel(
                sample=pictures.describe(int(pictures.kept[judged[place]])),
                suggested=classes[best],
                probability=float(probabilities[place, best]),
                label_probability=float(probabilities[place, own[place]]),
            )
        )
    return tuple(found), float((probabilities.argmax(axis=1) == own).mean()), unjudged


def _find_outliers(pictures: _Pictures, neighbours: Neighbours) -> tuple[OutlierPicture, ...]:
    """The pictures that are far from every class."""
    scores = score_outliers(pictures.vectors, pictures.labels, len(pictures.classes))
    order = np.argsort(-scores, kind="stable")[: math.ceil(MOST_OUTLIERS * len(scores))]
    return tuple(
        OutlierPicture(
            sample=pictures.describe(int(pictures.kept[place])),
            score=float(scores[place]),
            nearest=pictures.describe(int(pictures.kept[neighbours.positions[place, 0]])),
            similarity=float(neighbours.similarities[place, 0]),
        )
        for place in order.tolist()
        if scores[place] > FENCE
    )


def score_outliers(vectors: Singles, labels: Integers, num_classes: int) -> Floats:
    """(N,) how unlike every class each picture is: relative Mahalanobis distances (Ren et al., 2021).

    That is the distance to the nearest class less the distance to all pictures together, which removes what is unusual
    in directions that tell no classes apart. In interquartile ranges above the upper quartile.
    """
    classes = fit_gaussians(vectors, labels, num_classes)
    whole = fit_gaussians(vectors, np.zeros_like(labels), 1)
    distances = classes.distances(vectors) - whole.distances(vectors)
    low, high = np.quantile(distances, (0.25, 0.75))
    return (distances - high) / max(high - low, 1e-12)


def _pick_duplicates(
    pictures: _Pictures, pairs: Sequence[Pair], groups: Integers, centered: Singles
) -> tuple[DuplicatePicture, ...]:
    """All of a group but one, which stays: from the test split if possible, so that what is measured remains.

    Within a split, the picture with the most pixels stays.
    """

    def worth(position: int) -> tuple[int, int, int]:
        fact = pictures.facts[position]
        return SPLITS.index(fact.split), fact.width * fact.height, -position

    places = {position: place for place, position in enumerate(pictures.kept.tolist())}
    likenesses: dict[tuple[int, int], Likeness] = {(pair.first, pair.other): pair.likeness for pair in pairs}
    members: dict[int, list[int]] = {}
    for position in sorted({position for pair in pairs for position in (pair.first, pair.other)}):
        members.setdefault(int(groups[position]), []).append(position)
    found: list[DuplicatePicture] = []
    for group in members.values():
        stays = max(group, key=worth)
        for position in group:
            if position == stays:
                continue
            found.append(
                DuplicatePicture(
                    sample=pictures.describe(position),
                    other=pictures.describe(stays),
                    likeness=likenesses.get((min(position, stays), max(position, stays)), "near"),  # by way of others
                    similarity=float(centered[places[position]] @ centered[places[stays]]),
                )
            )
    return tuple(sorted(found, key=lambda each: (each.rank, -each.similarity)))
