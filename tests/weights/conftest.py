"""Checkpoints for the tests."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from conftest import TINY, randomize
from vitrail.data.preprocess import preset
from vitrail.model import ViT
from vitrail.weights.checkpoint import Checkpoint


@pytest.fixture
def make_checkpoint() -> Callable[..., Checkpoint]:
    def make(**changes: Any) -> Checkpoint:
        config = replace(TINY, **changes)
        model = randomize(ViT(config))
        spec = preset("google", config.image_size, config.channels)
        return Checkpoint(config=config, tensors=model.state_dict(), preprocess=spec)

    return make
