"""What is prepared before the first step, and what is refused then."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.prediction.conftest import CLASSES, write_tiny
from tests.task_models import LABELS, write_model_of

from vitrail.data import ArraySource, Dataset
from vitrail.errors import ConfigError
from vitrail.training import recipe
from vitrail.training.changes import apply_changes
from vitrail.training.setup import check_strategy, prepare_run
from vitrail.weights.native import read_native


@pytest.mark.parametrize(
    ("optimizer", "world_size", "message"),
    [("muon", 2, "whole matrices"), ("muon", 1, "several ranks"), ("adamw", 1, "on one, use strategy=")],
)
def test_what_cannot_be_spread_is_refused(optimizer: str, world_size: int, message: str) -> None:
    config = recipe("digits")
    spread = replace(config.machine, strategy="fsdp")
    config = replace(config, machine=spread, optim=replace(config.optim, optimizer=optimizer))
    with pytest.raises(ConfigError, match=message):
        check_strategy(config, world_size)
    check_strategy(replace(config, machine=replace(spread, strategy="ddp")), world_size)


def test_matrices_of_adamw_may_be_spread() -> None:
    config = recipe("imagenet-s16")
    check_strategy(replace(config, machine=replace(config.machine, strategy="fsdp")), 2)


def test_named_classes_keep_their_part_of_the_head(tmp_path: Path) -> None:
    """Weights without names, and a file that names them: the data's classes are found by name, in another order."""
    write_tiny(tmp_path / "bare.safetensors", None)
    (tmp_path / "names.txt").write_text("\n".join(CLASSES))
    images = torch.zeros(14, 3, 32, 32, dtype=torch.uint8)
    source = ArraySource(images, np.arange(14) % 7, "arrays")
    dataset = Dataset(name="arrays", classes=CLASSES[::-1], splits={"train": source})
    start = {"weights": str(tmp_path / "bare.safetensors"), "classes": str(tmp_path / "names.txt")}
    setup = prepare_run(apply_changes(recipe("finetune-adamw"), start), dataset)
    before = read_native(tmp_path / "bare.safetensors").tensors["head.weight"]
    assert setup.model.head is not None
    torch.testing.assert_close(setup.model.head.weight.detach(), before.flip(0), rtol=0, atol=0)


def test_a_head_that_answered_another_question_starts_anew(tmp_path: Path) -> None:
    """Also if the labels have the same names."""
    images = torch.zeros(8, 3, 32, 32, dtype=torch.uint8)
    config = apply_changes(recipe("finetune-adamw"), {"weights": str(write_model_of("several", tmp_path))})
    for task, labels, is_new in (
        ("several", np.eye(4, dtype=np.uint8)[[0, 1, 2, 3] * 2], False),
        ("one", np.arange(8) % 4, True),
    ):
        source = ArraySource(images, labels, "arrays")
        setup = prepare_run(config, Dataset(name="arrays", classes=LABELS, splits={"train": source}, task=task))
        assert setup.model.head is not None
        assert bool((setup.model.head.weight == 0).all()) == is_new
        assert setup.task.kind == task
