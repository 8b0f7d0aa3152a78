"""The training loop, the only one: every recipe, on one process or many, comes through here.

A step is a function of (weights, optimiser state, seed, step number) only: batches, augmentation and dropout follow
from counters, nothing from the clock or from a generator's history. That is why a run that was killed and resumed ends
with the same bits as one that was not.
"""

import math
import signal
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from vitrail.data import Batch
from vitrail.errors import VitrailError, WeightsError
from vitrail.machine import freed_memory_kept
from vitrail.ranks import Ranks
from vitrail.threads import cores
from vitrail.training import budget, snapshots
from vitrail.training.best_weights import BestWeights
from vitrail.training.curves import RESULTS, EpochRow, append_row, keep_rows
from vitrail.training.gradients import Lanes, Plain, make_engine, move, pick_precision, spread, whole
from vitrail.training.listener import Listener
from vitrail.training.objectives import Batches, Objective, SplitScore, evaluate, freeze, make_objective
from vitrail.training.optim import EMA, build_optimizers, local_part, lr_factor, set_learning_rate, start_state
from vitrail.training.setup import Setup, check_strategy
from vitrail.training.signals import InterruptedRunError, Signals
from vitrail.training.snapshots import LAST, Recovery, RunState
from vitrail.wording import counted

MAX_RESCUES = 3
AGREE_EVERY = {"cpu": 1}  # steps between exchanges with the other ranks (stop? save?), which make GPUs wait


