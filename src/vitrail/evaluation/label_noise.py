"""Labels that are probably wrong: confident learning (Northcutt et al., 2021) on cross-validated probes.

Each picture is judged by a linear probe that has seen neither it nor a near duplicate of it: copies of one picture
would vouch for each other's wrong label. cleanlab is the oracle of the tests.
"""

import numpy as np

from vitrail.evaluation.gaussians import fit_gaussians
from vitrail.evaluation.measurement import Singles
from vitrail.rng import permutation
from vitrail.tasks.one import calibrate
from vitrail.tasks.one_calibration import fit_scaling
from vitrail.tasks.one_metrics import Integers

FOLDS = 5
LEAST = -100.0  # a log-probability that stands for none
ROWS = 4096  # that are calibrated together


def deal_folds(labels: Integers, groups: Integers) -> Integers:
    """The fold of each picture: groups stay together, and each class is dealt out to all folds in turn."""
    firsts = np.unique(groups, return_index=True)[1]
    order = permutation(0, 0, len(firsts), "folds")
    order = order[np.argsort(labels[firsts[order]], kind="stable")]  # class by class, each in a random order
    folds = np.empty(len(firsts), dtype=np.int64)
    folds[order] = np.arange(len(order)) % FOLDS
    return folds[np.unique(groups, return_inverse=True)[1]]


def cross_validate(vectors: Singles, labels: Integers, folds: Integers, num_classes: int) -> Singles:
    """The probability of each class (N, K), from a probe on the other folds; one temperature makes them honest."""
    logs = np.full((len(labels), num_classes), LEAST, dtype=np.float32)
    for fold in np.unique(folds):
        held = folds == fold
        mean, std = vectors[~held].mean(axis=0), vectors[~held].std(axis=0)
        scaled = (vectors - mean) / np.where(std > 0, std, 1)
        probe = fit_gaussians(scaled[~held], labels[~held], num_classes)
        logs[held] = np.maximum(probe.log_posteriors(scaled[held]), LEAST)
    scaling = fit_scaling(logs, labels)
    for start in range(0, len(logs), ROWS):
        rows = slice(start, start + ROWS)
        logs[rows] = np.exp(calibrate(logs[rows], 1.0 if scaling is None else scaling.temperature, 0.0))
    return logs


def find_wrong_labels(probabilities: Singles, labels: Integers) -> Integers:
    """The pictures whose labels are probably wrong, the most suspicious first.

    A picture counts as truly of a class if that is at least as probable as it is for the class's own pictures on
    average. This estimates how many labels of each class are wrong: as many of its least probable ones are returned,
    except for those whose label is the most probable class.
    """
    count, num_classes = probabilities.shape
    own = probabilities[np.arange(count), labels]
    sizes = np.bincount(labels, minlength=num_classes)
    thresholds = np.bincount(labels, weights=own, minlength=num_classes) / np.maximum(sizes, 1)
    above = np.where(probabilities >= thresholds, probabilities, -1.0)
    true = above.argmax(axis=1)
    counted = above.max(axis=1) >= 0
    joint = np.zeros((num_classes, num_classes), dtype=np.int64)  # label × true class
    np.add.at(joint, (labels[counted], true[counted]), 1)
    seen = joint.sum(axis=1)
    wrong = np.where(seen > 0, 1 - np.diagonal(joint) / np.maximum(seen, 1), 0.0) * sizes
    suspects: list[int] = []
    for label, number in enumerate(np.rint(wrong).astype(np.int64)):
        members = np.flatnonzero(labels == label)
        suspects += members[np.argsort(own[members], kind="stable")[:number]].tolist()
    chosen = np.array(suspects, dtype=np.int64)
    best = probabilities[chosen].max(axis=1)
    order = np.argsort(own[chosen] / best, kind="stable")  # the odds, whose order no temperature changes
    return chosen[order][(own[chosen] < best)[order]]
