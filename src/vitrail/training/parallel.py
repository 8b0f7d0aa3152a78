"""One model on several ranks: copied to each (DDP), or spread over them (FSDP2)."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from vitrail.model.block import Block
from vitrail.ranks import Ranks


def spread(model: nn.Module, ranks: Ranks, strategy: str) -> nn.Module:
    """The model as all ranks train it: as it is, copied to each (DDP), or spread over them (FSDP2)."""
    if strategy == "fsdp":
        mesh = init_device_mesh(ranks.device.type, (ranks.world_size,))
        for block in (module for module in model.modules() if isinstance(module, Block)):
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model
    if ranks.world_size == 1:
        return model
    devices = [ranks.device] if ranks.device.type == "cuda" else None
    return DistributedDataParallel(model, device_ids=devices, gradient_as_bucket_view=True)  # not all of them twice


def without_sync(module: nn.Module, last: bool) -> AbstractContextManager[Any]:
    """Gradients of all but the last micro-batch stay here; the last one's backward adds them up over the ranks."""
    if isinstance(module, DistributedDataParallel) and not last:
        return cast("AbstractContextManager[Any]", module.no_sync())
    return nullcontext()


def whole(tensor: Tensor) -> Tensor:
    """The full tensor of one that may be spread over the ranks; all of them must ask."""
    gather = getattr(tensor, "full_tensor", None)
    return tensor if gather is None else gather()
