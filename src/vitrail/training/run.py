"""One run, from its setup to the measured result: perhaps a head first, the loop, the calibration, the test split.

With `probe`, the head is trained first, on features that are computed once, and fine-tuning starts from it
("Fine-Tuning can Distort Pretrained Features"); it is kept if fine-tuning does not improve on it. The head's own run is
in `probe/` of the run folder, with its features; an interrupted one continues.
"""

import json
import shutil
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch

from vitrail.evaluation.measurement import Measurement
from vitrail.files import atomic_path
from vitrail.model import ViT
from vitrail.prediction import Predictor, load
from vitrail.ranks import Ranks
from vitrail.training import snapshots
from vitrail.training.balance import try_on_features
from vitrail.training.best_weights import BEST, calibrate, measure_test
from vitrail.training.changes import apply_changes
from vitrail.training.curves import RESULTS, EpochRow, draw_curves, learning_rates, read_rows
from vitrail.training.features import FeatureLoader, feature_loader
from vitrail.training.fold_scores import FoldResults
from vitrail.training.listener import Listener, Quiet
from vitrail.training.loop import Trainer
from vitrail.training.lora import merged
from vitrail.training.objectives import Batches, SplitScore
from vitrail.training.recipes import probe_config
from vitrail.training.result import Run
from vitrail.training.run_folder import ELASTIC, METRICS, write_config
from vitrail.training.setup import Setup, fit_batch_size
from vitrail.training.signals import InterruptedRunError
from vitrail.training.snapshots import LAST, RunState
from vitrail.training.whitening import whiten
from vitrail.weights.native import read_native
from vitrail.wording import counted, show_metric

PROBE = "probe"  # the folder of the head's own run


def carry_out(
    setup: Setup,
    ranks: Ranks,
    folder: Path,
    listener: Listener,
    *,
    resume: bool,
    folds: FoldResults | None = None,
    draw: bool = True,
) -> tuple[Run, Predictor]:
    """Train to the end and measure the result; the best weights, as measured, are returned for the report.

    With `folds`, the model is calibrated by what they have measured. `draw` is for the curves, which take as long as
    a head on features.
    """
    setup, loaders = try_balances(setup, ranks, folder, listener)
    head = probe(setup, ranks, folder, listener, loaders) if setup.config.start.probe else None
    if setup.config.start.whiten != "off":
        whiten_once(setup, ranks, folder, listener)
    on_features = setup.config.start.training.on_features
    trainer = Trainer(setup, ranks, folder, listener, loaders=loaders if on_features else None)
    if resume:
        trainer.resume()
    if head is not None:
        trainer.start_from(head)
    state = trainer.run()
    if ranks.is_first and draw:
        draw_results(trainer)
    ranks.wait()
    loaders = {"train": trainer.loader, "val": trainer.val_loader}
    features = {split: loader.stored for split, loader in loaders.items() if isinstance(loader, FeatureLoader)}
    held_out = None if folds is None else folds.held_out
    predictor = load(folder, device=ranks.device)
    unlearned = setup.config.start.probe and state.best_epoch == 0  # the head by itself, which has seen no outliers
    seen = replace(setup, config=apply_changes(setup.config, {"outlier_rate": 0.0})) if unlearned else setup
    predictor, on_val = calibrate(predictor, seen, ranks, folder, listener, features, held_out)
    on_test = measure_test(predictor, setup, listener)
    run = Run(
        folder=folder,
        epochs=state.epoch,
        best_epoch=state.best_epoch,
        seconds=state.seconds + (0.0 if folds is None else folds.seconds),
        val=scores_of(setup, state),
        test=None if on_test is None else as_score(on_test, setup),
        measurement=on_test or on_val,
        shown=trainer.objective.shown,
    )
    if folds is not None:
        run = replace(run, folds=folds.scores, fold_repeats=folds.repeats, held_out=on_val)
    if ranks.is_first:
        write_metrics(run)
        (folder / ELASTIC).unlink(missing_ok=True)
    return run, predictor


def whiten_once(setup: Setup, ranks: Ranks, folder: Path, listener: Listener) -> None:
    """Give a run its first filters, unless it has gone beyond that: its checkpoints have them."""
    if has_begun(ranks, folder):
        return
    count = whiten(setup.model, setup.dataset, setup.preprocess, setup.config.machine.seed)
    listener.said(f"the first filters whiten the patches of {counted(count, 'training picture')}")


def has_begun(ranks: Ranks, folder: Path) -> bool:
    """Whether a run has a checkpoint to go back to."""
    return ranks.from_first(lambda: bool(snapshots.list_snapshots(folder / LAST)))


