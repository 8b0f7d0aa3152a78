"""The model that a verb is given: loaded already, or named by its source."""

from pathlib import Path

import torch

from vitrail.device import pick_device
from vitrail.errors import ConfigError
from vitrail.prediction import Predictor, TorchRuntime, load
from vitrail.progress import Progress, working
from vitrail.weights.bundled import DEFAULT
from vitrail.weights.class_names import ClassNames, read_class_names


def check_model(
    model: Predictor | str | Path | None, device: str | torch.device = "auto", classes: ClassNames | None = None
) -> None:
    """Refuse settings that are wrong, or that come too late for a loaded model; the model itself is not looked for."""
    place = pick_device(device)
    if classes is not None:
        read_class_names(classes)
    if not isinstance(model, Predictor):
        return
    runtime = model.runtime
    moves = device != "auto" and not (isinstance(runtime, TorchRuntime) and runtime.device == place)
    given = [name for name, changes in (("classes=", classes is not None), ("device=", moves)) if changes]
    if given:
        raise ConfigError(f"{' and '.join(given)} cannot change a loaded model; pass it to vitrail.load instead.")


def open_model(
    model: Predictor | str | Path | None,
    device: str | torch.device = "auto",
    classes: ClassNames | None = None,
    *,
    progress: bool | Progress = False,
) -> Predictor:
    """A loaded model as it is, or the one of a source (None: the bundled one) on the device asked for."""
    check_model(model, device, classes)
    if isinstance(model, Predictor):
        return model
    source = DEFAULT if model is None else model
    with working(f"loading {source}", speaks=progress is not False):
        return load(source, class_names=classes, device=device)


def name_of(model: Predictor | str | Path | None) -> str:
    """What a figure calls the model: the last name of its source; of a loaded one, where its weights are from."""
    if isinstance(model, Predictor):
        return model.origin.source or "model"
    return Path(DEFAULT if model is None else model).name or "model"
