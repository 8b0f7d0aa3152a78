"""What is chosen for a person who names nothing but the data."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from vitrail.data import ArraySource, Dataset, open_data
from vitrail.data.preprocess import preset
from vitrail.errors import ConfigError, DataError, WeightsError
from vitrail.model import ViT, variants
from vitrail.ranks import Ranks
from vitrail.schema import from_dict, to_dict
from vitrail.training import TrainConfig, recipe
from vitrail.training.auto_config import PictureKind, choose, look_at, resolve
from vitrail.training.changes import apply_changes, field_homes, flatten
from vitrail.training.recipes import RECIPES
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.pretrained import Pretrained
from vitrail.weights.write import write_checkpoint
from weights_fixtures import TINY_DINO


def arrays(count: int, channels: int, side: int) -> Dataset:
    images = torch.zeros(count, channels, side, side, dtype=torch.uint8)
    source = ArraySource(images, np.arange(count) % 2, "arrays")
    return Dataset(name="arrays", classes=("a", "b"), splits={"train": source})


@pytest.mark.parametrize(
    ("dataset", "weights", "expected", "model"),
    [
        (arrays(100, 1, 8), None, "digits", "compact-8"),
        (arrays(100, 1, 28), None, "mnist", "compact-28"),
        (arrays(100, 3, 32), None, "cifar10", "hybrid-32"),
        (arrays(100, 3, 64), None, "scratch", "compact-64"),
        (arrays(100, 3, 128), None, "scratch", "compact-128"),
        (arrays(100, 3, 32), "w.safetensors", "finetune-adamw", None),
        (arrays(20_000, 1, 4), "w.safetensors", "finetune", None),
    ],
)
def test_choice(dataset: Dataset, weights: str | None, expected: str, model: str | None) -> None:
    chosen = choose(dataset, look_at(dataset.split("train")), weights)
    assert (chosen.recipe, chosen.start.model, chosen.start.weights) == (expected, model, weights)


def test_outliers_are_only_chosen_for_the_data_of_their_recipe() -> None:
    """Other data may have flowers, people or buildings as classes, or pictures that need not be upright."""
    others = arrays(100, 3, 32)
    for dataset, rate in ((others, 0.0), (replace(others, name="cifar10"), recipe("cifar10").augment.outlier_rate)):
        assert choose(dataset, look_at(dataset.split("train")), None).augment.outlier_rate == rate


def test_the_middle_picture_decides_and_broken_ones_do_not_count(tmp_path: Path) -> None:
    for name, size in (("a/1", (90, 300)), ("a/2", (70, 80)), ("b/1", (500, 60)), ("b/2", (64, 64))):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", size).save(tmp_path / f"{name}.png")
    (tmp_path / "b" / "3.png").write_bytes(b"no picture")
    dataset = open_data(tmp_path)
    everything = dataset.split("train")
    assert 60 <= look_at(everything).side <= 90


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


def folder_of(tmp_path: Path, size: tuple[int, int], mode: str = "RGB") -> Path:
    for name in ("a", "b"):
        (tmp_path / name).mkdir(parents=True)
        for number in range(8):
            Image.effect_noise(size, 60).convert(mode).save(tmp_path / name / f"{number}.png")
    return tmp_path


def test_photographs_are_large_and_have_colours(tmp_path: Path) -> None:
    assert look_at(open_data(folder_of(tmp_path / "photos", (96, 80))).split("train")) == PictureKind(80, False)
    assert look_at(open_data(folder_of(tmp_path / "scans", (96, 80), "L")).split("train")) == PictureKind(80, True)
    assert not PictureKind(80, True).is_photograph
    assert not PictureKind(32, False).is_photograph
    assert look_at(arrays(4, 3, 96).split("train")).is_photograph


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was fetched; as if everything were in the cache."""
    names: list[str] = []

    def fetch(backbone: Pretrained, say: object) -> str:
        names.append(backbone.name)
        return ""

    monkeypatch.setattr("vitrail.training.auto_config.fetch", fetch)
    return names


CPU, GPU = Ranks(), Ranks(device=torch.device("cuda"))


@pytest.mark.parametrize(
    ("ranks", "changes", "expected"),
    [
        (CPU, {}, ("linear", "head", False, "facebook/dinov2-small")),
        (CPU, {"weights": "auto"}, ("linear", "head", False, "facebook/dinov2-small")),
        (CPU, {"minutes": 5.0}, ("lora", "lora", True, "facebook/dinov2-small")),
        (CPU, {"mixup": 0.2}, ("lora", "lora", True, "facebook/dinov2-small")),
        (CPU, {"train": "all"}, ("finetune-adamw", "all", True, "facebook/dinov2-small")),
        (CPU, {"epochs": 5}, ("lora", "lora", True, "facebook/dinov2-small")),
        (CPU, {"train": "lora"}, ("lora", "lora", True, "facebook/dinov2-small")),
        (CPU, {"recipe": "finetune-adamw"}, ("finetune-adamw", "all", True, "facebook/dinov2-small")),
        (GPU, {}, ("finetune-adamw", "all", True, "facebook/dinov2-base")),
        (CPU, {"weights": "none"}, ("scratch", "all", False, None)),
        (CPU, {"weights": None}, ("scratch", "all", False, None)),
        (CPU, {"model": "compact-64"}, ("scratch", "all", False, None)),
        (CPU, {"recipe": "scratch"}, ("scratch", "all", False, None)),
    ],
)
def test_photographs_start_from_pretrained_weights(
    ranks: Ranks, changes: dict[str, Any], expected: tuple[object, ...], fetched: list[str], tmp_path: Path
) -> None:
    config, _ = resolve(str(folder_of(tmp_path / "p", (96, 80))), changes, ranks)
    start, source = config.start, expected[3] and f"hf://{expected[3]}"
    assert (config.recipe, start.train, start.probe, start.weights) == (*expected[:3], source)
    assert bool(fetched) == (source is not None)
    assert start.image_size == ((224, 224) if source else None)
    assert bool(config.chosen) == bool(fetched), "what is chosen is explained"
    assert from_dict(TrainConfig, to_dict(config)) == config


