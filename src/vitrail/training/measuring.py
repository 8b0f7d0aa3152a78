"""The cost of a run, measured on a few real batches before it begins: time, memory, batch size, torch.compile."""

import copy
import itertools
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.data import Batch, Dataset, Loader, LoaderConfig
from vitrail.errors import ConfigError
from vitrail.ranks import Ranks
from vitrail.schema import from_dict, to_dict
from vitrail.training.budget import Pace, fitting_epochs, pictures_at_the_end
from vitrail.training.building import Setup, check_strategy, fit_batch_size, prepare_run, training_loader
from vitrail.training.config import TrainConfig, describe_config
from vitrail.training.features import check_batch_size
from vitrail.training.gradients import Lanes, Plain, compiled, make_engine, pick_precision
from vitrail.training.listener import Listener, Plan
from vitrail.training.memory import peak_memory, total_memory
from vitrail.training.objectives import make_objective
from vitrail.training.optim import build_optimizers, start_state
from vitrail.training.precision import settle_precision
from vitrail.training.probing import probe_config
from vitrail.training.recipes import RECIPES

WARM, TIMED = 1, 3  # batches
SMALLEST, LARGEST = 16, 1024  # of the batch sizes that are tried
WORTH = 1.05  # a choice must be at least this much faster
MEMORY_SHARE = 0.7
MOST_TIMED = 256  # pictures of a batch that are timed on a CPU
FEW = 16  # pictures whose features are timed at once
PATIENCE = 10.0  # seconds after which no further batch is timed; warming up, which may be compiling, is free
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

    @property
    def images_per_second(self) -> float:
        return self.images / self.seconds


def settle(config: TrainConfig, dataset: Dataset, ranks: Ranks, listener: Listener) -> tuple[Setup, Measured]:
    """Decide what is decided by measuring: batch size, bf16, torch.compile, the epochs of a time budget."""
    check_strategy(config, ranks.world_size)
    setup = prepare_run(config, dataset)
    if config.schedule.patience is not None and not setup.has_validation:
        listener.said("no validation pictures: training does not stop early, and the last weights are kept")
    if config.start.training.on_features:
        if config.machine.batch_size == "auto" or config.schedule.minutes is not None:
            raise ConfigError(
                f"{config.start.training.called} takes a moment: pass numbers as batch_size= and epochs=."
            )
        check_batch_size(config.machine.batch_size, len(dataset.split("train")), ranks.world_size)
        return setup, ranks.from_first(lambda: measure_features(setup, ranks))

    def decide(make: Callable[[], TrainConfig]) -> None:
        nonlocal setup
        decided: dict[str, Any] = ranks.from_first(lambda: to_dict(make()))
        setup = replace(setup, config=from_dict(TrainConfig, decided))

    if config.machine.batch_size == "auto":
        decide(lambda: find_batch_size(setup, ranks, listener.said))
    decide(lambda: settle_precision(setup, ranks, listener.said))
    decide(lambda: settle_compile(setup, ranks, listener.said))
    before = _probe_seconds(setup, ranks) if config.start.probe else 0.0
    measured = replace(ranks.from_first(lambda: measure(setup, ranks)), before=before)
    if config.start.probe and _too_long(setup, measured, ranks):
        seconds, minutes = epoch_seconds(setup, measured, ranks.world_size), config.schedule.minutes
        listener.said(f"{minutes:g} minutes leave no time for fine-tuning, of which an epoch takes {seconds:.0f} s")
        return settle(_only_head(config, dataset, ranks), dataset, ranks, listener)
    decide(lambda: fit_minutes(setup, measured, ranks, listener.said))
    return setup, measured


def _probe_seconds(setup: Setup, ranks: Ranks) -> float:
    """Seconds that the features of all pictures take."""
    each = ranks.from_first(lambda: measure_features(setup, ranks))
    return _feature_seconds(setup, each, ranks.world_size)


def _too_long(setup: Setup, measured: Measured, ranks: Ranks) -> bool:
    """Whether a time budget has no room for an epoch."""
    return setup.config.schedule.minutes is not None and _epochs_in_time(setup, measured, ranks) < 1


def _only_head(config: TrainConfig, dataset: Dataset, ranks: Ranks) -> TrainConfig:
    """The config without its fine-tuning."""
    chosen = "; ".join(filter(None, (config.chosen, "there is no time for more than the head")))
    return replace(fit_batch_size(probe_config(config), dataset, ranks.world_size), chosen=chosen)


