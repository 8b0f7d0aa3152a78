"""Every family's weights learn: a new head on their features, LoRA's pairs, or everything."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import vitrail
from families import FAMILIES, write_family
from fuzzing import TIMES
from vitrail.training.config import TRAININGS
from vitrail.training.loop import Trainer
from vitrail.weights.adapt import join_heads
from vitrail.weights.read import open_checkpoint

SMALL = {"image_size": (8, 8), "patch_size": (4, 4), "depth": 2}
START = {"model": None, "optimizer": "adamw", "lr": 0.01, "ema": None, "mixup": 0.0, "epochs": 1}


@pytest.mark.fuzz
@pytest.mark.parametrize("name", list(FAMILIES)[:: 1 if TIMES > 1 else 3])  # all of them in `make fuzz`
def test_weights_learn(make_trainer: Callable[..., Trainer], tmp_path: Path, name: str) -> None:
    base = str(write_family(tmp_path / "base.safetensors", name, **SMALL))
    for train in TRAININGS:
        trainer = make_trainer(train, **START, weights=base, train=train)
        before = {key: tensor.clone() for key, tensor in trainer.model.state_dict().items()}
        trainer.run()
        after = trainer.model.state_dict()
        changed = {key for key in before if not torch.equal(before[key], after[key])}
        assert "head.weight" in changed
        assert all(tensor.isfinite().all() for tensor in after.values())
        if train == "all":
            frozen = {"relative.periods"}
            assert changed == before.keys() - frozen
        elif train == "head":
            assert changed == {"head.weight", "head.bias"}


def test_two_heads_become_one(tmp_path: Path) -> None:
    path = write_family(tmp_path / "distilled.safetensors", "deit-distilled")
    checkpoint = open_checkpoint(path)
    images = torch.randn(3, 3, 32, 32)
    with torch.no_grad():
        expected, actual = checkpoint.build()(images), join_heads(checkpoint).build()(images)
    torch.testing.assert_close(actual, expected)
    renamed = vitrail.load(path, classes=tuple("gfedcba"))
    assert renamed.model.distilled_head is not None
    with torch.no_grad():
        torch.testing.assert_close(renamed.model(images), expected.flip(-1))
