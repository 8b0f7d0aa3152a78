"""Wrong labels are found; cleanlab agrees on which they are."""

import numpy as np
import pytest
from cleanlab.filter import find_label_issues

from vitrail.evaluation.label_noise import FOLDS, cross_validate, deal_folds, find_wrong_labels


def blobs(count: int = 400, num_classes: int = 5, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Features that overlap a little, and their classes."""
    random = np.random.default_rng(seed)
    truth = random.integers(0, num_classes, count)
    means = 2.2 * random.normal(size=(num_classes, 8))
    return (means[truth] + random.normal(size=(count, 8))).astype(np.float32), truth


def flip(truth: np.ndarray, share: float, num_classes: int, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    flipped = random.permutation(len(truth))[: round(share * len(truth))]
    labels = truth.copy()
    labels[flipped] = (labels[flipped] + random.integers(1, num_classes, len(flipped))) % num_classes
    return labels, flipped


def test_folds_keep_groups_together_and_classes_apart() -> None:
    labels = np.repeat(np.arange(7), 31)
    groups = np.arange(len(labels))
    groups[10:16] = 10
    groups[40:44] = 3  # of another class
    folds = deal_folds(labels, groups)
    assert all(len(set(folds[groups == group])) == 1 for group in np.unique(groups))
    counts = np.array([np.bincount(folds[labels == label], minlength=FOLDS) for label in range(2, 7)])
    assert counts.max() - counts.min() <= 1
    twos = deal_folds(np.array([0, 0, 1, 1]), np.arange(4))
    assert twos[0] != twos[1]
    assert twos[2] != twos[3], "the others of a class can always be learned from"


def test_flipped_labels_come_first() -> None:
    vectors, truth = blobs()
    labels, flipped = flip(truth, 0.05, 5)
    probabilities = cross_validate(vectors, labels, deal_folds(labels, np.arange(400)), 5)
    assert probabilities.sum(1) == pytest.approx(np.ones(400), abs=1e-4)
    suspects = find_wrong_labels(probabilities, labels)
    assert len(set(suspects[:20]) & set(flipped)) >= 18
    assert len(suspects) <= 40
    assert (probabilities[suspects].argmax(1) != labels[suspects]).all()
    assert len(find_wrong_labels(cross_validate(vectors, truth, deal_folds(truth, np.arange(400)), 5), truth)) <= 12


@pytest.mark.parametrize("seed", range(3))
def test_cleanlab_suspects_the_same(seed: int) -> None:
    vectors, truth = blobs(600, seed=seed)
    labels, _ = flip(truth, 0.08, 5, seed)
    probabilities = cross_validate(vectors, labels, deal_folds(labels, np.arange(600)), 5)
    theirs = set(np.flatnonzero(find_label_issues(labels, probabilities, filter_by="prune_by_class", n_jobs=1)))
    ours = set(find_wrong_labels(probabilities, labels).tolist())
    assert len(theirs) > 20
    assert len(ours ^ theirs) <= 2  # they round the numbers of a class in another way


def test_copies_do_not_vouch_for_each_others_wrong_label() -> None:
    vectors, truth = blobs(200)
    vectors, labels = np.concatenate([vectors, np.repeat(vectors[:1], 30, axis=0)]), truth.copy()
    labels = np.concatenate([labels, np.full(30, truth[0])])
    wrong = (truth[0] + 1) % 5
    copies = np.array([0, *range(200, 230)])
    labels[copies] = wrong
    groups = np.arange(230)
    apart = cross_validate(vectors, labels, deal_folds(labels, groups), 5)
    groups[copies] = 0
    together = cross_validate(vectors, labels, deal_folds(labels, groups), 5)
    assert apart[copies, wrong].min() > 0.5
    assert together[copies, wrong].max() < 0.1
