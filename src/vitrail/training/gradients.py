"""The gradient of one batch, computed in micro-batches, on one rank or several; how that is done, and in which numbers.

On a CPU, a small ViT's operations are too short to be shared between threads: threads that work independently, on
micro-batches that fit in their cache, get more done (`benchmarks/train.py`). `Lanes` does that. Its sums run in the
order of the micro-batches: with the same micro-batches, the result does not depend on the number of threads.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from vitrail.data import Batch
from vitrail.model import ViT
from vitrail.model.block import Block
from vitrail.ranks import Ranks
from vitrail.threads import start_workers
from vitrail.training.setup import Setup, num_threads

LANE_TOKENS = 4096  # per micro-batch of a lane: fewer, and Python gets in the way; more, and the cache is too small
SLACK = 0.1  # of a round: somewhat larger micro-batches are better than one more round
CPU_TOKENS = 4096  # per micro-batch of larger models
LANE_WIDTH = 256  # wider models keep all cores busy with one operation


class Outcome(NamedTuple):
    """What an objective makes of a batch."""

    loss: Tensor  # the mean over its samples
    metrics: Mapping[str, Tensor] = {}  # other means, by name
    outputs: Tensor | None = None  # of the model, for `score`


Forward = Callable[[Batch], Outcome]
Metrics = dict[str, Tensor]


def spread(objective: nn.Module, ranks: Ranks, strategy: str) -> nn.Module:
    """The objective as all ranks train it: as it is, copied to each (DDP), or spread over them (FSDP2)."""
    if strategy == "fsdp":
        mesh = init_device_mesh(ranks.device.type, (ranks.world_size,))
        for block in (module for module in objective.modules() if isinstance(module, Block)):
            fully_shard(block, mesh=mesh)
        fully_shard(objective, mesh=mesh)
        return objective
    if ranks.world_size == 1:
        return objective
    devices = [ranks.device] if ranks.device.type == "cuda" else None
    return DistributedDataParallel(objective, device_ids=devices, gradient_as_bucket_view=True)  # not all of them twice


def without_sync(module: nn.Module, last: bool) -> AbstractContextManager[Any]:
    """Gradients of all but the last micro-batch stay here; the last one's backward adds them up over the ranks."""
    if isinstance(module, DistributedDataParallel) and not last:
        return cast("AbstractContextManager[Any]", module.no_sync())
    return nullcontext()


def whole(tensor: Tensor) -> Tensor:
    """The full tensor of one that may be spread over the ranks; all of them must ask."""
    gather = getattr(tensor, "full_tensor", None)
    return tensor if gather is None else gather()


class Scorer(Protocol):
    """The part of an `Objective` that these engines use."""

    on_pictures: bool
    draws: bool

    def score(self, outcome: Outcome, batch: Batch) -> Any: ...


class Plain:
    """One micro-batch after another, each with all threads of the device."""

    def __init__(
        self, module: nn.Module, forward: Forward, scorer: Scorer, micro_batch: int | None, precision: str
    ) -> None:
        self.module = module
        self.forward = forward
        self.scorer = scorer
        self.micro_batch = micro_batch
        self.precision = precision

    def accumulate(self, batch: Batch) -> tuple[Tensor, Metrics]:
        """Add the gradient of the mean loss to the parameters; the loss itself, and the means of the metrics."""
        device = batch.images.device
        total, means = torch.zeros((), device=device), Metrics()
        pieces = list(split(batch, self.micro_batch))
        for index, some in enumerate(pieces):
            share = len(some.images) / len(batch.images)
            with without_sync(self.module, last=index == len(pieces) - 1):
                with autocast(device, self.precision):
                    outcome = self.forward(some)
                loss = outcome.loss * share
                loss.backward()
            total += loss.detach()
            _add(means, outcome.metrics, share)
        return total, means

    def score(self, batch: Batch) -> list[Any]:
        """What the objective keeps of each micro-batch, without gradients."""
        return [self._score(piece) for piece in split(batch, self.micro_batch)]

    def _score(self, batch: Batch) -> Any:
        with torch.no_grad(), autocast(batch.images.device, self.precision):
            return self.scorer.score(self.forward(batch), batch)


