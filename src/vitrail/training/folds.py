"""Folds: the pictures are divided into parts, a model is trained without each part and measured on it, and one last
model is trained on everything.

Each fold is a run in a folder of its own, `fold-N/`; what it computed for its pictures is `outputs.safetensors` there,
which is written last: a fold that has it is finished. The last model is that of the run folder itself. Features of
frozen weights are computed once, in the run folder.
"""

import csv
import time
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
import yaml

from vitrail.data import Dataset, write_split_file
from vitrail.data.partition import assign_folds
from vitrail.errors import DataError
from vitrail.evaluation.measurement import HELD_OUT, Measurement, Singles, measure_split
from vitrail.files import atomic_path
from vitrail.model import ViT
from vitrail.prediction import Predictor
from vitrail.ranks import Ranks
from vitrail.registry import labels_of
from vitrail.rng import Floats, Integers
from vitrail.training import snapshots
from vitrail.training.changes import describe_config
from vitrail.training.config import Selection, TrainConfig
from vitrail.training.cost import Measured
from vitrail.training.feature_store import Features, select_features
from vitrail.training.features import compute_features
from vitrail.training.fold_scores import FoldResults
from vitrail.training.listener import Listener, Quiet
from vitrail.training.lora import merged
from vitrail.training.objectives import SplitScore
from vitrail.training.plan import settle
from vitrail.training.recipes import probe_config
from vitrail.training.result import Run, read_run
from vitrail.training.run import carry_out
from vitrail.training.run_folder import CONFIG, FOLDS, SPLIT, sweep
from vitrail.training.setup import Setup, fit_batch_size
from vitrail.training.signals import InterruptedRunError
from vitrail.training.snapshots import LAST
from vitrail.weights.tensor_files import read_safetensors, write_safetensors

OUTPUTS = "outputs.safetensors"
COLUMNS = ("key", "repeat", "fold")  # of folds.csv, counted from 1


def divide_folds(dataset: Dataset, config: TrainConfig) -> Integers:
    """The fold of each training picture, from 0, in each repeat: (repeats, N)."""
    train, selection = dataset.split("train"), config.selection
    assert selection.folds is not None
    return assign_folds(
        train.keys(),
        train.labels,
        dataset.classes,
        folds=selection.folds,
        repeats=selection.fold_repeats,
        seed=config.source.split_seed,
        groups=dataset.groups,
    )


def without(dataset: Dataset, held_out: Integers) -> Dataset:
    """The data of one fold: these pictures are its validation split."""
    train = dataset.split("train")
    others = np.setdiff1d(np.arange(len(train)), held_out)
    return replace(dataset, splits={**dataset.splits, "train": train.select(others), "val": train.select(held_out)})


def settle_folds(
    config: TrainConfig, dataset: Dataset, ranks: Ranks, listener: Listener, **options: Any
) -> tuple[Setup, Measured]:
    """As `settle`, for all folds, by measuring the first; the setup has all their pictures for training.

    A time budget is divided among the folds and the last model; features are computed only once.
    """
    pooled = dataset.pooled()
    first = without(pooled, np.flatnonzero(divide_folds(pooled, config)[0] == 0))
    setup, measured = settle(share_of(config), first, ranks, listener, **options)
    if setup.dataset is not first:  # there was time only for some of the pictures
        pooled = setup.dataset.pooled()
        divide_folds(pooled, config)
    schedule = replace(setup.config.schedule, minutes=config.schedule.minutes)
    whole = replace(setup.config, schedule=schedule, selection=config.selection)
    return replace(setup, config=whole, dataset=pooled), measured


def share_of(config: TrainConfig) -> TrainConfig:
    """The config of one fold, with its part of a time budget."""
    minutes, schedule = config.schedule.minutes, config.schedule
    if minutes is not None and not config.start.training.on_features:
        schedule = replace(schedule, minutes=minutes / config.selection.parts)
    return replace(config, schedule=schedule, selection=Selection())


def carry_out_folds(
    setup: Setup, ranks: Ranks, folder: Path, listener: Listener, *, resume: bool
) -> tuple[Run, Predictor]:
    """All folds, and the model that is trained on everything."""
    work = FoldWork.begin(setup, ranks, folder, listener, resume=resume)
    results = work.run(setup, folder)
    return work.train_last(setup, results)


