"""The model that a verb gets: already loaded, or named by its source."""

from pathlib import Path
from typing import TYPE_CHECKING

from vitrail.errors import ConfigError
from vitrail.machine import check_device, pick_device
from vitrail.prediction import Predictor
from vitrail.prediction.predictor import torch_runtime_of
from vitrail.progress import Progress, working
from vitrail.verbs.call import RuntimeRequest
from vitrail.weights.metadata import ClassNames, read_class_names
from vitrail.weights.resolve import DEFAULT_MODEL

if TYPE_CHECKING:
    import torch

USUAL = RuntimeRequest()


def check_model(
    model: Predictor | str | Path | None,
    device: "str | torch.device" = "auto",
    classes: ClassNames | None = None,
    wanted: RuntimeRequest = USUAL,
) -> None:
    """Refuse settings that are wrong, or that come too late for a loaded model; the model itself is not looked for."""
    check_device(device)
    if classes is not None:
        read_class_names(classes)
    if not isinstance(model, Predictor):
        if wanted.given():
            wanted.check(DEFAULT_MODEL if model is None else model, device)
        return
    runtime = torch_runtime_of(model.runtime)
    moves = device != "auto" and not (runtime is not None and runtime.device == pick_device(device))
    given = [name for name, changes in (("`classes=`", classes is not None), ("`device=`", moves)) if changes]
    given += [f"`{name}=`" for name in wanted.given()]
    if given:
        raise ConfigError(f"{' and '.join(given)} cannot change a loaded model; pass it to vitrail.load instead.")


def open_model(
    model: Predictor | str | Path | None,
    device: "str | torch.device" = "auto",
    classes: ClassNames | None = None,
    *,
    wanted: RuntimeRequest = USUAL,
    progress: bool | Progress = False,
) -> Predictor:
    """A loaded model as it is, or the model at a source (None: the bundled one) on the requested device."""
    check_model(model, device, classes, wanted)
    if isinstance(model, Predictor):
        return model
    source = DEFAULT_MODEL if model is None else model
    with working(f"loading {source}", speaks=progress is not False):
        return wanted.open(source, classes, device)


def name_of(model: Predictor | str | Path | None) -> str:
    """The model's name in figures: the last part of its source; for a loaded one, where its weights are from."""
    if isinstance(model, Predictor):
        return model.origin.source or "model"
    return Path(DEFAULT_MODEL if model is None else model).name or "model"
