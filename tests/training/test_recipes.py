"""Recipes: what of them gives way to what is passed."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from vitrail.errors import ConfigError
from vitrail.training.changes import (
    GIVES_WAY,
    apply_changes,
    describe_config,
    read_field,
    report_giving_way,
    with_changes,
)
from vitrail.training.config import Distill, Start, TrainConfig
from vitrail.training.recipes import RECIPES, ask_for, read_changes, recipe


@pytest.mark.parametrize(
    ("passed", "value", "left"),
    [
        ("weights", "B_16.npz", {"model": None, "whiten": "off"}),
        ("model", "vit-r-ti16", {"whiten": "off"}),  # a ResNet standardises its filters
        ("model", "cifar-small", {"whiten": "on"}),
        ("flip_rate", 0.0, {"alternate_flip": False}),
        ("flip_rate", 0.3, {"alternate_flip": True}),
        ("teacher", "runs/teacher", {"outlier_rate": 0.0}),
        ("teacher", None, {"outlier_rate": 0.15}),
        ("views", 5, {"outlier_rate": 0.0, "alternate_flip": False}),
        ("views", 4, {"outlier_rate": 0.0, "alternate_flip": True}),
        ("views", 0, {"outlier_rate": 0.15, "alternate_flip": True}),
        ("epochs", 3, {"whiten": "on", "alternate_flip": True, "outlier_rate": 0.15}),
    ],
)
def test_settings_of_a_recipe_give_way_to_what_cannot_stand_beside_them(
    passed: str, value: Any, left: dict[str, Any]
) -> None:
    config = with_changes(recipe("cifar10"), {passed: value})
    assert read_field(config, passed) == value
    assert {name: read_field(config, name) for name in left} == left


@pytest.mark.parametrize(
    "passed",
    [
        {"teacher": "runs/teacher", "outlier_rate": 0.1},
        {"weights": "B_16.npz", "whiten": "on"},
        {"views": 4, "outlier_rate": 0.1},
    ],
)
def test_settings_that_are_both_passed_are_refused(passed: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="omit"):
        with_changes(recipe("cifar10"), passed)


PASSED = (
    {"weights": "B_16.npz"},
    {"teacher": "runs/teacher"},
    {"views": 5},
    {"flip_rate": 0.0},
    {"model": "vit-r-ti16"},
)


@pytest.mark.parametrize("passed", PASSED)
def test_settings_of_a_file_give_way_as_those_of_a_recipe_do(passed: dict[str, Any], tmp_path: Path) -> None:
    file = write_config(tmp_path, recipe("cifar10"))
    assert with_changes(recipe("cifar10"), read_changes("train", None, file, passed)) == with_changes(
        recipe("cifar10"), read_changes("train", "cifar10", None, passed)
    )


@pytest.mark.parametrize(
    "asked",
    [{"outlier_rate": 0.0}, {"alternate_flip": False}, {"outlier_rate": 0.0, "teacher": "t"}, {"epochs": 3}, {}],
)
def test_the_file_of_a_run_repeats_it(asked: dict[str, Any], tmp_path: Path) -> None:
    """Also where a setting that is off by default, and therefore left out of the file, is on in the recipe."""
    config = with_changes(recipe("cifar10"), asked)
    changes = read_changes("train", None, write_config(tmp_path, config), {})
    assert with_changes(recipe(changes.pop("recipe")), changes) == config


def test_a_file_of_a_few_settings_leaves_the_others_to_the_recipe(tmp_path: Path) -> None:
    (tmp_path / "few.yaml").write_text("recipe: cifar10\naugment: {pad: 2}\n")
    changes = read_changes("train", None, tmp_path / "few.yaml", {})
    assert changes == {"recipe": "cifar10", "pad": 2}


def test_a_config_asks_for_what_would_otherwise_give_way() -> None:
    asked = replace(recipe("cifar10"), start=Start(model="cifar-tiny", whiten="on"))
    assert with_changes(recipe("cifar10"), {k: v for k, v in ask_for(asked).items() if k != "recipe"}) == asked


def test_a_config_asks_for_nothing_that_it_leaves_as_it_is() -> None:
    """What is asked for beyond a head would choose other training than the same settings by name."""
    assert set(ask_for(TrainConfig(distill=Distill(teacher="t")))) == {"teacher"}


def test_a_config_keeps_the_teacher_that_it_names() -> None:
    known = 32 * "cd"
    config = TrainConfig(distill=Distill(teacher="t", teacher_sha256=known))
    assert read_changes("train", None, config, {})["teacher_sha256"] == known


def test_another_teacher_has_another_checksum_and_none_has_no_settings() -> None:
    config = TrainConfig(distill=Distill(teacher="t", teacher_sha256=32 * "cd", distill_weight=0.7))
    other = with_changes(TrainConfig(), read_changes("train", None, config, {"teacher": "u"}))
    assert other.distill == Distill(teacher="u", distill_weight=0.7)
    assert with_changes(TrainConfig(), read_changes("train", None, config, {"teacher": None})).distill == Distill()


@pytest.mark.parametrize("passed", [{"weights": "none"}, {"weights": None}, {"minutes": None}])
def test_settings_that_ask_for_nothing_leave_a_file_as_it_is(passed: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "few.yaml").write_text("recipe: cifar10\nmodel: cifar-small\nepochs: 7\n")
    changes = read_changes("train", None, tmp_path / "few.yaml", passed)
    assert (changes["model"], changes["epochs"]) == ("cifar-small", 7)


def test_what_gives_way_is_reported() -> None:
    config = recipe("cifar10")
    assert report_giving_way(config, {"teacher": "t"}) == [
        "outlier_rate is turned off (the recipe has 0.15): it cannot be combined with teacher t"
    ]
    assert len(report_giving_way(config, {"views": 3})) == 2
    for silent in ({"weights": "B_16.npz"}, {"teacher": None}, {"epochs": 3}, {"model": "cifar-small"}):
        assert not report_giving_way(config, silent)


def write_config(folder: Path, config: TrainConfig) -> Path:
    """As a run does."""
    (folder / "config.yaml").write_text(yaml.safe_dump(describe_config(config)))
    return folder / "config.yaml"


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_can_do_without_what_gives_way(name: str) -> None:
    for _, _, left in GIVES_WAY:
        config = apply_changes(recipe(name), left)
        assert {each: read_field(config, each) for each in left} == left