def describe_plan(setup: Setup, measured: Measured, ranks: Ranks) -> Plan:
    """What users want to know before hours of work."""
    config = setup.config
    return Plan(
        data=setup.dataset.name,
        classes=len(setup.dataset.classes),
        pictures={name: len(source) for name, source in setup.dataset.splits.items()},
        recipe=config.recipe,
        model=config.start.model or config.start.weights or "",
        parameters=sum(parameter.numel() for parameter in setup.model.parameters()),
        image_size=setup.model.config.image_size,
        device=str(ranks.device),
        ranks=ranks.world_size,
        epochs=config.schedule.epochs,
        minutes=run_seconds(setup, measured, ranks.world_size) / 60,
        memory_mb=round(measured.peak_bytes / 2**20),
        trained=sum(parameter.numel() for parameter in make_objective(setup).trained()),
        chosen=config.chosen,
        config=describe_config(config),
    )


def measure(setup: Setup, ranks: Ranks, engine: Plain | Lanes | None = None) -> Measured:
    """Time this rank's part of a few real batches through the gradient, and leave everything as it was."""
    model = setup.model.to(ranks.device)
    model.train()
    engine = engine or make_engine(setup, model, make_objective(setup), ranks)
    size = setup.config.machine.batch_size
    assert isinstance(size, int)
    part = replace(setup, config=_with_batch(setup.config, max(size // ranks.world_size, 1)))
    states = {name: buffer.clone() for name, buffer in model.named_buffers()}
    try:
        seconds, images = _time_batches(
            training_loader(part, Ranks(device=ranks.device)),
            ranks.device,
            engine.accumulate,
        )
    except torch.OutOfMemoryError as error:
        raise ConfigError(
            f"a batch of {size} does not fit into the memory of {ranks.device}; lower micro_batch= (or batch_size=), "
            "or pass recompute=True."
        ) from error
    finally:
        model.zero_grad(set_to_none=True)
        for name, buffer in model.named_buffers():
            buffer.copy_(states[name])
    return Measured(
        seconds=seconds + _measure_update(setup, ranks.world_size) * images * ranks.world_size / size,
        images=images,
        peak_bytes=peak_memory(ranks.device),
        epoch_overhead=_estimate_saving(setup),
    )


def measure_features(setup: Setup, ranks: Ranks) -> Measured:
    """Time the features of a few pictures, which is nearly all that training on them takes."""
    model = setup.model.to(ranks.device).eval()
    rate = setup.dataset.max_broken_rate
    options = LoaderConfig(batch_size=FEW, workers=setup.config.machine.workers, max_broken_rate=rate)
    loader = Loader(setup.dataset, "train", setup.preprocess, options)
    with torch.no_grad():
        seconds, images = _time_batches(loader, ranks.device, lambda images, _: model.features(images))
    return Measured(seconds=seconds, images=images, peak_bytes=peak_memory(ranks.device))


def _time_batches(
    batches: Iterable[Batch], device: torch.device, work: Callable[[Tensor, Tensor], object]
) -> tuple[float, int]:
    """Seconds and pictures of the fastest of a few batches after warming up."""
    timed: list[tuple[float, int]] = []
    began = time.perf_counter()
    for batch in itertools.islice(batches, WARM + TIMED):
        images = min(len(batch.images), MOST_TIMED) if device.type == "cpu" else len(batch.images)
        work(batch.images[:images].to(device), batch.targets[:images].to(device))
        _finish(device)
        now = time.perf_counter()
        timed.append((now - began, images))
        began = now
        if sum(seconds for seconds, _ in timed[WARM:]) > PATIENCE:
            break
    return min(timed[WARM:] or timed, key=lambda pair: pair[0] / pair[1])


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
    began = time.perf_counter()
    for optimizer in optimizers:
        optimizer.step()
    seconds = time.perf_counter() - began
    return seconds * depth / world_size if sharded else seconds


def _estimate_saving(setup: Setup) -> float:
    """Seconds that an epoch's checkpoints take: weights, two moments and perhaps an average; and the best weights."""
    weights = sum(parameter.numel() * parameter.element_size() for parameter in setup.model.parameters())
    return SAVE_SECONDS + 5 * weights / DISK_SPEED


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def epoch_seconds(setup: Setup, measured: Measured, world_size: int) -> float:
    """One epoch with its evaluation, which costs about a third of a step per picture."""
    splits = setup.dataset.splits
    evaluated = len(splits["val"]) if "val" in splits else 0
    return (len(splits["train"]) + evaluated / 3) / (measured.images_per_second * world_size) + measured.epoch_overhead


def run_seconds(setup: Setup, measured: Measured, world_size: int) -> float:
    """All epochs; of training on features, what these take, beside which epochs are nothing."""
    config = setup.config
    if not config.start.training.on_features:
        return measured.before + config.schedule.epochs * epoch_seconds(setup, measured, world_size)
    return _feature_seconds(setup, measured, world_size)


def _feature_seconds(setup: Setup, measured: Measured, world_size: int) -> float:
    splits = setup.dataset.splits
    pictures = len(splits["train"]) + (len(splits["val"]) if "val" in splits else 0)
    return pictures / (measured.images_per_second * world_size)


def fit_minutes(setup: Setup, measured: Measured, ranks: Ranks, say: Say) -> TrainConfig:
    """As many epochs as seem to fit into the time budget; `training/budget.py` revises that along the way."""
    config = setup.config
    minutes = config.schedule.minutes
    if minutes is None:
        return config
    each = epoch_seconds(setup, measured, ranks.world_size)
    epochs = _epochs_in_time(setup, measured, ranks)
    if epochs < 1:
        say(f"one epoch takes about {each:.1f} s, more than the budget of {minutes:g} minutes; training for one")
    else:
        noun = "epoch" if epochs == 1 else "epochs"
        say(f"{minutes:g} minutes allow about {epochs} {noun} of {each:.1f} s; this is revised after each")
    schedule = replace(config.schedule, epochs=max(epochs, 1))
    return replace(config, schedule=schedule)


def _epochs_in_time(setup: Setup, measured: Measured, ranks: Ranks) -> int:
    minutes = setup.config.schedule.minutes
    assert minutes is not None
    ending = pictures_at_the_end(setup.dataset.splits) / 3 / (measured.images_per_second * ranks.world_size)
    each = epoch_seconds(setup, measured, ranks.world_size)
    return fitting_epochs(minutes, Pace(so_far=measured.before, epoch=each, ending=ending))


def find_batch_size(setup: Setup, ranks: Ranks, say: Say) -> TrainConfig:
    """The smallest of the fastest batch sizes that fit; learning rates are scaled to match."""
    config = setup.config
    usual = _recipe_batch(config)
    limit = min(LARGEST, max(len(setup.dataset.split("train")) // ranks.world_size // 8, 2)) // 2 * 2
    best: tuple[int, float] | None = None
    size = min(SMALLEST, limit)
    memory = total_memory(ranks.device) * MEMORY_SHARE
    while size <= limit:
        tried = replace(setup, config=_with_batch(config, size * ranks.world_size))
        try:
            measured = measure(tried, ranks)
        except ConfigError:  # it does not fit
            break
        if best is None or measured.images_per_second > WORTH * best[1]:
            best = (size, measured.images_per_second)
        if 2 * measured.peak_bytes > memory:
            break
        size *= 2
    if best is None:
        raise ConfigError(
            f"not even a batch of {SMALLEST} fits into memory; choose a smaller model, or pass recompute=True."
        )
    chosen = best[0] * ranks.world_size
    factor = chosen / usual if config.optim.optimizer == "sgd" else (chosen / usual) ** 0.5
    optim = replace(config.optim, lr=config.optim.lr * factor, muon_lr=config.optim.muon_lr * factor)
    say(f"batch size {chosen} ({best[1]:,.0f} images/s per rank); learning rate scaled by {factor:.3g} to match")
    return replace(_with_batch(config, chosen), optim=optim)


def _recipe_batch(config: TrainConfig) -> int:
    usual = RECIPES[config.recipe]().machine.batch_size if config.recipe in RECIPES else 256
    return usual if isinstance(usual, int) else 256


def _with_batch(config: TrainConfig, size: int) -> TrainConfig:
    return replace(config, machine=replace(config.machine, batch_size=size))


def settle_compile(setup: Setup, ranks: Ranks, say: Say) -> TrainConfig:
    """Decide on torch.compile by trying it; if it does not help, training continues without it, with a note."""
    config = setup.config
    if config.machine.compile == "off":
        return config
    machine = replace(config.machine, compile="off")
    plain = replace(setup, config=replace(config, machine=machine))
    say("trying torch.compile, which may take a minute")
    try:
        precision = pick_precision(machine.precision, ranks.device)
        module: nn.Module = setup.model
        engine = Plain(module, compiled(module), make_objective(setup), machine.micro_batch, precision)
        with_compile = measure(plain, ranks, engine)
    except ConfigError:
        raise
    except Exception as error:  # the compiler needs a toolchain, and has many ways to fail
        first_line = (str(error).splitlines() or [type(error).__name__])[0]
        say(f"torch.compile does not work here ({first_line}); continuing without it")
        return replace(config, machine=machine)
    if config.machine.compile == "on":
        return config
    without = measure(plain, ranks)
    gain = with_compile.images_per_second / without.images_per_second
    if gain < WORTH:
        say(f"torch.compile gives {gain:.2f}× here; continuing without it")
        return replace(config, machine=machine)
    say(f"torch.compile gives {gain:.2f}× here")
    return replace(config, machine=replace(config.machine, compile="on"))
