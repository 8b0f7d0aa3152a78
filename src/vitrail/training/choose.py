"""What suits the data, for a person who names nothing but a folder."""

from dataclasses import fields, replace
from statistics import median
from typing import Any, cast

import numpy as np
import torch
from PIL import Image

from vitrail.data import Dataset
from vitrail.data.picture import open_picture
from vitrail.data.source import ArraySource, Source
from vitrail.errors import ConfigError, InputError, shorten, suggest
from vitrail.training.config import Start, TrainConfig
from vitrail.training.recipes import recipe

MANY = 20_000  # training pictures from which the paper's fine-tuning pays
HUGE = 500_000  # … and from which a GPU can train a ViT-S/16 from scratch
PHOTO_SIDE = 64  # pixels from which a picture counts as a photograph
PROBES = 64  # pictures whose size is looked at


def choose(dataset: Dataset, weights: str | None) -> TrainConfig:
    """A recipe for the data's number, size and colours, and for whether there are weights to start from."""
    train = dataset.split("train")
    if weights is not None:
        name = "finetune" if len(train) >= MANY else "finetune-adamw"
        chosen = recipe(name)
        return replace(chosen, start=replace(chosen.start, weights=weights))
    side = typical_side(train)
    grey = isinstance(train, ArraySource) and train.images.shape[1] == 1
    if grey and side <= 32:
        return recipe("digits" if side < 16 else "mnist")
    if side <= 32:
        return recipe("cifar10")
    if len(train) >= HUGE and torch.cuda.is_available():
        return recipe("imagenet-s16")
    chosen = recipe("scratch")
    return replace(chosen, start=Start(model="compact-64" if side < 100 else "compact-128"))


def typical_side(source: Source) -> int:
    """The shorter side of the middle one of a few pictures."""
    if isinstance(source, ArraySource):
        return min(source.images.shape[-2:])
    sides: list[int] = []
    for index in np.linspace(0, len(source) - 1, min(PROBES, len(source))).astype(int).tolist():
        try:
            picture: Any = source.picture(index)
            if isinstance(picture, np.ndarray | torch.Tensor):
                sides.append(min(picture.shape[-2:]))
            elif isinstance(picture, Image.Image):
                sides.append(min(picture.size))
            else:
                with open_picture(picture) as image:
                    sides.append(min(image.size))
        except (InputError, OSError):
            continue
    return round(median(sides)) if sides else 224


def wants_weights(config: TrainConfig, dataset: Dataset) -> bool:
    """Whether these are photographs, and so few that pretrained weights would be far better than training anew."""
    train = dataset.split("train")
    if config.start.weights is not None or isinstance(train, ArraySource) or len(train) >= MANY:
        return False
    return typical_side(train) >= PHOTO_SIDE


def field_homes() -> dict[str, str]:
    """Flag's field → the part of `TrainConfig` that has it."""
    homes: dict[str, str] = {}
    for part in ("start", "optim", "schedule", "machine", "augment", "source"):
        for field in fields(getattr(TrainConfig(), part)):
            assert field.name not in homes, f"{field.name} stands in two parts"
            homes[field.name] = part
    return homes


def apply_changes(config: TrainConfig, changes: dict[str, Any]) -> TrainConfig:
    """The config with some fields changed, whatever part they are in."""
    homes = field_homes()
    for part in dict.fromkeys(homes.values()):
        mine = {name: value for name, value in changes.items() if homes.get(name) == part}
        if mine:
            config = replace(config, **{part: replace(getattr(config, part), **mine)})
    if changes.get("minutes") is not None and changes.get("epochs") is not None:
        raise ConfigError("give --epochs or --minutes, not both: minutes decide how many epochs there are.")
    return config


def flatten(settings: Any, where: str) -> dict[str, Any]:
    """The fields of a YAML file, written in the parts of `TrainConfig` or all on one level, as one level."""
    if not isinstance(settings, dict):
        raise ConfigError(f"{where} must hold field names and values.")
    homes = field_homes()
    flat: dict[str, Any] = {}
    for name, value in cast("dict[str, Any]", settings).items():
        if name in homes.values() and isinstance(value, dict):
            for inner in cast("dict[str, Any]", value):
                if homes.get(inner) != name:
                    mine = [field for field, home in homes.items() if home == name]
                    raise ConfigError(f"{where}: {name} has no field {shorten(inner)}; {suggest(shorten(inner), mine)}")
            flat |= value
        elif name in homes or name in ("data", "recipe"):
            flat[name] = value
        else:
            raise ConfigError(f"{where}: there is no field {shorten(name)}; {suggest(shorten(name), homes)}")
    return flat