@pytest.fixture(scope="module")
def dino(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small DINOv2 whose own size is 518 pixels, as people download it."""
    config = replace(TINY_DINO, image_size=(518, 518))
    tensors = ViT(config).state_dict()
    folder = tmp_path_factory.mktemp("weights") / "dinov2-small"
    write_checkpoint(Checkpoint(config=config, tensors=tensors, preprocess=preset("dinov2", (224, 224))), folder, "hf")
    return str(folder)


@pytest.mark.parametrize(
    ("ranks", "changes", "expected"),
    [
        (CPU, {}, ("linear", "head", False, (224, 224))),
        (CPU, {"minutes": 5.0}, ("lora", "lora", True, (224, 224))),
        (CPU, {"image_size": (112, 112)}, ("linear", "head", False, (112, 112))),
        (CPU, {"train": "all"}, ("finetune-adamw", "all", True, (224, 224))),
        (CPU, {"recipe": "linear"}, ("linear", "head", False, (224, 224))),
        (GPU, {}, ("finetune-adamw", "all", True, (224, 224))),
    ],
)
def test_weights_that_the_user_names_are_treated_like_the_default(
    ranks: Ranks, changes: dict[str, Any], expected: tuple[object, ...], dino: str, tmp_path: Path
) -> None:
    """The advice that is given offline must train what would have been trained online."""
    photographs = str(folder_of(tmp_path / "p", (96, 80)))
    config, _ = resolve(photographs, {"weights": dino, **changes}, ranks)
    start = config.start
    assert (config.recipe, start.train, start.probe, start.image_size) == expected
    assert ("Pictures of 224×224, for speed; the weights' own size is 518×518" in config.chosen) == (
        "image_size" not in changes
    )
    assert ("the head is trained" in config.chosen) == (not {"train", "recipe"} & changes.keys())


def test_weights_that_cannot_be_read_are_found_before_the_pictures_are(tmp_path: Path) -> None:
    (tmp_path / "w.safetensors").write_bytes(b"no weights")
    with pytest.raises(WeightsError, match="w.safetensors"):
        resolve(str(folder_of(tmp_path / "p", (96, 80))), {"weights": str(tmp_path / "w.safetensors")}, CPU)


@pytest.mark.parametrize("changes", [{}, {"weights": "auto"}])
def test_small_and_grey_pictures_stay_from_scratch(changes: dict[str, Any], fetched: list[str], tmp_path: Path) -> None:
    for name, size, mode in (("small", (40, 60), "RGB"), ("grey", (96, 80), "L")):
        config, _ = resolve(str(folder_of(tmp_path / name, size, mode)), changes, CPU)
        assert (config.recipe, config.start.weights, config.chosen) == ("scratch", None, "")
    config, _ = resolve("digits", changes, CPU)
    assert (config.recipe, config.chosen, fetched) == ("digits", "", [])


def test_weights_that_cannot_be_had_are_a_line(tmp_path: Path) -> None:
    """The tests run offline, and with an empty cache."""
    said: list[str] = []
    config, _ = resolve(str(folder_of(tmp_path / "p", (96, 80))), {}, CPU, said.append)
    assert (config.recipe, config.start.weights) == ("scratch", None)
    assert "downloading DINOv2-S (hf://facebook/dinov2-small, 88 MB, Apache-2.0)" in said[0]
    assert "not in the cache and the hub cannot be reached" in said[1]
    assert "hf download facebook/dinov2-small --local-dir dinov2-small" in said[1]
    assert "\n" not in said[1]
    assert "could not be fetched" in config.chosen
    with pytest.raises(WeightsError, match="cannot be reached.*hf download facebook/dinov2-small"):
        resolve(str(tmp_path / "p"), {"recipe": "linear"}, CPU)


def test_labels_that_are_no_classes_are_refused_before_weights_are_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "table.csv"
    rows = [f"{number}.png,name {number}" for number in range(20)]
    table.write_text("\n".join(["path,label", *rows]))

    def fetched(*_: Any) -> Any:
        raise WeightsError("weights were fetched")

    monkeypatch.setattr("vitrail.training.auto_config._get_backbone", fetched)
    with pytest.raises(DataError, match="nearly one class per picture, such as 'name 0': 20 classes for 20 pictures"):
        resolve(str(table), {}, Ranks(), check=True)
    with pytest.raises(WeightsError, match="weights were fetched"):  # whoever insists gets further
        resolve(str(table), {}, Ranks(), check=False)
