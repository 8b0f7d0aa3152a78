"""Settings that suit the data, for users who pass only a folder; and the whole config, from whatever was passed."""

from dataclasses import fields, replace
from statistics import median
from typing import Any

import numpy as np
import torch
from PIL import Image

from vitrail.data import Augment, Dataset
from vitrail.data.picture import open_picture
from vitrail.data.source import ArraySource, Source
from vitrail.errors import ConfigError, InputError
from vitrail.ranks import Ranks
from vitrail.training.building import add_validation, check_start, fit_batch_size, open_training_data
from vitrail.training.config import Start, TrainConfig, apply_changes, list_changes, read_field
from vitrail.training.recipes import RECIPES, recipe

MANY = 20_000  # training pictures from which the paper's fine-tuning pays off
HUGE = 500_000  # … and from which a GPU can train a ViT-S/16 from scratch
PHOTO_SIDE = 64  # pixels from which a picture counts as a photograph
PROBES = 64  # pictures whose size is examined


def choose(dataset: Dataset, weights: str | None, suited: str = "") -> TrainConfig:
    """A recipe for the data's number, size and colours, and for whether there are weights to start from.

    `suited` is the recipe of what is to be trained, if it has one.
    """
    train = dataset.split("train")
    if weights is not None:
        name = suited or ("finetune" if len(train) >= MANY else "finetune-adamw")
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
    """The median shorter side of a few pictures."""
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
    """Whether these are photographs, and so few that pretrained weights would be far better than random ones."""
    train = dataset.split("train")
    if config.start.weights is not None or isinstance(train, ArraySource) or len(train) >= MANY:
        return False
    return typical_side(train) >= PHOTO_SIDE


def resolve(data: str, changes: dict[str, Any], ranks: Ranks) -> tuple[TrainConfig, Dataset]:
    """The whole config from what was requested: a recipe, named or chosen from the data, and then the changes."""
    changes = dict(changes)
    name, named_data = changes.pop("recipe", None), changes.pop("data", "")
    config = recipe(name) if name else TrainConfig()
    sources = {key: value for key, value in changes.items() if hasattr(config.source, key)}
    config = apply_changes(replace(config, data=data or named_data or config.data), sources)
    check_start(_with_start(config, changes))
    dataset = ranks.in_turn(lambda: open_training_data(config, validation=False))
    if not name:
        chosen = choose(dataset, changes.get("weights"), _with_start(config, changes).start.training.recipe)
        source = config.source
        if not dataset.made_split and "val_rate" not in changes:
            source = replace(source, val_rate=chosen.source.val_rate)
        config = replace(chosen, data=config.data, source=source)
    config = _with_start(config, changes)
    if config.start.training.on_features:
        config = _without_augmentation(config, changes)
    if "batch_size" not in changes:
        config = fit_batch_size(config, dataset, ranks.world_size)
    return config, add_validation(dataset, config)


def ask_for(config: TrainConfig) -> dict[str, Any]:
    """A config as `resolve` takes it: where it differs from its recipe, or from the defaults if it has none."""
    named = config.recipe in RECIPES
    changes = list_changes(config, recipe(config.recipe) if named else TrainConfig())
    return changes | ({"recipe": config.recipe} if named else {}) | ({"data": config.data} if config.data else {})


def _with_start(config: TrainConfig, changes: dict[str, Any]) -> TrainConfig:
    """The config with the changes; weights bring their own model."""
    if changes.get("weights") is not None and "model" not in changes:
        config = replace(config, start=replace(config.start, model=None))
    return apply_changes(config, changes)


def _without_augmentation(config: TrainConfig, changes: dict[str, Any]) -> TrainConfig:
    """Features are those of unchanged pictures; whoever asked for something else is told."""
    called = config.start.training.called
    config = replace(config, augment=Augment(flip_rate=0.0), start=replace(config.start, dropout=0.0, drop_path=0.0))
    for name in ("dropout", "drop_path", *(field.name for field in fields(Augment))):
        changed = name in changes and read_field(apply_changes(config, {name: changes[name]}), name)
        if name in changes and changed != read_field(config, name):
            raise ConfigError(f"{called} works on features of unchanged pictures; omit {name}={changes[name]!r}.")
    return config