def write_metrics(run: Run) -> None:
    """The numbers of a run, in its folder."""
    with atomic_path(run.folder / METRICS) as draft:
        draft.write_text(json.dumps(run.facts(), indent=2), encoding="utf-8")


def draw_results(trainer: Trainer) -> None:
    """The curves of a run, in its folder."""
    setup, folder = trainer.setup, trainer.folder
    rates = learning_rates(setup.model, setup.config, setup.model.config.depth)
    title, choice = f"{setup.dataset.name}, {setup.config.recipe}", trainer.objective.choice
    draw_curves(read_rows(folder / RESULTS), folder / "results.png", title, choice, rates)


def scores_of(setup: Setup, state: RunState) -> SplitScore | None:
    """The best weights on the validation pictures, if there are any."""
    if not setup.has_validation:
        return None
    count = len(setup.dataset.split("val"))
    return SplitScore(loss=state.best_loss, metrics=state.best_metrics, count=count)


def as_score(measurement: Measurement, setup: Setup) -> SplitScore:
    """As validation scores a split, whatever was calibrated."""
    outputs, targets = torch.from_numpy(measurement.logits), torch.from_numpy(measurement.targets)
    metrics = setup.task.summarize([setup.task.score(outputs, targets)])
    return SplitScore(loss=float(metrics.pop("loss")), metrics=metrics, count=len(targets))


def try_balances(
    setup: Setup, ranks: Ranks, folder: Path, listener: Listener
) -> tuple[Setup, dict[str, FeatureLoader]]:
    """The setup with the `balance` that suits its features, if that is to be found out; and these features.

    It is written into the run's config: a resumed run does not choose again.
    """
    if setup.config.optim.balance != "auto":
        return setup, {}
    probing = setup.config.start.probe
    head, place = (_head_of(setup, ranks), folder / PROBE) if probing else (setup, folder)
    loaders = {split: feature_loader(head, split, ranks, listener, place) for split in ("train", "val")}
    listener.ended()
    balance = ranks.from_first(lambda: try_on_features(setup, loaders["train"], loaders["val"], listener.said))
    setup = replace(setup, config=apply_changes(setup.config, {"balance": balance}))
    ranks.from_first(lambda: write_config(setup.config, folder))
    return setup, {**loaders, "train": replace(loaders["train"], evenly=balance == "sample")}


def _head_of(setup: Setup, ranks: Ranks) -> Setup:
    """The head's own run before fine-tuning."""
    config = fit_batch_size(probe_config(setup.config), setup.dataset, ranks.world_size)
    plain = ViT(setup.model.config)
    plain.load_state_dict(merged(setup.model, setup.model.state_dict()))
    return replace(setup, config=config, model=plain)


def probe(
    setup: Setup, ranks: Ranks, folder: Path, listener: Listener, loaders: Mapping[str, Batches] | None = None
) -> EpochRow | None:
    """Train the head and put it into the model and the run folder; None if the run has gone beyond that."""
    if has_begun(ranks, folder):
        return None
    began = time.monotonic()
    trainer = Trainer(_head_of(setup, ranks), ranks, folder / PROBE, Quiet(listener), loaders=loaders)
    try:
        trainer.resume()
        state = trainer.run()
    except InterruptedRunError as error:
        raise InterruptedRunError(error.exit_code - 128, folder) from None
    best = folder / PROBE / BEST
    tensors = ranks.in_turn(lambda: read_native(best)).tensors
    assert setup.model.head is not None
    with torch.no_grad():
        setup.model.head.weight.copy_(tensors["head.weight"])
        setup.model.head.bias.copy_(tensors["head.bias"])
    ranks.from_first(lambda: _copy(best, folder / BEST))  # the best so far
    val = scores_of(setup, state)
    if val is not None:
        choice = trainer.objective.choice
        reached = show_metric(choice.metric, val.loss if choice.metric == "loss" else val.metrics[choice.metric])
        listener.said(f"the head alone reaches a validation {choice.title} of {reached}; fine-tuning starts from it")
    return EpochRow(
        epoch=0,
        step=0,
        lr=0.0,
        train_loss=state.lowest_train_loss,
        val_loss=None if val is None else val.loss,
        metrics={} if val is None else val.metrics,
        shown=trainer.objective.shown,
        images_per_second=0.0,
        seconds=time.monotonic() - began,
    )


def _copy(source: Path, target: Path) -> None:
    with atomic_path(target) as draft:
        shutil.copyfile(source, draft)
