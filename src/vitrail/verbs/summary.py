"""`vitrail.summary`: one model, step by step."""

from dataclasses import replace
from pathlib import Path

from vitrail.model import Summary, ViT, ViTConfig, summarize
from vitrail.prediction import Predictor
from vitrail.verbs.hints import read_size
from vitrail.verbs.settings import Size
from vitrail.weights.opening import open_config


def summary(
    model: str | Path | Predictor | ViT | ViTConfig = "vit-b16",
    *,
    image_size: Size | None = None,
    num_classes: int | None = None,
) -> Summary:
    """The shape after each step of a model, its parameters and MACs; nothing is allocated for that.

    Args:
        model: a name from `vitrail.models()`, a checkpoint (a file, a run folder, hf://owner/name, …), a YAML file
            with the fields of `ViTConfig`, or a model.
        image_size: another size of pictures.
        num_classes: another number of classes; 0 for no head.
    """
    asked = {"image_size": read_size(image_size, "image_size"), "num_classes": num_classes}
    changes = {name: value for name, value in asked.items() if value is not None}
    if isinstance(model, str | Path):
        return summarize(open_config(str(model), changes))
    if isinstance(model, Predictor):
        model = model.model
    return summarize(replace(model.config if isinstance(model, ViT) else model, **changes))
