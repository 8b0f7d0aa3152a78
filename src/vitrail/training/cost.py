"""The cost of a run, measured on a few real batches before it begins: time, memory; and what follows from it: the batch
size, torch.compile, bf16.

Processors differ: one multiplies in bf16 at twice the speed of float32, another at a quarter. Narrow models gain
nothing on any of them, so they are not timed, and no noise decides how they are trained. What is decided goes into the
run's config, so that a resumed run computes the same bits.
"""

import copy
import itertools
import sys
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import nn

from vitrail.data import Batch
from vitrail.errors import ConfigError, OutOfMemoryError
from vitrail.machine import computes_bf16, main_memory
from vitrail.ranks import Ranks
from vitrail.timing import Clock, agreed_gain, best_of, repeat, seconds_of, take_turns
from vitrail.training.budget import PLANNING
from vitrail.training.changes import apply_changes
from vitrail.training.config import TrainConfig
from vitrail.training.gradients import Lanes, Plain, compiled, first_of, make_engine, move, pick_precision
from vitrail.training.objectives import make_objective
from vitrail.training.optim import build_optimizers, start_state
from vitrail.training.recipes import RECIPES
from vitrail.training.setup import Setup, plain_loader, training_loader
from vitrail.wording import first_line

try:
    import resource
except ImportError:  # Windows
    resource = None

UNKNOWN = 4 * 2**30  # bytes that are assumed if the system does not report its memory


def peak_memory(device: torch.device) -> int:
    """The peak memory of this process in bytes; 0 if the system does not count it."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if resource is None:
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def total_memory(device: torch.device) -> int:
    """The memory of the device in bytes."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return main_memory() or UNKNOWN


