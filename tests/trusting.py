"""A calibration for the tiny model of the tests, made from its own answers to noise."""

from dataclasses import replace
from typing import Any

import numpy as np

from vitrail.evaluation.ood import fit_familiarity
from vitrail.prediction import Predictor
from vitrail.tasks.one import OneTrust
from vitrail.tasks.one_calibration import fit_sets


def make_trust(predictor: Predictor, count: int = 200, *, unsure: bool = False, **changes: Any) -> OneTrust:
    """As `fit_trust` makes it, but with labels that are drawn."""
    generator = np.random.default_rng(0)
    spec = predictor.preprocess
    images = generator.normal(size=(count, spec.channels, *spec.size)).astype(np.float32)
    logits, features = predictor.runtime.logits_and_features(images)
    labels = np.where(generator.random(count) < 0.7, logits.argmax(1), generator.integers(0, logits.shape[1], count))
    plain = replace(OneTrust(data="noise, val", pictures=count, temperature=1.5, smoothing=0.05), **changes)
    known = fit_familiarity(features, np.arange(count) % 2, features, (logits, logits) if unsure else None)
    return replace(plain, sets=fit_sets(logits, labels, plain), familiarity=known)


def with_trust(predictor: Predictor, **changes: Any) -> Predictor:
    return replace(predictor, trust=make_trust(predictor, **changes))
