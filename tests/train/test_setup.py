"""What is prepared before the first step, and what is refused then."""

from dataclasses import replace

import pytest

from vitrail.errors import ConfigError
from vitrail.train import recipe
from vitrail.train.setup import check_strategy


@pytest.mark.parametrize(
    ("optimizer", "world_size", "message"),
    [("muon", 2, "whole matrices"), ("muon", 1, "several ranks"), ("adamw", 1, "on one, use --strategy ddp")],
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