WARM, TIMED = 1, 3  # batches
SMALLEST, LARGEST = 16, 1024  # of the batch sizes that are tried
WORTH = 1.05  # a choice must be at least this much faster
MEMORY_SHARE = 0.7
MOST_TIMED = 256  # pictures of a batch that are timed on a CPU
FEW = 16  # pictures whose features are timed at once
FEWEST = 2  # pictures that are timed at once, however slow they are
PATIENCE = 10.0  # seconds after which no further batch is timed; warming up, which may be compiling, is free
NARROW = 96  # up to this width, matrix products are too small to gain: 0.57× at width 48
BF16_WORTH = 1.1  # bf16 rounds: it must be this much faster
BF16_PATIENCE = 5.0  # seconds after which no further round is timed
ROUNDS = 3
SAVE_SECONDS, DISK_SPEED = 0.05, 300e6  # of writing a checkpoint: at least, and bytes per second

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One training step on this machine."""

    seconds: float
    images: int
    peak_bytes: int
    epoch_overhead: float = 0.0  # seconds for what happens once per epoch: writing checkpoints
    before: float = 0.0  # seconds before the first step: the features of a head that is trained first
    ranks: int = 1  # that compute at the same time

    @property
    def images_per_second(self) -> float:
        """Of one rank."""
        return self.images / self.seconds

    @property
    def pace(self) -> float:
        """Pictures per second, of all ranks together."""
        return self.images_per_second * self.ranks


def measure(setup: Setup, ranks: Ranks, engine: Plain | None = None) -> Measured:
    """Time this rank's part of a few real batches through the gradient, and leave everything as it was."""
    model = setup.model.to(ranks.device)
    model.train()
    compiles = engine is not None or setup.config.machine.compile == "on"  # anew for every size
    if engine is None:
        objective = make_objective(setup).to(ranks.device)
        engine = make_engine(setup, objective, objective, ranks)
    size = setup.config.machine.batch_size
    assert isinstance(size, int)
    mine = max(size // ranks.world_size, 1)
    alone, before = Ranks(device=ranks.device), peak_memory(ranks.device)

    def batches(count: int) -> Iterable[Batch]:
        return training_loader(replace(setup, config=apply_changes(setup.config, {"batch_size": count})), alone)

    try:
        with _left_as_it_was(model):
            if ranks.device.type == "cpu" and not compiles:
                mine = _affordable(batches, ranks.device, engine.accumulate, mine, _patience(setup))
            seconds, images = _time_batches(batches(mine), ranks.device, engine.accumulate, _patience(setup))
    except torch.OutOfMemoryError as error:
        raise OutOfMemoryError(
            f"a batch of {size} does not fit into the memory of {ranks.device}; lower `micro_batch=` (or "
            "`batch_size=`), or pass `recompute=True`."
        ) from error
    at_once = min(engine.micro_batch or size, max(size // ranks.world_size, 1))  # of the run
    peak = peak_memory(ranks.device)
    return Measured(
        seconds=seconds + _measure_update(setup, ranks.world_size) * images * ranks.world_size / size,
        images=images,
        peak_bytes=round(before + (peak - before) * max(at_once / mine, 1)),
        epoch_overhead=_estimate_saving(setup),
        ranks=ranks.world_size,
    )


@contextmanager
def _left_as_it_was(model: nn.Module) -> Generator[None]:
    """Without the gradients and statistics of what is computed meanwhile."""
    states = {name: buffer.clone() for name, buffer in model.named_buffers()}
    try:
        yield
    finally:
        model.zero_grad(set_to_none=True)
        for name, buffer in model.named_buffers():
            buffer.copy_(states[name])


def measure_features(setup: Setup, ranks: Ranks) -> Measured:
    """Time the features of a few pictures, which is nearly all that training on them takes."""
    model = setup.model.to(ranks.device).eval()

    def batches(count: int) -> Iterable[Batch]:
        return plain_loader(setup, "train", Ranks(), count)

    def work(batch: Batch) -> object:
        return model.features(batch.images)

    most = min(FEW, len(setup.dataset.split("train")))
    with torch.no_grad():
        count = _affordable(batches, ranks.device, work, most, _patience(setup))
        seconds, images = _time_batches(batches(count), ranks.device, work, _patience(setup))
    return Measured(seconds=seconds, images=images, peak_bytes=peak_memory(ranks.device), ranks=ranks.world_size)


def answer_seconds(setup: Setup, ranks: Ranks) -> float:
    """What it takes to ask the teacher about all fixed views; 0 if it is asked in each step, which is timed with it."""
    teacher, count = setup.teacher, len(setup.dataset.split("train"))
    if teacher is None or not setup.kept_views:
        return 0.0

    def batches(few: int) -> Iterable[Batch]:
        return plain_loader(setup, "train", Ranks(), few)

    def ask(batch: Batch) -> object:
        return teacher.look(batch.images)

    few = _affordable(batches, ranks.device, ask, min(FEW, count), _patience(setup))
    seconds, images = _time_batches(batches(few), ranks.device, ask, _patience(setup))
    return setup.kept_views * count * seconds / images / ranks.world_size


Work = Callable[[Batch], object]


def _patience(setup: Setup) -> float:
    """Seconds that the timed batches may take together."""
    minutes = setup.config.schedule.minutes
    return PATIENCE if minutes is None else min(PATIENCE, 60 * minutes * PLANNING)


def _affordable(
    batches: Callable[[int], Iterable[Batch]], device: torch.device, work: Work, most: int, patience: float
) -> int:
    """How many pictures can be timed at once without losing patience: a few tell, the first of which warm up."""
    if most <= FEWEST:
        return most
    few = itertools.islice(batches(FEWEST), 2)
    seconds = min(seconds_of(partial(_compute, work, batch, device, FEWEST)) for batch in few)
    fitting = patience / (WARM + TIMED) / (seconds / FEWEST)
    return int(min(max(fitting // 2 * 2, FEWEST), most, MOST_TIMED))


def _time_batches(batches: Iterable[Batch], device: torch.device, work: Work, patience: float) -> tuple[float, int]:
    """Seconds and pictures of the fastest of a few batches after warming up."""
    loaded, counts = iter(batches), list[int]()

    def step() -> None:
        batch = next(loaded)
        counts.append(min(len(batch.images), MOST_TIMED) if device.type == "cpu" else len(batch.images))
        _compute(work, batch, device, counts[-1])

    seconds = repeat(step, times=TIMED, warm_up=WARM, patience=patience)
    return min(zip(seconds, counts[-len(seconds) :], strict=True), key=lambda pair: pair[0] / pair[1])


def _compute(work: Work, batch: Batch, device: torch.device, count: int) -> None:
    """Some pictures of a batch, until the device is done with them."""
    work(move(first_of(batch, count), device))
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _measure_update(setup: Setup, world_size: int) -> float:
    """Seconds of an optimiser's step, on a copy of the model.

    Of a model that is spread over the ranks, since it is too large for one, it is the time of a single block, and from
    that of this rank's share of all.
    """
    sharded = setup.config.machine.strategy == "fsdp"
    part = copy.deepcopy(setup.model.blocks[0] if sharded else setup.model)
    depth = setup.model.config.depth
    optimizers = build_optimizers(part, setup.config.optim, depth)
    start_state(optimizers)
    for parameter in part.parameters():
        parameter.grad = torch.zeros_like(parameter)
    seconds = seconds_of(lambda: [optimizer.step() for optimizer in optimizers])
    return seconds * depth / world_size if sharded else seconds


def _estimate_saving(setup: Setup) -> float:
    """Seconds that an epoch's checkpoints take: weights, two moments and perhaps an average; and the best weights."""
    weights = sum(parameter.numel() * parameter.element_size() for parameter in setup.model.parameters())
    return SAVE_SECONDS + 5 * weights / DISK_SPEED


def epoch_seconds(setup: Setup, measured: Measured) -> float:
    """One epoch with its evaluation, which costs about a third of a step per picture."""
    splits = setup.dataset.splits
    return (len(splits["train"]) + len(splits.get("val", ())) / 3) / measured.pace + measured.epoch_overhead


def run_seconds(setup: Setup, measured: Measured) -> float:
    """All epochs; of training on features, what these take, beside which epochs are nothing."""
    if setup.config.start.training.on_features:
        return measured.before + feature_seconds(setup, measured)
    return measured.before + setup.config.schedule.epochs * epoch_seconds(setup, measured)


def feature_seconds(setup: Setup, measured: Measured) -> float:
    """The features of all pictures on which a head is trained and validated."""
    splits = setup.dataset.splits
    return (len(splits["train"]) + len(splits.get("val", ()))) / measured.pace


def find_batch_size(setup: Setup, ranks: Ranks, say: Say) -> TrainConfig:
    """The smallest of the fastest batch sizes that fit; learning rates are scaled to match."""
    config = setup.config
    usual = RECIPES[config.recipe]().machine.batch_size if config.recipe in RECIPES else 256
    assert isinstance(usual, int)
    limit = min(LARGEST, max(len(setup.dataset.split("train")) // ranks.world_size // 8, 2)) // 2 * 2
    best: tuple[int, float] | None = None
    size = min(SMALLEST, limit)
    memory = total_memory(ranks.device) * MEMORY_SHARE
    while size <= limit:
        tried = replace(setup, config=apply_changes(config, {"batch_size": size * ranks.world_size}))
        try:
            measured = measure(tried, ranks)
        except OutOfMemoryError:
            break
        if best is None or measured.images_per_second > WORTH * best[1]:
            best = (size, measured.images_per_second)
        if 2 * measured.peak_bytes > memory:
            break
        size *= 2
    if best is None:
        raise OutOfMemoryError(
            f"not even a batch of {SMALLEST} fits into memory; choose a smaller model, or pass `recompute=True`."
        )
    chosen = best[0] * ranks.world_size
    factor = chosen / usual if config.optim.optimizer == "sgd" else (chosen / usual) ** 0.5
    say(f"batch size {chosen} ({best[1]:,.0f} images/s per rank); learning rate scaled by {factor:.3g} to match")
    rates = {"lr": config.optim.lr * factor, "muon_lr": config.optim.muon_lr * factor}
    return apply_changes(config, {"batch_size": chosen, **rates})


def settle_compile(setup: Setup, ranks: Ranks, say: Say) -> TrainConfig:
    """Decide on torch.compile by trying it; if it does not help, training continues without it, with a note."""
    config = setup.config
    if config.machine.compile == "off":
        return config
    plain = replace(setup, config=apply_changes(config, {"compile": "off"}))
    say("trying torch.compile, which may take a minute")
    try:
        precision = pick_precision(config.machine.precision, ranks.device)
        objective = make_objective(setup).to(ranks.device)
        engine = Plain(objective, compiled(objective), objective, config.machine.micro_batch, precision)
        with_compile = measure(plain, ranks, engine)
    except ConfigError:
        raise
    except Exception as error:  # the compiler needs a toolchain, and has many ways to fail
        say(f"torch.compile does not work here ({first_line(error)}); continuing without it")
        return plain.config
    if config.machine.compile == "on":
        return config
    gain = with_compile.images_per_second / measure(plain, ranks).images_per_second
    if gain < WORTH:
        say(f"torch.compile gives {gain:.2f}× here; continuing without it")
        return plain.config
    say(f"torch.compile gives {gain:.2f}× here")
    return apply_changes(config, {"compile": "on"})


def settle_precision(setup: Setup, ranks: Ranks, say: Callable[[str], None]) -> TrainConfig:
    """Decide what `auto` means on a processor that computes in bf16; elsewhere, the device decides."""
    config = setup.config
    if config.machine.precision != "auto" or ranks.device.type != "cpu" or not computes_bf16():
        return config
    if setup.model.config.width <= NARROW:
        return apply_changes(config, {"precision": "float32"})
    engines = [_engine(setup, ranks, name) for name in ("float32", "bf16")]
    gain = agreed_gain(lambda: _time_gain(setup, engines), BF16_WORTH)
    if gain < BF16_WORTH:
        say(f"bf16 gives {gain:.2f}× here; computing in float32")
    else:
        say(f"computing in bf16, {gain:.2f}× float32 here")
    return apply_changes(config, {"precision": "float32" if gain < BF16_WORTH else "bf16"})


def _time_gain(setup: Setup, engines: list[Plain]) -> float:
    plain, rounded = time_gradients(setup, engines)
    return plain / rounded


def time_gradients(setup: Setup, engines: list[Plain], clock: Clock | None = None) -> list[float]:
    """The best time of each engine for the gradient of the same pictures, taken in turns; nothing else changes."""
    setup.model.train()
    some = _some_pictures(setup, engines)
    with _left_as_it_was(setup.model):
        few = partial(engines[0].accumulate, first_of(some, FEWEST))
        each = seconds_of(few, clock) / FEWEST
        if FEWEST * each < BF16_PATIENCE:  # which may have prepared what later calls only use
            each = min(each, seconds_of(few, clock) / FEWEST)
        count = max(int(BF16_PATIENCE / len(engines) / max(each, 1e-9)), FEWEST)  # of slow pictures, a few will do
        calls = [partial(engine.accumulate, first_of(some, count)) for engine in engines]
        laps = take_turns(calls, ROUNDS, patience=BF16_PATIENCE, clock=clock)
    return [best_of(own, warm_up=1).wall for own in laps]


def _some_pictures(setup: Setup, engines: list[Plain]) -> Batch:
    """A batch, or of a large model as many pictures as it takes at once."""
    batch = next(iter(training_loader(setup, Ranks(device=torch.device("cpu")))))
    count = MOST_TIMED
    if not any(isinstance(engine, Lanes) for engine in engines):
        count = min(engine.micro_batch or MOST_TIMED for engine in engines)
    return first_of(batch, count)


def _engine(setup: Setup, ranks: Ranks, precision: str) -> Plain:
    asked = replace(setup, config=apply_changes(setup.config, {"precision": precision, "compile": "off"}))
    objective = make_objective(asked).to(ranks.device)
    return make_engine(asked, objective, objective, ranks)
