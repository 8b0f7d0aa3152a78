"""What is chosen for a person who names nothing but the data."""

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vitrail.data import ArraySource, Dataset, open_data
from vitrail.errors import ConfigError
from vitrail.model import variants
from vitrail.schema import from_dict, to_dict
from vitrail.training import TrainConfig, recipe
from vitrail.training.choosing import choose, typical_side, wants_weights
from vitrail.training.config import apply_changes, field_homes, flatten
from vitrail.training.recipes import RECIPES


def arrays(count: int, channels: int, side: int) -> Dataset:
    images = torch.zeros(count, channels, side, side, dtype=torch.uint8)
    source = ArraySource(images, np.arange(count) % 2, "arrays")
    return Dataset(name="arrays", classes=("a", "b"), splits={"train": source})


@pytest.mark.parametrize(
    ("dataset", "weights", "expected", "model"),
    [
        (arrays(100, 1, 8), None, "digits", "compact-8"),
        (arrays(100, 1, 28), None, "mnist", "compact-28"),
        (arrays(100, 3, 32), None, "cifar10", "compact-32"),
        (arrays(100, 3, 64), None, "scratch", "compact-64"),
        (arrays(100, 3, 128), None, "scratch", "compact-128"),
        (arrays(100, 3, 32), "w.safetensors", "finetune-adamw", None),
        (arrays(20_000, 1, 4), "w.safetensors", "finetune", None),
    ],
)
def test_choice(dataset: Dataset, weights: str | None, expected: str, model: str | None) -> None:
    chosen = choose(dataset, weights)
    assert (chosen.recipe, chosen.start.model, chosen.start.weights) == (expected, model, weights)


def test_the_middle_picture_decides_and_broken_ones_do_not_count(tmp_path: Path) -> None:
    for name, size in (("a/1", (90, 300)), ("a/2", (70, 80)), ("b/1", (500, 60)), ("b/2", (64, 64))):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", size).save(tmp_path / f"{name}.png")
    (tmp_path / "b" / "3.png").write_bytes(b"no picture")
    dataset = open_data(tmp_path)
    everything = dataset.split("train")
    assert 60 <= typical_side(everything) <= 90


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_is_sound(name: str) -> None:
    config = recipe(name)
    assert config.recipe == name
    assert from_dict(TrainConfig, to_dict(config)) == config
    assert config.start.model is None or config.start.model in variants()
    documented = RECIPES[name].__doc__
    assert documented is not None
    assert documented.startswith("`vitrail."), "a recipe opens with its call"


def test_unknown_recipes_are_corrected() -> None:
    with pytest.raises(ConfigError, match="did you mean finetune"):
        recipe("fine-tune")


def test_no_two_parts_share_a_field() -> None:
    homes = field_homes()
    config = TrainConfig()
    total = sum(len(fields(getattr(config, part))) for part in set(homes.values()))
    assert len(homes) == total


def test_changes_find_their_part() -> None:
    changed = apply_changes(recipe("digits"), {"lr": 0.5, "mixup": 0.2, "epochs": 3, "val_rate": 0.3})
    assert (changed.optim.lr, changed.augment.mixup, changed.schedule.epochs) == (0.5, 0.2, 3)
    assert changed.source.val_rate == 0.3
    assert changed.optim.weight_decay == recipe("digits").optim.weight_decay


def test_a_run_folders_config_is_a_config_file() -> None:
    config = replace(recipe("cifar10-tiny"), data="somewhere")
    flat = flatten(to_dict(config), "config.yaml")
    assert flat.pop("recipe") == "cifar10-tiny"
    assert flat.pop("data") == "somewhere"
    again = apply_changes(TrainConfig(), flat)
    assert again == replace(config, recipe="", data="")


@pytest.mark.parametrize("settings", [["a"], {"optim": {"epochs": 1}}, {"epoch": 1}, {"optim": 3}])
def test_files_with_other_things_are_refused(settings) -> None:
    with pytest.raises(ConfigError):
        flatten(settings, "x.yaml")


def test_few_photographs_want_weights(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for number in range(4):
            Image.new("RGB", (96, 80)).save(tmp_path / name / f"{number}.jpg")
    photographs = open_data(tmp_path)
    scratch = recipe("scratch")
    assert wants_weights(scratch, photographs)
    assert not wants_weights(apply_changes(scratch, {"weights": "w", "model": None}), photographs)
    assert not wants_weights(scratch, arrays(100, 3, 128))
    for path in tmp_path.rglob("*.jpg"):
        Image.new("RGB", (32, 32)).save(path)
    assert not wants_weights(scratch, photographs)
