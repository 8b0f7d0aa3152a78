"""The training loop, the only one: every recipe, on one process or many, comes through here.

A step is a function of (weights, optimiser's memory, seed, step number) alone: batches, augmentation and dropout follow
from counters, nothing from the clock or from a generator's history. That is why a run that was killed and resumed ends
with the same bits as one that was not.
"""

import math
import signal
import time
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from vitrail.errors import VitrailError
from vitrail.train import checkpoint
from vitrail.train.averaging import Average
from vitrail.train.checkpoint import Progress
from vitrail.train.curves import Row, append_row, is_better, keep_rows
from vitrail.train.features import FeatureLoader, compute_features
from vitrail.train.gradients import Forward, Lanes, Plain, default_micro_batch, lane_batch, suits_lanes
from vitrail.train.judging import Judgement, judge
from vitrail.train.listener import Listener
from vitrail.train.optim import build_optimizers, set_learning_rate, start_state
from vitrail.train.ranks import Ranks, spread, whole
from vitrail.train.schedule import lr_factor
from vitrail.train.setup import EVAL_BATCH, Setup, check_strategy, num_threads, plain_loader, training_loader
from vitrail.train.signals import InterruptedRunError, Signals
from vitrail.weights.checkpoint import Checkpoint, Origin
from vitrail.weights.native import save_checkpoint
from vitrail.wording import counted

MAX_RESCUES = 3
AGREE_EVERY = {"cpu": 1}  # steps between two questions to the other ranks (stop? save?); on GPUs that costs a wait


