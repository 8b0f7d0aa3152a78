"""Names of devices: what they mean, and what is said where they cannot be used."""

import pytest
import torch

from vitrail.device import pick_device
from vitrail.errors import ConfigError


def test_auto_is_the_processor_where_there_is_nothing_else() -> None:
    if not torch.cuda.is_available() and not torch.backends.mps.is_available():
        assert pick_device("auto") == torch.device("cpu")


@pytest.mark.parametrize("name", ["cuda:99", "toaster"])
def test_device_that_is_not_there(name: str) -> None:
    with pytest.raises(ConfigError, match=f'the device .{name}. cannot be used.*try device="cpu"'):
        pick_device(name)


def test_ranks_of_one_machine_take_their_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[torch.device] = []
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda count, device: asked.append(device) or empty(count))
    assert pick_device("auto") == torch.device("cuda", 3)
    assert pick_device("cuda:1") == torch.device("cuda", 1)  # who names one has it
    assert asked == [torch.device("cuda", 3), torch.device("cuda", 1)]
