"""The gradient of one batch, computed in micro-batches, on one rank or several; how that is done, and in which numbers.

On a CPU, a small ViT's operations are too short to be shared between threads: threads that work independently, on
micro-batches that fit in their cache, get more done (`benchmarks/train.py`). `Lanes` does that. Its sums run in the
order of the micro-batches: with the same micro-batches, the result does not depend on the number of threads.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from vitrail.model import ViT
from vitrail.model.block import Block
from vitrail.ranks import Ranks
from vitrail.threads import start_workers
from vitrail.training.setup import Setup, num_threads

LANE_TOKENS = 4096  # per micro-batch of a lane: fewer, and Python gets in the way; more, and the cache is too small
SLACK = 0.1  # of a round: somewhat larger micro-batches are better than one more round
CPU_TOKENS = 4096  # per micro-batch of larger models
LANE_WIDTH = 256  # wider models keep all cores busy with one operation

Forward = Callable[[Tensor], Tensor]


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


class Scores(NamedTuple):
    """What evaluation sums up over pictures."""

    loss: float  # summed
    correct: int


class Scorer(Protocol):
    """Scores outputs: the part of an `Objective` that these engines use."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor: ...

    def score(self, outputs: Tensor, targets: Tensor) -> Scores: ...


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

    def accumulate(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Add the gradient of the mean loss to the parameters; the loss itself."""
        total = torch.zeros((), device=inputs.device)
        pieces = list(split(inputs, targets, self.micro_batch))
        for index, (some, labels) in enumerate(pieces):
            with without_sync(self.module, last=index == len(pieces) - 1):
                with autocast(inputs.device, self.precision):
                    loss = self.scorer.loss(self.forward(some).float(), labels)
                loss = loss * (len(some) / len(inputs))
                loss.backward()
            total += loss.detach()
        return total

    def score(self, inputs: Tensor, targets: Tensor) -> Scores:
        """Summed loss and correct answers, without gradients."""
        parts = self._score_each(split(inputs, targets, self.micro_batch))
        return Scores(sum(part.loss for part in parts), sum(part.correct for part in parts))

    def _score_each(self, pieces: Iterable[tuple[Tensor, Tensor]]) -> list[Scores]:
        return [self._score(*piece) for piece in pieces]

    def _score(self, inputs: Tensor, targets: Tensor) -> Scores:
        with torch.no_grad(), autocast(inputs.device, self.precision):
            return self.scorer.score(self.forward(inputs).float(), targets)


class Lanes(Plain):
    """Several threads, each with micro-batches of its own."""

    def __init__(self, module: nn.Module, forward: Forward, scorer: Scorer, micro_batch: int, num_lanes: int) -> None:
        super().__init__(module, forward, scorer, micro_batch, "float32")
        self.parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self._pool = start_workers(num_lanes)

    def accumulate(self, inputs: Tensor, targets: Tensor) -> Tensor:
        futures = [
            self._pool.submit(self._gradient, some, labels, len(some) / len(inputs))
            for some, labels in split(inputs, targets, self.micro_batch)
        ]
        total = torch.zeros(())
        sums: list[Tensor] = []
        try:
            for future in futures:
                loss, gradients = future.result()
                total += loss
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
        return total

    def _gradient(self, inputs: Tensor, targets: Tensor, share: float) -> tuple[Tensor, list[Tensor]]:
        loss = self.scorer.loss(self.forward(inputs), targets) * share
        return loss.detach(), list(torch.autograd.grad(loss, self.parameters))

    def _score_each(self, pieces: Iterable[tuple[Tensor, Tensor]]) -> list[Scores]:
        futures = [self._pool.submit(self._score, *piece) for piece in pieces]
        return [future.result() for future in futures]


def make_engine(setup: Setup, module: nn.Module, scorer: Scorer, ranks: Ranks) -> Plain:
    """What computes gradients of the module: threads with micro-batches of their own where these are faster."""
    machine, model = setup.config.machine, setup.model
    precision = pick_precision(machine.precision, ranks.device)
    alone = ranks.world_size == 1 and module is model and precision == "float32"
    if alone and machine.compile != "on" and suits_lanes(model, ranks.device):
        lanes, size = num_threads(), machine.batch_size
        assert isinstance(size, int)
        return Lanes(module, module, scorer, machine.micro_batch or lane_batch(model, size, lanes), lanes)
    forward = compiled(module) if machine.compile == "on" else module
    return Plain(module, forward, scorer, machine.micro_batch or default_micro_batch(model, ranks.device), precision)


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


def split(inputs: Tensor, targets: Tensor, size: int | None) -> Iterator[tuple[Tensor, Tensor]]:
    size = size or len(inputs)
    yield from zip(inputs.split(size), targets.split(size), strict=True)


def autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """bf16 if it is requested."""
    if precision == "bf16":
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return nullcontext()