class Lanes(Plain):
    """Several threads, each with micro-batches of its own."""

    def __init__(self, module: nn.Module, forward: Forward, scorer: Scorer, micro_batch: int, num_lanes: int) -> None:
        super().__init__(module, forward, scorer, micro_batch, "float32")
        self.parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self._pool = start_workers(num_lanes)

    def accumulate(self, batch: Batch) -> tuple[Tensor, Metrics]:
        pieces = [(some, len(some.images) / len(batch.images)) for some in split(batch, self.micro_batch)]
        futures = [self._pool.submit(self._gradient, *piece) for piece in pieces]
        total, means = torch.zeros(()), Metrics()
        sums: list[Tensor] = []
        try:
            for future, (_, share) in zip(futures, pieces, strict=True):
                loss, metrics, gradients = future.result()
                total += loss
                _add(means, metrics, share)
                if sums:
                    for total_gradient, gradient in zip(sums, gradients, strict=True):
                        total_gradient.add_(gradient)
                else:
                    sums = gradients
        finally:
            for future in futures:
                future.cancel()  # after an error or a signal: the process would end only when all were computed
        for parameter, gradient in zip(self.parameters, sums, strict=True):
            parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
        return total, means

    def _gradient(self, batch: Batch, share: float) -> tuple[Tensor, Mapping[str, Tensor], list[Tensor]]:
        outcome = self.forward(batch)
        loss = outcome.loss * share
        gradients = torch.autograd.grad(loss, self.parameters)
        # Those of convolutions may lie in memory in another order than the weights, which fused optimisers misread.
        return loss.detach(), outcome.metrics, [gradient.contiguous() for gradient in gradients]

    def score(self, batch: Batch) -> list[Any]:
        futures = [self._pool.submit(self._score, piece) for piece in split(batch, self.micro_batch)]
        return [future.result() for future in futures]


def _add(means: Metrics, metrics: Mapping[str, Tensor], share: float) -> None:
    for name, value in metrics.items():
        means[name] = means.get(name, torch.zeros((), device=value.device)) + value.detach() * share


def make_engine(setup: Setup, module: nn.Module, objective: Scorer, ranks: Ranks) -> Plain:
    """What computes gradients of the module: threads with micro-batches of their own where these are faster."""
    machine, model = setup.config.machine, setup.model
    precision = pick_precision(machine.precision, ranks.device)
    alone = ranks.world_size == 1 and objective.on_pictures and precision == "float32"
    if alone and not objective.draws and machine.compile != "on" and suits_lanes(model, ranks.device):
        lanes, size = num_threads(), machine.batch_size
        assert isinstance(size, int)
        return Lanes(module, module, objective, machine.micro_batch or lane_batch(model, size, lanes), lanes)
    forward = compiled(module) if machine.compile == "on" else module
    micro_batch = machine.micro_batch or default_micro_batch(model, ranks.device)
    return Plain(module, forward, objective, micro_batch, precision)


def compiled(module: nn.Module) -> Forward:
    """The module through torch.compile; compilation happens on the first run, and errors appear then."""
    return cast("Forward", torch.compile(module))


def pick_precision(asked: str, device: torch.device) -> str:
    """bf16 on GPUs that have it; elsewhere it would be slower, or emulated."""
    if asked == "auto":
        return "bf16" if device.type == "cuda" and _has_bf16() else "float32"
    return asked


def _has_bf16() -> bool:
    """Whether the GPU computes in bf16; torch also counts those that emulate it, slowly, by default."""
    return torch.cuda.is_bf16_supported(including_emulation=False)


def suits_lanes(model: ViT, device: torch.device) -> bool:
    """Whether threads may share the model: a small one on a CPU, without random numbers or batch statistics."""
    rates = model.config.rates
    draws = rates.dropout or rates.attention or rates.path or rates.patch
    stateful = any(isinstance(module, nn.BatchNorm2d) for module in model.modules())
    return device.type == "cpu" and model.config.width <= LANE_WIDTH and not draws and not stateful


def lane_batch(model: ViT, batch_size: int, num_lanes: int) -> int:
    """Pictures per micro-batch: few enough for the cache, and as many micro-batches for each lane as for the others."""
    fitting = max(LANE_TOKENS / model.config.tokens, 1)
    turns = math.ceil(batch_size / (fitting * num_lanes) - SLACK)
    return math.ceil(batch_size / (max(turns, 1) * num_lanes))


def default_micro_batch(model: ViT, device: torch.device) -> int | None:
    """On a CPU, few enough pictures for its memory; the whole batch elsewhere, and where its statistics count."""
    if device.type != "cpu" or any(isinstance(module, nn.BatchNorm2d) for module in model.modules()):
        return None
    return max(8 * round(CPU_TOKENS / model.config.tokens / 8), 8)


def split(batch: Batch, size: int | None) -> Iterator[Batch]:
    """Micro-batches of at most this many samples."""
    size = size or len(batch.images)
    parts = (batch.images.split(size), batch.targets.split(size), batch.indices.split(size))
    yield from (Batch(*part) for part in zip(*parts, strict=True))


def first_of(batch: Batch, count: int) -> Batch:
    """The first samples of a batch."""
    return Batch(batch.images[:count], batch.targets[:count], batch.indices[:count])


def move(batch: Batch, device: torch.device) -> Batch:
    """The batch on a device."""
    images, targets = (tensor.to(device, non_blocking=True) for tensor in (batch.images, batch.targets))
    return Batch(images, targets, batch.indices)


def autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """bf16 if it is requested."""
    if precision == "bf16":
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return nullcontext()