class FoldWork(NamedTuple):
    """What the folds of a run have in common; the trials of a search share it too."""

    ranks: Ranks
    folder: Path
    listener: Listener
    parts: Integers  # (repeats, N)
    features: Features | None  # of all pictures, if they are learned from
    epochs: int | None  # that fit into a fold's time, as planned; None without a budget

    @classmethod
    def begin(
        cls, setup: Setup, ranks: Ranks, folder: Path, listener: Listener, *, resume: bool, first: Path | None = None
    ) -> "FoldWork":
        """Divide the pictures, or read how they were divided; and compute what all folds share. `first` is the
        folder of the first of them.
        """
        parts = ranks.from_first(lambda: _read_or_write_folds(setup, folder))
        features = share_features(setup, "train", ranks, listener, folder)
        epochs = None
        if setup.config.schedule.minutes is not None and not setup.config.start.training.on_features:
            data = without(setup.dataset, np.flatnonzero(parts[0] == 0))
            planned = ranks.from_first(lambda: planned_epochs(first or folder / "fold-1"))
            if planned is None and resume:  # killed before its plan was saved
                planned = settle(share_of(setup.config), data, ranks, listener)[0].config.schedule.epochs
            epochs = planned or setup.config.schedule.epochs
        return cls(ranks, folder, listener, parts, features, epochs)

    def run(self, setup: Setup, folder: Path, *, quiet: bool = False) -> FoldResults:
        """Train a model without each fold, in `folder`, and measure it there; finished folds are read."""
        config = share_of(setup.config)
        if self.epochs is not None:
            config = replace(config, schedule=replace(config.schedule, epochs=self.epochs))
        repeats, count = self.parts.shape[0], int(self.parts.max()) + 1
        done: list[_Measured] = []
        for number in range(repeats * count):
            held_out = np.flatnonzero(self.parts[number // count] == number % count)
            place = folder / f"fold-{number + 1}"
            if not quiet:
                self.listener.said(f"fold {number + 1} of {repeats * count}: {len(held_out):,} pictures are held out")
            done.append(self._run_fold(replace(setup, config=config), held_out, place))
        return FoldResults(
            scores=tuple(each.score for each in done),
            best_epochs=tuple(each.best_epoch for each in done),
            held_out=_join(setup, done[:count]),
            repeats=repeats,
            seconds=sum(each.seconds for each in done),
        )

    def _run_fold(self, setup: Setup, held_out: Integers, folder: Path) -> "_Measured":
        finished = self.ranks.from_first(lambda: _read_outputs(folder))
        if finished is not None:
            return finished
        data = without(setup.dataset, held_out)
        begun = self.ranks.from_first(lambda: open_part(setup.config, data, folder))
        learned = replace(data, splits={name: data.splits[name] for name in ("train", "val")})
        made = fresh(setup, learned)
        if self.features is not None:
            others = np.setdiff1d(np.arange(len(setup.dataset.split("train"))), held_out)
            rows = {"train": others, "val": held_out}
            made = replace(made, shared={name: select_features(self.features, each) for name, each in rows.items()})
        quiet = setup.config.start.training.on_features
        listener = Quiet(self.listener, says=False) if quiet else self.listener
        try:
            run, predictor = carry_out(made, self.ranks, folder, listener, resume=begun, draw=not quiet)
        except InterruptedRunError as error:
            raise InterruptedRunError(error.exit_code - 128, self.folder) from None
        measured = run.measurement or measure_split(predictor, learned, "val")
        assert run.val is not None
        outputs = _Measured(
            run.val, run.best_epoch, run.seconds, held_out[measured.samples], measured.logits, measured.familiarity
        )
        self.ranks.from_first(lambda: _write_outputs(folder, outputs))
        return outputs

    def train_last(self, setup: Setup, results: FoldResults) -> tuple[Run, Predictor]:
        """The model that is trained on everything, for as long as was best for the folds; they calibrate it."""
        config, epochs = share_of(setup.config), round(median(results.best_epochs))
        if config.augment.outlier_rate > 0:
            known, results = results.held_out.familiarity, results.calibrating(epochs)
            if known is not None and results.held_out.familiarity is None:
                self.listener.said("the last model cannot tell what is unfamiliar: only some models saw outliers")
        if epochs == 0:  # nothing was better than the head alone
            config = fit_batch_size(probe_config(config), setup.dataset, self.ranks.world_size)
            epochs = config.schedule.epochs
        config = replace(config, schedule=replace(config.schedule, epochs=epochs, minutes=None, patience=None))
        self.listener.said(f"the last model is trained on all pictures, for {epochs} epochs: the median of the folds")
        made = fresh(replace(setup, config=config), setup.dataset)
        if self.features is not None:
            made = replace(made, shared={"train": self.features})
        quiet = config.start.training.on_features
        listener = Quiet(self.listener, says=False) if quiet else self.listener
        return carry_out(made, self.ranks, self.folder, listener, resume=True, folds=results)


def fresh(setup: Setup, dataset: Dataset) -> Setup:
    """The setup of another run with the same first weights and the same task, so that outputs have the same scale."""
    return replace(setup, dataset=dataset, model=deepcopy(setup.model), began=time.monotonic())


def share_features(setup: Setup, split: str, ranks: Ranks, listener: Listener, folder: Path) -> Features | None:
    """The features of a split that several runs learn from, kept in the run folder; None if they learn from none."""
    start = setup.config.start
    if not (start.training.on_features or start.probe):
        return None
    plain = setup.model
    if start.training.with_adapters:
        plain = ViT(setup.model.config)
        plain.load_state_dict(merged(setup.model, setup.model.state_dict()))
    return compute_features(replace(setup, model=plain), split, ranks, listener, folder)


class _Measured(NamedTuple):
    """What the model of a fold has computed."""

    score: SplitScore
    best_epoch: int
    seconds: float
    samples: Integers  # among all training pictures
    outputs: Singles
    familiarity: Floats | None


def open_part(config: TrainConfig, data: Dataset, folder: Path) -> bool:
    """Whether a fold or a trial has begun; if not, what it is about is written."""
    if (folder / CONFIG).exists():
        sweep(folder)
        return True
    folder.mkdir(parents=True, exist_ok=True)
    write_split_file(data, folder / SPLIT)
    with atomic_path(folder / CONFIG) as draft:
        draft.write_text(yaml.safe_dump(describe_config(config), sort_keys=False, allow_unicode=True), encoding="utf-8")
    return False


def _write_outputs(folder: Path, measured: _Measured) -> None:
    tensors = {"samples": torch.from_numpy(measured.samples), "outputs": torch.from_numpy(measured.outputs)}
    if measured.familiarity is not None:
        tensors["familiarity"] = torch.from_numpy(measured.familiarity)
    with atomic_path(folder / OUTPUTS) as draft:
        write_safetensors(draft, tensors, {})


def _read_outputs(folder: Path) -> _Measured | None:
    """What a finished fold has computed."""
    if not (folder / OUTPUTS).is_file():
        return None
    run = read_run(folder)
    tensors, _ = read_safetensors(folder / OUTPUTS)
    arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    assert run.val is not None
    return _Measured(
        run.val, run.best_epoch, run.seconds, arrays["samples"], arrays["outputs"], arrays.get("familiarity")
    )


def planned_epochs(folder: Path) -> int | None:
    """How many epochs a run with a time budget has planned; None if it has not begun."""
    saved = snapshots.list_snapshots(folder / LAST)
    plan = snapshots.read_state(saved[-1]).plan if saved else None
    return None if plan is None else plan.epochs


def _join(setup: Setup, folds: Sequence[_Measured]) -> Measurement:
    """Every picture once, by the model that was not trained on it."""
    samples = np.concatenate([fold.samples for fold in folds])
    order = np.argsort(samples)
    numbers = np.repeat(np.arange(1, len(folds) + 1), [len(fold.samples) for fold in folds])
    known = [fold.familiarity for fold in folds if fold.familiarity is not None]
    source, dataset = setup.dataset.split("train"), setup.dataset
    counted = labels_of(dataset.task) in ("class", "set")
    counts = dataset.labelling.counts(source.labels, len(dataset.classes)).tolist() if counted else ()
    read = samples[order]
    return Measurement(
        data=dataset.name,
        split=HELD_OUT,
        classes=dataset.classes,
        samples=read,
        keys=tuple(source.key(int(sample)) for sample in read),
        logits=np.concatenate([fold.outputs for fold in folds])[order],
        targets=source.labels[read],
        task=setup.task,
        broken={source.key(int(lost)): "cannot be read" for lost in np.setdiff1d(np.arange(len(source)), read)},
        seconds=None,
        familiarity=np.concatenate(known)[order] if len(known) == len(folds) else None,
        train_counts=tuple(counts),
        folds=tuple(numbers[order].tolist()),
    )


def _read_or_write_folds(setup: Setup, folder: Path) -> Integers:
    """The folds that folds.csv has; it is written by whoever asks first."""
    path, keys = folder / FOLDS, setup.dataset.split("train").keys()
    if not path.is_file():
        parts = divide_folds(setup.dataset, setup.config)
        with (
            atomic_path(path) as draft,
            draft.open("w", newline="", encoding="utf-8", errors="surrogateescape") as file,
        ):
            rows = csv.writer(file)
            rows.writerow(COLUMNS)
            for repeat, folds in enumerate(parts.tolist(), start=1):
                rows.writerows((key, repeat, fold + 1) for key, fold in zip(keys, folds, strict=True))
    return _read_folds(path, keys, setup.config.selection)


def _read_folds(path: Path, keys: Sequence[str], selection: Selection) -> Integers:
    try:
        with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
            rows = csv.reader(file)
            if tuple(next(rows, ())) != COLUMNS:
                raise ValueError(f"it needs the columns {', '.join(COLUMNS)}")
            known = {(key, int(repeat)): int(fold) - 1 for key, repeat, fold in rows}
        parts = np.array([[known[key, repeat + 1] for key in keys] for repeat in range(selection.fold_repeats)])
        if sorted(set(parts.flatten().tolist())) != list(range(selection.folds or 0)):
            raise ValueError("it has other folds than the run")
    except (OSError, ValueError, LookupError, csv.Error) as error:
        raise DataError(f"{path} is damaged ({str(error)[:200]}); remove it to divide the pictures again.") from error
    return parts
