"""The model that a verb is given: loaded already, or named by its source."""

from pathlib import Path

import torch

from vitrail.device import pick_device
from vitrail.errors import ConfigError
from vitrail.prediction import Predictor, load
from vitrail.prediction.predictor import torch_runtime_of
from vitrail.progress import Progress, working
from vitrail.weights.bundled import DEFAULT


def open_model(
    model: Predictor | str | Path | None, device: str | torch.device = "auto", progress: bool | Progress = False
) -> Predictor:
    """A loaded model as it is, or the one of a source (None: the bundled one) on the device asked for."""
    if not isinstance(model, Predictor):
        source = DEFAULT if model is None else model
        with working(f"loading {source}", speaks=progress is not False):
            return load(source, device=device)
    runtime = torch_runtime_of(model.runtime)
    if device != "auto" and runtime is not None and pick_device(device) != runtime.device:
        raise ConfigError(
            f"device= is for a model that is named by its source; this one is loaded on {runtime.device} already. Use "
            f'vitrail.load(…, device="{device}").'
        )
    return model


def name_of(model: Predictor | str | Path | None) -> str:
    """What a figure calls the model: the last name of its source; of a loaded one, where its weights are from."""
    if isinstance(model, Predictor):
        return model.origin.source or "model"
    return Path(DEFAULT if model is None else model).name or "model"
