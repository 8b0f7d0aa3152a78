"""`search=` is checked before anything: its names, its ranges, its choices."""

import time

import pytest

from vitrail.errors import ConfigError
from vitrail.training.changes import apply_changes
from vitrail.training.config import TrainConfig
from vitrail.training.recipes import read_changes, recipe
from vitrail.training.search_space import Range, check_space, parse_search


def test_ranges_and_choices() -> None:
    space = parse_search("lr=1e-4..1e-2, weight-decay=0..0.1,epochs=5..50,optimizer=adamw|sgd,clip=none|1.0")
    assert space == {
        "lr": Range(1e-4, 1e-2, whole=False),
        "weight_decay": Range(0, 0.1, whole=False),
        "epochs": Range(5, 50, whole=True),
        "optimizer": ("adamw", "sgd"),
        "clip": (None, 1.0),
    }
    logs = {name: values.log for name, values in space.items() if isinstance(values, Range)}
    assert logs == {"lr": True, "weight_decay": False, "epochs": False}
    assert not Range(0.1, 0.5, whole=False).log


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must name settings"),
        ("lr", "must be such as"),
        ("lrr=1..2", "has no setting"),
        ("lr=2..1", "from a low to a high number"),
        ("lr=a..b", "from a low to a high number"),
        ("lr=1e-3", "different choices"),
        ("lr=1e-3..1e-2,lr=1..2", "twice"),
        ("seed=1..9", "stay those of the run"),
        ("data_dir=a|b", "stay those of the run"),
        ("momentum=0..2", "that momentum cannot have"),
        ("optimizer=adamw|adam", "that optimizer cannot have"),
    ],
)
def test_what_can_never_be_right_is_refused_before_data_are_read(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_changes("train", None, None, {"search": text})


def test_what_leaves_no_choice_is_refused() -> None:
    with pytest.raises(ConfigError, match="features of unchanged pictures"):
        check_space(parse_search("mixup=0..1"), recipe("linear"))
    check_space(parse_search("mixup=0..1"), TrainConfig())


def test_values_that_no_trial_could_have_are_refused_at_once() -> None:
    check_space(parse_search("views=2|4"), recipe("cifar10"))  # whose outliers give way
    exposed = apply_changes(recipe("cifar10"), {"outlier_rate": 0.1, "repeats": 2})
    with pytest.raises(ConfigError, match=r"search= has alternate_flip=True, which this run cannot have: .*views"):
        check_space(parse_search("alternate_flip=true|false"), apply_changes(TrainConfig(), {"views": 3}))
    check_space(parse_search("outlier_rate=0.1|0.3"), exposed)
    late = apply_changes(TrainConfig(), {"schedule": "wsd"})
    check_space(parse_search("warmup=0.05..0.9,cooldown=0.05..0.1"), late)  # which leaves room for the longest warm-up
    with pytest.raises(ConfigError, match=r"search= has warmup=0.98"):
        check_space(parse_search("warmup=0.05..0.98,cooldown=0.05..0.1"), late)


MANY = ("lr", "muon_lr", "weight_decay", "momentum", "beta2", "layer_decay", "clip", "dropout")


def test_many_ranges_take_no_longer_to_check_than_a_few() -> None:
    """Of 4,096 combinations, none of which a value goes with, only some are tried."""
    others = ",".join(f"{name}=0.1..0.2" for name in (*MANY, "drop_path", "label_smoothing", "ema", "warmup"))
    began = time.monotonic()
    check_space(parse_search(f"alternate_flip=true|false,{others}"), apply_changes(TrainConfig(), {"views": 3}))
    assert time.monotonic() - began < 5