class Trainer:
    """One run: made from a setup, moved by `run`, kept in a folder."""

    def __init__(self, setup: Setup, ranks: Ranks, folder: Path, listener: Listener | None = None) -> None:
        config = setup.config
        check_strategy(config, ranks.world_size)
        self.setup, self.ranks, self.folder = setup, ranks, folder
        self.listener = listener or Listener()
        self.model = setup.model.to(ranks.device)
        self.model.gradient_checkpointing = config.machine.recompute
        self.only_head = config.start.train == "head"
        sharded = config.machine.strategy == "fsdp" and not self.only_head
        trained: Any = self.model.head if self.only_head else self.model
        self.module = spread(trained, ranks, "fsdp" if sharded else "ddp")
        self.sharded = sharded
        depth = self.model.config.depth
        self.optimizers = build_optimizers(self.model, config.optim, depth)
        self.precision = pick_precision(config.machine.precision, ranks.device)
        self.engine = make_engine(setup, self.module, ranks)
        self.loader: Any = None
        self.val_loader: Any = None
        self._make_loaders()
        self.total_steps = config.schedule.epochs * len(self.loader)
        self.average = None if config.optim.ema is None else Average(self.model, config.optim.ema)
        start_state(self.optimizers)
        self.progress = Progress()
        self._saved_at = time.monotonic()
        self._clock = time.monotonic()
        self._restored = ""  # the checkpoint that we went back to, until a step from there has worked
        self._bad = set[str]()  # checkpoints that led nowhere

    def _make_loaders(self) -> None:
        if not self.only_head:
            self.loader = training_loader(self.setup, self.ranks)
            if self.setup.has_validation:
                self.val_loader = plain_loader(self.setup, "val", self.ranks)
            return
        self.loader = self._feature_loader("train")
        if self.setup.has_validation:
            self.val_loader = self._feature_loader("val")

    def _feature_loader(self, split: str) -> FeatureLoader:
        self.model.eval()

        def features_of(images: Tensor) -> Tensor:
            return self.model.features(images.to(self.ranks.device))

        pictures = counted(len(self.setup.dataset.split(split)), f"{split} picture")
        self.listener.said(f"computing the features of {pictures}, once")
        loader = plain_loader(self.setup, split, self.ranks)
        found = compute_features(loader, features_of, partial(self.listener.prepared, f"{split} features"))
        size = self.setup.config.machine.batch_size
        assert isinstance(size, int)
        training = split == "train"
        seed = self.setup.config.machine.seed
        batch = size if training else EVAL_BATCH * self.ranks.world_size
        data = loader.state_dict()["data"]
        return FeatureLoader(found.images, found.targets, batch, seed, self.ranks, shuffled=training, data=data)

    # The run ------------------------------------------------------------------------------------------------------

    def run(self) -> Progress:
        """From wherever the run is to its end; raises `InterruptedRunError` after saving if a signal asks for that."""
        config = self.setup.config
        if self.progress.step == 0 and not checkpoint.list_checkpoints(self.folder / "weights" / "last"):
            self.save()
        self.listener.began(self.total_steps, self.progress.step, config.schedule.epochs)
        try:
            with Signals() as signals, self.one_thread():
                while self.progress.epoch < config.schedule.epochs and not self.progress.stopped_early:
                    self._train_epoch(signals)
        finally:
            self.listener.ended()
        return self.progress

    @contextmanager
    def one_thread(self) -> Generator[None]:
        """With lanes, whatever is left to this thread is small, and sums in one order only if nobody helps it."""
        before = torch.get_num_threads()
        if isinstance(self.engine, Lanes):
            torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(before)

    def resume(self) -> None:
        """Go back to the newest checkpoint of the folder, on disk and in memory; without one, to the beginning."""
        found = self.ranks.from_first(lambda: checkpoint.list_checkpoints(self.folder / "weights" / "last"))
        if found:
            self._restore(found[-1])
        self.ranks.from_first(lambda: keep_rows(self.folder / "results.csv", self.progress.epoch))

    def _restore(self, path: Path) -> None:
        self.progress = checkpoint.restore(path, self._tensors(), self.ranks)
        if self.progress.loader:
            self.loader.load_state_dict(self.progress.loader)

    def _train_epoch(self, signals: Signals) -> None:
        """The rest of the epoch under way."""
        self.loader.set_epoch(self.progress.epoch)
        self.module.train()
        self._clock = began = time.monotonic()
        images = 0
        for batch in self.loader:
            loss, norm = self.step(batch.images, batch.targets)
            if not math.isfinite(norm):  # the same on all ranks, since they have added up their gradients
                self._rescue("the gradient is not finite")
                return
            self._restored = ""
            images += len(batch.images) * self.ranks.world_size
            self.listener.stepped(self.progress.step, loss, images / (time.monotonic() - began))
            self._agree(signals)
        self._end_epoch(images / (time.monotonic() - began))
        self._agree(signals)

    def step(self, images: Tensor, targets: Tensor) -> tuple[float, float]:
        """One change of the weights: its loss (of this rank) and the norm of the gradient (of all)."""
        config, progress = self.setup.config, self.progress
        torch.manual_seed(_mix(config.machine.seed, progress.step, self.ranks.rank))
        factor = lr_factor(config.schedule, progress.step, self.total_steps) * progress.lr_scale
        set_learning_rate(self.optimizers, factor)
        images = images.to(self.ranks.device, non_blocking=True)
        targets = targets.to(self.ranks.device, non_blocking=True)
        loss = float(self.engine.accumulate(images, targets, config.optim.label_smoothing))
        norm = self._clip(config.optim.clip)
        if math.isfinite(norm):  # otherwise the weights stay as they were
            for optimizer in self.optimizers:
                optimizer.step()
            if self.average is not None:
                self.average.update(progress.step)
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        progress.step += 1
        progress.loss_sum += loss
        progress.loss_count += 1
        return loss, norm

    def _clip(self, limit: float | None) -> float:
        parameters = [parameter for parameter in self.model.parameters() if parameter.grad is not None]
        norm = nn.utils.clip_grad_norm_(parameters, math.inf if limit is None else limit)
        return float(whole(norm))

    def _agree(self, signals: Signals) -> None:
        """All ranks stop, or save, at the same step."""
        if self.ranks.world_size > 1 and self.progress.step % AGREE_EVERY.get(self.ranks.device.type, 16):
            return
        late = time.monotonic() - self._saved_at > 60 * self.setup.config.machine.save_minutes
        stop, save = self.ranks.sum([float(signals.received > 0), float(late and self.ranks.is_first)])
        if stop or save:
            self.save()
        if stop:
            raise InterruptedRunError(signals.received or signal.SIGTERM)

    def _end_epoch(self, images_per_second: float) -> None:
        progress, config = self.progress, self.setup.config
        loss_sum, count = self.ranks.sum([progress.loss_sum, progress.loss_count])
        train_loss = loss_sum / count
        chance = math.log(len(self.setup.dataset.classes))
        if not train_loss <= max(2 * progress.lowest_train_loss, 1.5 * chance):  # so that NaN counts too
            self._rescue(f"the training loss has risen to {train_loss:.3g}", whole_epochs=True)
            return
        with self.best_weights():
            judged = self.judge(self.val_loader) if self.val_loader is not None else None
        if judged is not None and not math.isfinite(judged.loss):
            self._rescue("the validation loss is not finite", whole_epochs=True)
            return
        progress.lowest_train_loss = min(progress.lowest_train_loss, train_loss)
        progress.epoch += 1
        progress.loss_sum, progress.loss_count, progress.rescues = 0.0, 0, 0
        is_best = self._is_best(judged)
        if is_best:
            with self.best_weights():
                self._save_best()
        self._count_seconds()
        row = Row(
            epoch=progress.epoch,
            step=progress.step,
            lr=max(group["lr"] for optimizer in self.optimizers for group in optimizer.param_groups),
            train_loss=train_loss,
            val_loss=None if judged is None else judged.loss,
            val_accuracy=None if judged is None else judged.accuracy,
            images_per_second=images_per_second,
            seconds=progress.seconds,
        )
        self.ranks.from_first(lambda: append_row(self.folder / "results.csv", row))
        patience = config.schedule.patience
        progress.stopped_early = patience is not None and progress.epoch - progress.improved_epoch >= patience
        self.save()
        self.listener.finished_epoch(row, is_best)
        if progress.stopped_early:
            self.listener.said(f"no better for {counted(patience or 0, 'epoch')}: stopping early")

    def _is_best(self, judged: Judgement | None) -> bool:
        """Whether these weights are the ones to keep."""
        progress = self.progress
        if judged is None or judged.accuracy > progress.best_accuracy or judged.loss < progress.lowest_val_loss:
            progress.improved_epoch = progress.epoch
        if judged is not None:
            progress.lowest_val_loss = min(progress.lowest_val_loss, judged.loss)
            if not is_better(judged.accuracy, judged.loss, progress.best_accuracy, progress.lowest_val_loss):
                return False
            progress.best_accuracy, progress.best_loss = judged.accuracy, judged.loss
        progress.best_epoch = progress.epoch
        return True

    def _rescue(self, reason: str, *, whole_epochs: bool = False) -> None:
        """Go back to a good checkpoint with half the learning rate; give up if that has not helped before.

        A loss that has run away may have done so before the newest checkpoint was written, so `whole_epochs` goes back
        to the end of an epoch, which was evaluated. A checkpoint whose first step fails is not tried again.
        """
        step, rescues = self.progress.step, self.progress.rescues + 1
        scale = self.progress.lr_scale / 2
        if self._restored:
            self._bad.add(self._restored)
        folder = self.folder / "weights" / "last"
        path = self.ranks.from_first(lambda: checkpoint.pick(folder, self._bad, whole_epochs=whole_epochs))
        if rescues > MAX_RESCUES or path is None:
            raise VitrailError(
                f"training diverges again and again (step {step}: {reason}), even with the learning rate at "
                f"{self.progress.lr_scale:g} of what was asked; lower --lr, raise --warmup, or check the data. "
                f"The checkpoints are in {folder}."
            )
        self._restore(path)
        self._restored = path.name
        self.progress.rescues, self.progress.lr_scale = rescues, scale
        self.listener.said(
            f"step {step}: {reason}; back to step {self.progress.step} with the learning rate at {scale:g} of the plan"
        )

    # Weights ------------------------------------------------------------------------------------------------------

    def judge(self, loader: Any) -> Judgement:
        """The model as it is now on a loader's pictures."""
        self.module.eval()
        if self.sharded:  # whole batches: every rank must gather the weights equally often
            plain = Plain(self.module, self.module, None, self.precision)
            shape = (1, self.model.config.channels, *self.model.config.image_size)
            nothing = (
                torch.zeros(shape, device=self.ranks.device),
                torch.zeros(1, dtype=torch.long, device=self.ranks.device),
            )
            found = judge(plain.score, loader, self.ranks, lambda: _ignore(plain.score(*nothing)))
        elif isinstance(self.engine, Plain):  # not through DDP, whose forward talks to the other ranks
            forward = self.model.classify if self.only_head else self.model
            found = judge(
                Plain(self.module, forward, self.engine.micro_batch, self.precision).score, loader, self.ranks
            )
        else:
            found = judge(self.engine.score, loader, self.ranks)
        self.module.train()
        return found

    def best_weights(self) -> AbstractContextManager[None]:
        """With the averaged weights in the model, where there are some."""
        return nullcontext() if self.average is None else self.average.in_place()

    def _tensors(self) -> dict[str, Tensor]:
        average = None if self.average is None else self.average.tensors
        return checkpoint.named_tensors(self.model, self.optimizers, average, only_trained=self.only_head)

    def save(self) -> None:
        """Write a resumable checkpoint."""
        self._count_seconds()
        self.progress.loss_sum = self.ranks.sum([self.progress.loss_sum])[0] / self.ranks.world_size
        self.progress.loader = self.loader.state_dict()
        path = checkpoint.save(self.folder / "weights" / "last", self._tensors(), self.progress, self.ranks)
        self._saved_at = time.monotonic()
        self.listener.saved(path)

    def _count_seconds(self) -> None:
        now = time.monotonic()
        self.progress.seconds += now - self._clock
        self._clock = now

    def _save_best(self) -> None:
        """The model as others use it: one file that says everything about itself."""
        tensors = {name: whole(tensor).detach().cpu() for name, tensor in self.model.state_dict().items()}
        setup = self.setup
        finished = Checkpoint(
            config=self.model.config,
            tensors=tensors,
            preprocess=setup.preprocess,
            classes=setup.dataset.classes,
            origin=Origin(source=setup.source or f"trained on {setup.dataset.name} with {setup.config.recipe}"),
        )
        self.ranks.from_first(lambda: save_checkpoint(finished, self.folder / "weights" / "best.safetensors"))


