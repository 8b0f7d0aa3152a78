"""One model on several ranks, as far as a single process can see it; test_distributed.py has the others."""

from collections.abc import Generator

import pytest
import torch
import torch.distributed as dist
from torch.distributed import HashStore  # pyright: ignore[reportPrivateImportUsage]

from vitrail.model import ViT, ViTConfig
from vitrail.ranks import Ranks
from vitrail.training.parallel import spread


@pytest.fixture
def group() -> Generator[None]:
    """A group of this process only."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_gradients_lie_in_what_is_sent(tiny: ViTConfig, group: None) -> None:
    """Otherwise, DDP would keep all of them twice."""
    model = ViT(tiny)
    copied = spread(model, Ranks(rank=0, world_size=2), "ddp")
    copied(torch.randn(2, 3, *tiny.image_size)).sum().backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    storages = {gradient.untyped_storage().data_ptr(): gradient.untyped_storage().nbytes() for gradient in gradients}
    assert len(storages) < len(gradients)
    assert sum(storages.values()) == sum(gradient.nbytes for gradient in gradients)
