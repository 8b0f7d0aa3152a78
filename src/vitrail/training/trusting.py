"""The last step of a run: how far to trust the kept weights, measured on validation and stored in their file."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from vitrail.draws import Integers
from vitrail.errors import VitrailError
from vitrail.evaluation.measurement import Measurement
from vitrail.evaluation.trusting import Look, count_pictures, fit_trust
from vitrail.prediction import load
from vitrail.prediction.predictor import Predictor
from vitrail.ranks import Ranks
from vitrail.runtimes.torch_runtime import TorchRuntime
from vitrail.training.building import Setup
from vitrail.training.contents import contents_key
from vitrail.training.kept_features import FOLDER, FeatureStore, backbone_of, features_key
from vitrail.training.listener import Listener
from vitrail.weights.native import read_native, save_checkpoint


def store_trust(setup: Setup, ranks: Ranks, folder: Path, listener: Listener) -> Measurement | None:
    """Calibrate the kept weights on the validation pictures, by all ranks together; test pictures play no part.

    Without such pictures, or with too few, the weights stay as they are; the latter is reported. What was measured is
    returned, for the report.
    """
    if not setup.has_validation:
        return None
    ranks.wait()
    predictor = load(folder, device=ranks.device)
    done, total = 0, count_pictures(setup.dataset)

    def advance(count: int) -> None:
        nonlocal done
        done = min(done + count, total)
        listener.prepared("pictures measured for the calibration", done, total)

    def known(split: str, samples: Integers, order: list[int]) -> Look | None:
        return look_at_kept(setup, predictor, folder, split, samples, order)

    try:
        trust, measurement = fit_trust(predictor, setup.dataset, known=known, progress=advance)
    except VitrailError as error:
        listener.said(f"the model is not calibrated: {error}")
        return None
    finally:
        listener.ended()
    listener.said(f"calibrated {trust.describe()[0]}")
    best = folder / "weights" / "best.safetensors"
    ranks.from_first(lambda: save_checkpoint(replace(read_native(best), trust=trust), best))
    seconds = None if setup.config.start.training.on_features else measurement.seconds  # of the head only
    return replace(measurement, trust=trust, seconds=seconds)


def look_at_kept(
    setup: Setup, predictor: Predictor, folder: Path, split: str, samples: Integers, order: list[int]
) -> Look | None:
    """What the head makes of the features on which it was trained, which are not computed again; None if it was not."""
    if not setup.config.start.training.on_features:
        return None
    source = setup.dataset.split(split)
    key = features_key(backbone_of(setup.model, setup.preprocess), source, contents_key(folder, source))
    kept = FeatureStore(folder=folder / FOLDER, split=split, key=key, count=len(source)).read_whole()
    if kept is None:
        return None
    chosen = torch.from_numpy(np.isin(kept.indices.numpy(), samples))
    features, runtime = kept.features[chosen], predictor.runtime
    assert isinstance(runtime, TorchRuntime)
    logits = runtime.run(runtime.model.classify, features).numpy()[:, order]
    there: Integers = kept.indices[chosen].numpy()
    lost = {source.key(int(index)): "cannot be read" for index in np.setdiff1d(samples, there)}
    return Look(there, np.ascontiguousarray(logits), features.numpy(), lost)