def make_engine(setup: Setup, module: nn.Module, ranks: Ranks) -> Plain | Lanes:
    """What computes gradients of the module: threads with micro-batches of their own where these are faster."""
    machine = setup.config.machine
    precision = pick_precision(machine.precision, ranks.device)
    if machine.compile == "on":
        micro = machine.micro_batch or default_micro_batch(setup.model, ranks.device)
        return Plain(module, compiled(module), micro, precision)
    alone = ranks.world_size == 1 and module is setup.model and precision == "float32"
    if alone and suits_lanes(setup.model, ranks.device):
        lanes, size = num_threads(), machine.batch_size
        assert isinstance(size, int)
        return Lanes(module, module, machine.micro_batch or lane_batch(setup.model, size, lanes), lanes)
    return Plain(module, module, machine.micro_batch or default_micro_batch(setup.model, ranks.device), precision)


def compiled(module: nn.Module) -> Forward:
    """The module through torch.compile; what is not compiled when it runs first never will be, so errors come then."""
    return cast("Forward", torch.compile(module))


def pick_precision(asked: str, device: torch.device) -> str:
    """bf16 on GPUs that have it; elsewhere it would be slower, or emulated."""
    if asked == "auto":
        return "bf16" if device.type == "cuda" and torch.cuda.is_bf16_supported() else "float32"
    return asked


def _ignore(_: object) -> None:
    pass


def _mix(seed: int, step: int, rank: int) -> int:
    """One number for a step's random numbers, different for every step and rank."""
    return (seed * 1_000_003 + step * 7_919 + rank) % 2**63