class Trainer:
    """One run: made from a setup, moved by `run`, kept in a folder.

    The objective is the one that the config asks for, unless another is passed; so are the batches of each split.
    """

    def __init__(
        self,
        setup: Setup,
        ranks: Ranks,
        folder: Path,
        listener: Listener | None = None,
        objective: Objective | None = None,
        loaders: Mapping[str, Batches] | None = None,
    ) -> None:
        config = setup.config
        check_strategy(config, ranks.world_size)
        self.setup, self.ranks, self.folder = setup, ranks, folder
        self.listener = listener or Listener()
        self.model = setup.model
        self.model.gradient_checkpointing = config.machine.recompute
        self.objective = (make_objective(setup) if objective is None else freeze(objective)).to(ranks.device)
        self.sharded = config.machine.strategy == "fsdp" and config.start.training.can_be_sharded
        self.module = spread(self.objective, ranks, "fsdp" if self.sharded else "ddp")
        self.optimizers = build_optimizers(self.objective, config.optim, setup.model.config.depth)
        self._peak_lr = max(group["peak_lr"] for optimizer in self.optimizers for group in optimizer.param_groups)
        self.precision = pick_precision(config.machine.precision, ranks.device)
        self.engine = make_engine(setup, self.module, self.objective, ranks)
        self._given = loaders or {}
        self.loader = self._batches("train")
        self.objective.prepare(self.loader, ranks, self.listener, folder)
        self.val_loader = self._batches("val") if setup.has_validation else None
        self._validation = "" if self.val_loader is None else str(self.val_loader.state_dict()["data"])
        self.ema = None if config.optim.ema is None else EMA(self.objective, config.optim.ema)
        start_state(self.optimizers)
        self.state = RunState()
        if config.schedule.minutes is not None and self.objective.fits_epochs:
            self.state.plan = budget.first_plan(config.schedule.epochs, len(self.loader))
        self._reported_epochs = config.schedule.epochs  # that were reported last
        self._saved_at = time.monotonic()
        self._clock = time.monotonic()
        self._evaluation_pace: float | None = None  # seconds per picture, once there was a validation
        self._best = BestWeights(setup, self.objective, ranks, folder, self.listener)
        self._recovery = Recovery(ranks, lambda message: self.listener.said(message))

    def _batches(self, split: str) -> Batches:
        given = self._given.get(split)
        return self.objective.batches(split, self.ranks, self.listener, self.folder) if given is None else given

    @property
    def last(self) -> Path:
        """Where the resumable checkpoints are."""
        return self.folder / LAST

    @property
    def epochs(self) -> int:
        """How many epochs the run will have, as planned."""
        plan = self.state.plan
        return self.setup.config.schedule.epochs if plan is None else plan.epochs

    @property
    def total_steps(self) -> int:
        return self.epochs * len(self.loader)

    # The run ------------------------------------------------------------------------------------------------------

    def run(self) -> RunState:
        """From wherever the run is to its end; raises `InterruptedRunError` after saving if a signal requests that."""
        if self.state.step == 0 and not snapshots.list_snapshots(self.last):
            if self.state.plan is not None:
                before = max(time.monotonic() - self.setup.began - self.state.seconds, 0.0)
                self.state.plan = replace(self.state.plan, before=before)
            self.save()
        self.listener.began(self.total_steps, self.state.step, self.epochs)
        try:
            with Signals() as signals, self.one_thread(), freed_memory_kept():
                while self.state.epoch < self.epochs and not self.state.stopped_early:
                    self._train_epoch(signals)
        finally:
            self.listener.ended()
        return self.state

    def one_thread(self) -> AbstractContextManager[None]:
        """With lanes, this thread's own work is small, and its sums have a fixed order only on a single thread."""
        return cores(1) if isinstance(self.engine, Lanes) else nullcontext()

    def resume(self) -> None:
        """Go back to the newest whole checkpoint of the folder, on disk and in memory; without any, to the beginning.

        Damaged checkpoints are set aside and reported.
        """
        if self.ranks.from_first(lambda: bool(snapshots.list_snapshots(self.last))):
            if not self._recovery.go_back(self.last, self._restore):
                raise WeightsError(f"none of the checkpoints in {self.last} is whole; start a new run.")
            self._reported_epochs = self.epochs
        epochs = self.state.epoch
        kept = self.ranks.from_first(lambda: keep_rows(self.folder / RESULTS, epochs))
        if lost := epochs - sum(row.epoch > 0 for row in kept):
            self.listener.said(
                f"{self.folder / RESULTS} has no row for {lost:,} of {counted(epochs, 'epoch')} so far; "
                "the curves and the report go without"
            )

    def start_from(self, head: EpochRow) -> None:
        """Begin with a head that is trained already: row 0, and what epochs must improve on."""
        state = self.state
        state.seconds = state.epoch_began = head.seconds
        if head.val_loss is None:
            return
        state.best_metrics, state.best_loss = dict(head.metrics), head.val_loss
        state.lowest_val_loss = head.val_loss
        path = self.folder / RESULTS
        self.ranks.from_first(lambda: keep_rows(path, -1))  # of a run that was killed here
        self.ranks.from_first(lambda: append_row(path, head))

    def _restore(self, path: Path) -> bool:
        """Continue from a checkpoint; whether its numbers are finite."""
        state = snapshots.restore(path, self._tensors(), self.ranks)
        steps = len(self.loader)
        if state.step > (state.epoch + 1) * steps or state.loader.get("batch", 0) > steps:
            raise WeightsError(f"{path} does not fit this run, whose epochs have {steps} steps.")
        if state.loader:
            self.loader.load_state_dict(state.loader)
        if state.validation not in ("", self._validation):
            self.listener.said("the validation pictures have changed; do not compare accuracies from before and after")
        self.state = state
        return all(_is_finite(tensor) for tensor in self._tensors().values())

    def _train_epoch(self, signals: Signals) -> None:
        """The rest of the current epoch."""
        self.loader.set_epoch(self.state.epoch)
        self.objective.begin_epoch(self.state.epoch)
        self.module.train()
        state = self.state
        self._clock = began = time.monotonic()
        for batch in self.loader:
            loss, norm = self.step(batch)
            if not math.isfinite(norm):  # the same on all ranks, since they have summed their gradients
                self._rescue("the gradient is not finite")
                return
            self._recovery.stepped()
            state.images += len(batch.images) * self.ranks.world_size
            state.images_seconds += time.monotonic() - began
            self.listener.stepped(state.step, loss, self._images_per_second())
            if self._agree(signals):
                break
            began = time.monotonic()
        self._end_epoch()
        self._agree(signals)

    def _images_per_second(self) -> float:
        return self.state.images / max(self.state.images_seconds, 1e-9)

    def _lr_share(self, step: int) -> float:
        """The learning rate of a step as a share of its highest."""
        state, schedule = self.state, self.setup.config.schedule
        if state.plan is None:
            return lr_factor(schedule, step, self.total_steps) * state.lr_scale
        position = budget.curve_position(state.plan, step, self.total_steps)
        return lr_factor(schedule, position, state.plan.curve_steps) * state.lr_scale

    def step(self, batch: Batch) -> tuple[float, float]:
        """One change of the weights: its loss (of this rank) and the norm of the gradient (of all)."""
        config, state = self.setup.config, self.state
        torch.manual_seed(_mix(config.machine.seed, state.step, self.ranks.rank))
        set_learning_rate(self.optimizers, self._lr_share(state.step))
        total, means = self.engine.accumulate(move(batch, self.ranks.device))
        loss = float(total)
        norm = self._clip(config.optim.clip)
        if math.isfinite(norm):  # otherwise the weights stay as they were
            for optimizer in self.optimizers:
                optimizer.step()
            if self.ema is not None:
                self.ema.update(state.step)
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        state.step += 1
        state.loss_sum += loss
        state.loss_count += 1
        for name, mean in means.items():
            state.metric_sums[name] = state.metric_sums.get(name, 0.0) + float(mean)
        return loss, norm

    def _clip(self, limit: float | None) -> float:
        parameters = [parameter for parameter in self.objective.parameters() if parameter.grad is not None]
        norm = nn.utils.clip_grad_norm_(parameters, math.inf if limit is None else limit)
        return float(whole(norm))

    def _agree(self, signals: Signals) -> bool:
        """All ranks stop, save, or end the epoch because the time is up, at the same step; whether it is up."""
        if self.ranks.world_size > 1 and self.state.step % AGREE_EVERY.get(self.ranks.device.type, 16):
            return False
        late = time.monotonic() - self._saved_at > 60 * self.setup.config.machine.save_minutes
        wishes = [signals.received > 0, late and self.ranks.is_first, self._is_over() and self.ranks.is_first]
        stop, save, over = self.ranks.sum([float(wish) for wish in wishes])
        if stop or save:
            self.save()
        if stop:
            raise InterruptedRunError(signals.received or signal.SIGTERM, self.folder)
        return over > 0

    def _is_over(self) -> bool:
        """Whether a time budget has room only for what comes after this epoch."""
        plan, minutes = self.state.plan, self.setup.config.schedule.minutes
        if plan is None or minutes is None:
            return False
        spent = plan.before + self.state.seconds + time.monotonic() - self._clock
        return spent + self._ending() > 60 * minutes

    def _ending(self) -> float:
        """Seconds for what comes after the last epoch, at the pace of the last validation, or a third of a step's."""
        state = self.state
        each = self._evaluation_pace
        if each is None:
            each = state.images_seconds / max(state.images, 1) / 3
        return each * budget.pictures_at_the_end(self.setup.dataset.splits, pretrains=self.setup.config.pretrains)

    def _end_epoch(self) -> None:
        state, config = self.state, self.setup.config
        names = sorted(state.metric_sums)
        sums = [state.loss_sum, *(state.metric_sums[name] for name in names)]
        *totals, count = self.ranks.sum([*sums, state.loss_count])
        train_loss, *means = (total / count for total in totals)
        if self.objective.has_diverged(train_loss, state.lowest_train_loss):
            self._rescue(f"the training loss has risen to {train_loss:.3g}", whole_epochs=True)
            return
        self._share_statistics()
        with self.best_weights():
            score = self._validate()
        if score is not None and not math.isfinite(score.loss):
            self._rescue("the validation loss is not finite", whole_epochs=True)
            return
        state.lowest_train_loss = min(state.lowest_train_loss, train_loss)
        state.epoch += 1
        state.loss_sum, state.loss_count, state.metric_sums, state.rescues = 0.0, 0, {}, 0
        is_best = self._is_best(score)
        if is_best:
            with self.best_weights():
                self._best.save()
        self._count_seconds()
        row = EpochRow(
            epoch=state.epoch,
            step=state.step,
            lr=self._lr_share(state.step - 1) * self._peak_lr,
            train_loss=train_loss,
            val_loss=None if score is None else score.loss,
            metrics={} if score is None else score.metrics,
            train_metrics=dict(zip(names, means, strict=True)),
            shown=self.objective.shown,
            images_per_second=self._images_per_second(),
            seconds=state.seconds,
        )
        self.ranks.from_first(lambda: append_row(self.folder / RESULTS, row))
        patience = config.schedule.patience
        state.stopped_early = patience is not None and state.epoch - state.improved_epoch >= patience
        self.listener.finished_epoch(row, is_best and not self.objective.choice.keeps_last)
        self._replan()
        state.images, state.images_seconds = 0, 0.0
        self.save()
        if state.stopped_early:
            self.listener.said(f"no improvement for {counted(patience or 0, 'epoch')}: stopping early")

    def _share_statistics(self) -> None:
        """Validate what is saved: a batch norm's statistics are those of the pictures that its rank has seen."""
        statistics = {name: each for name, each in self.objective.named_buffers() if each.is_floating_point()}
        self.ranks.share(statistics.values())
        if self.ema is not None:
            self.ranks.share(self.ema.tensors[name] for name in statistics if name in self.ema.tensors)

    def _validate(self) -> SplitScore | None:
        """The model on the validation pictures, and what else the objective wants to know of it."""
        if self.val_loader is None:
            return None
        began = time.monotonic()
        score = self.evaluate(self.val_loader)
        self._evaluation_pace = (time.monotonic() - began) / max(score.count, 1)
        with self.objective.examining(self.state.epoch + 1, self.epochs, self.ranks) as batches:
            more = {} if batches is None else self.evaluate(batches).metrics
        return replace(score, metrics={**score.metrics, **more})

    def _replan(self) -> None:
        """With a time budget: as many more epochs as the last one's pace allows."""
        state, minutes = self.state, self.setup.config.schedule.minutes
        epoch_seconds, state.epoch_began = state.seconds - state.epoch_began, state.seconds
        if state.plan is None or minutes is None or state.stopped_early:
            return
        plan = state.plan
        pace = budget.Pace(so_far=plan.before + state.seconds, epoch=epoch_seconds, ending=self._ending())
        where = {"epoch": state.epoch, "steps_per_epoch": len(self.loader), "step": state.step}
        state.plan = self.ranks.from_first(lambda: budget.revise(plan, minutes, pace, **where))
        note = budget.describe(state.plan, minutes, pace, epoch=state.epoch, reported=self._reported_epochs)
        if note is not None:
            self._reported_epochs = state.plan.epochs
            self.listener.said(note)
        self.listener.planned(self.total_steps, self.epochs)

    def _is_best(self, score: SplitScore | None) -> bool:
        """Whether these weights are the ones to keep."""
        state = self.state
        if score is None or self.objective.improves(score, state):
            state.improved_epoch = state.epoch
        if score is not None:
            state.lowest_val_loss = min(state.lowest_val_loss, score.loss)
            if not self.objective.is_better(score, state):
                return False
            state.best_metrics, state.best_loss = dict(score.metrics), score.loss
        state.best_epoch = state.epoch
        return True

    def _rescue(self, reason: str, *, whole_epochs: bool = False) -> None:
        """Go back to a good checkpoint with half the learning rate; give up if that has failed too often.

        A loss may have started to diverge before the newest checkpoint was written, so `whole_epochs` goes back
        to the end of an epoch, which was evaluated. A checkpoint whose first step fails is not tried again.
        """
        before, rescues = self.state, self.state.rescues + 1
        if rescues > MAX_RESCUES or not self._recovery.go_back(self.last, self._restore, whole_epochs=whole_epochs):
            tried = f"even with the learning rate at {before.lr_scale:g} of the requested one"
            raise VitrailError(
                f"training diverges again and again (step {before.step}: {reason}), "
                f"{tried if rescues > MAX_RESCUES else 'and there is no other whole checkpoint to go back to'}; "
                f"lower `lr=`, raise `warmup=`, or check the data. The checkpoints are in {self.last}."
            )
        now = self.state
        now.rescues, now.lr_scale = rescues, before.lr_scale / 2
        now.epoch_began += before.seconds - now.seconds  # the time was spent, even if in vain
        now.seconds = before.seconds
        self.listener.said(
            f"step {before.step}: {reason}; back to step {now.step} with the learning rate at {now.lr_scale:g} "
            "of the plan"
        )

    # Weights ------------------------------------------------------------------------------------------------------

    def evaluate(self, loader: Batches) -> SplitScore:
        """The model as it is now on a loader's pictures."""
        self.module.eval()
        if self.sharded:  # whole batches: every rank must gather the weights equally often
            plain = Plain(self.module, self.module, self.objective, None, self.precision)
            blank = self.objective.blank(self.ranks.device)
            score = evaluate(self.objective, plain.score, loader, self.ranks, lambda: plain.score(blank))
        elif isinstance(self.engine, Lanes):
            score = evaluate(self.objective, self.engine.score, loader, self.ranks)
        else:  # not through DDP, whose forward pass communicates with the other ranks
            micro = self.engine.micro_batch
            plain = Plain(self.module, self.objective, self.objective, micro, self.precision)
            score = evaluate(self.objective, plain.score, loader, self.ranks)
        self.module.train()
        return score

    def best_weights(self) -> AbstractContextManager[None]:
        """With the averaged weights in the model, if there are any."""
        return nullcontext() if self.ema is None else self.ema.in_place()

    def _tensors(self) -> dict[str, Tensor]:
        average = None if self.ema is None else self.ema.tensors
        only_trained = self.objective.keeps_only_trained
        return snapshots.named_tensors(self.objective, self.optimizers, average, only_trained=only_trained)

    def save(self) -> None:
        """Write a resumable checkpoint."""
        self._count_seconds()
        self._share_sums()
        self.state.loader, self.state.validation = self.loader.state_dict(), self._validation
        path = snapshots.save(self.last, self._tensors(), self.state, self.ranks)
        self._saved_at = time.monotonic()
        self.listener.saved(path)

    def _share_sums(self) -> None:
        """Give every rank the mean of all, since only one writes them."""
        state, names = self.state, sorted(self.state.metric_sums)
        sums = self.ranks.sum([state.loss_sum, *(state.metric_sums[name] for name in names)])
        state.loss_sum, *means = (total / self.ranks.world_size for total in sums)
        state.metric_sums = dict(zip(names, means, strict=True))

    def _count_seconds(self) -> None:
        now = time.monotonic()
        self.state.seconds += now - self._clock
        self._clock = now


def _is_finite(tensor: Tensor) -> bool:
    return bool(local_part(tensor).isfinite().all())


def _mix(seed: int, step: int, rank: int) -> int:
    """One number for a step's random numbers, different for every step and rank."""
    return (seed * 1_000_003 + step * 7_919 + rank) % 2**63
