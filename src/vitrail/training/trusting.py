"""The last step of a run: how far to trust the kept weights, measured on validation and stored in their file."""

from dataclasses import replace
from pathlib import Path

from vitrail.errors import VitrailError
from vitrail.evaluation.trusting import count_pictures, fit_trust
from vitrail.prediction import load
from vitrail.ranks import Ranks
from vitrail.training.building import Setup
from vitrail.training.listener import Listener
from vitrail.weights.native import read_native, save_checkpoint


def store_trust(setup: Setup, ranks: Ranks, folder: Path, listener: Listener) -> None:
    """Calibrate the kept weights on the validation pictures, by all ranks together; test pictures play no part.

    Without such pictures, or with too few, the weights stay as they are; the latter is reported.
    """
    if not setup.has_validation:
        return
    ranks.wait()
    predictor = load(folder, device=ranks.device)
    done, total = 0, count_pictures(setup.dataset)

    def advance(count: int) -> None:
        nonlocal done
        done = min(done + count, total)
        listener.prepared("pictures measured for the calibration", done, total)

    try:
        trust, _ = fit_trust(predictor, setup.dataset, progress=advance)
    except VitrailError as error:
        listener.said(f"the model is not calibrated: {error}")
        return
    finally:
        listener.ended()
    listener.said(f"calibrated {trust.describe()[0]}")
    best = folder / "weights" / "best.safetensors"
    ranks.from_first(lambda: save_checkpoint(replace(read_native(best), trust=trust), best))
