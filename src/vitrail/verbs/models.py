"""The model that a verb gets: already loaded, or named by its source."""

from pathlib import Path

import torch

from vitrail.device import pick_device
from vitrail.errors import ConfigError
from vitrail.prediction import Predictor, TorchRuntime, load
from vitrail.progress import Progress, working
from vitrail.weights.bundled import DEFAULT


def open_model(
    model: Predictor | str | Path | None, device: str | torch.device = "auto", progress: bool | Progress = False
) -> Predictor:
    """A loaded model as it is, or the model at a source (None: the bundled one) on the requested device."""
    if not isinstance(model, Predictor):
        source = DEFAULT if model is None else model
        with working(f"loading {source}", speaks=progress is not False):
            return load(source, device=device)
    runtime = model.runtime
    if device != "auto" and isinstance(runtime, TorchRuntime) and pick_device(device) != runtime.device:
        raise ConfigError(
            f"device= is for a model that is named by its source; this one is already loaded on {runtime.device}. Use "
            f'vitrail.load(…, device="{device}").'
        )
    return model


def name_of(model: Predictor | str | Path | None) -> str:
    """The model's name in figures: the last part of its source; for a loaded one, where its weights are from."""
    if isinstance(model, Predictor):
        return model.origin.source or "model"
    return Path(DEFAULT if model is None else model).name or "model"
