"""A search over settings: each trial is a run in a folder of its own, `trial-N/`, or the folds of one. Optuna proposes
their settings from what the earlier ones reached in validation; test pictures play no part. The weights of the best
become those of the run; with folds, a last model is trained with its settings.

What Optuna knows is in `study.journal`, line by line; a trial with a `trial.json` is finished. What is proposed follows
from the seed, the trial's number and the finished trials, so that a killed search goes on as it would have.
"""

import csv
import json
import math
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from vitrail.data import Dataset
from vitrail.errors import ConfigError, MissingExtraError, ResumableError, VitrailError
from vitrail.evaluation.measurement import measure_split
from vitrail.files import atomic_path
from vitrail.prediction import Predictor, load
from vitrail.ranks import Ranks
from vitrail.training.best_weights import measure_test
from vitrail.training.changes import field_homes, report_giving_way, with_changes
from vitrail.training.config import TrainConfig
from vitrail.training.cost import Measured
from vitrail.training.curves import choice_of
from vitrail.training.feature_store import Features
from vitrail.training.fold_scores import Trial, show_setting
from vitrail.training.folds import FoldWork, fresh, open_part, planned_epochs, settle_folds, share_features, share_of
from vitrail.training.listener import Listener, Quiet
from vitrail.training.objectives import SplitScore
from vitrail.training.plan import settle
from vitrail.training.result import Run, read_run
from vitrail.training.run import as_score, carry_out, write_metrics
from vitrail.training.run_folder import STUDY
from vitrail.training.search_space import Range, Space, check_space, parse_search
from vitrail.training.setup import Setup, prepare_run, with_task
from vitrail.training.signals import InterruptedRunError
from vitrail.untrusted import parse_json, read_bytes
from vitrail.wording import in_one_line

RECORD, TABLE = "trial.json", "search.csv"
LARGEST = 1 << 20  # bytes of a record
COPIED = ("results.csv", "results.png")  # beside the weights, of the best trial


def load_optuna() -> Any:
    """Optuna, which stays quiet; or an error that says how to install it."""
    try:
        import optuna
    except ImportError as error:
        raise MissingExtraError("`search=`", "tune") from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def settle_search(
    config: TrainConfig, dataset: Dataset, ranks: Ranks, listener: Listener, **options: Any
) -> tuple[Setup, Measured]:
    """As `settle`, for all trials, by measuring the settings that they start from."""
    load_optuna()
    check_space(parse_search(config.selection.search or ""), config)
    if config.selection.folds is not None:
        return settle_folds(config, dataset, ranks, listener, **options)
    if "val" not in dataset.splits:
        raise ConfigError("chooses by validation pictures; raise `val_rate=`, or pass `folds=`.", field="search")
    setup, measured = settle(share_of(config), dataset, ranks, listener, **options)
    schedule = replace(setup.config.schedule, minutes=config.schedule.minutes)
    return replace(setup, config=replace(setup.config, schedule=schedule, selection=config.selection)), measured


def carry_out_search(
    setup: Setup, ranks: Ranks, folder: Path, listener: Listener, *, resume: bool
) -> tuple[Run, Predictor]:
    """All trials, and the model that comes of the best."""
    search = _Search.begin(setup, ranks, folder, listener, resume=resume)
    trials: list[Trial] = []
    for index in range(setup.config.selection.trials):
        trials.append(search.run_trial(index))
        done = mark_best(trials, search.higher)
        ranks.from_first(lambda done=done: write_table(done, folder / TABLE))
    trials = mark_best(trials, search.higher)
    best = next((trial for trial in trials if trial.best), None)
    if best is None:
        raise VitrailError(f"all {len(trials)} trials failed; the last: {trials[-1].error}")
    run, predictor = search.finish(best, sum(trial.seconds for trial in trials))
    run = replace(run, trials=tuple(trials))
    ranks.from_first(lambda: write_metrics(run))
    return run, predictor


class _Search(NamedTuple):
    """What the trials of a run have in common."""

    setup: Setup
    ranks: Ranks
    folder: Path
    listener: Listener
    study: "_Study"
    folds: FoldWork | None
    features: Mapping[str, Features] | None  # of each split, if they are learned from
    config: TrainConfig  # of a trial, before its own settings

    @classmethod
    def begin(cls, setup: Setup, ranks: Ranks, folder: Path, listener: Listener, *, resume: bool) -> "_Search":
        """Open the study, and compute what all trials share."""
        selection, config = setup.config.selection, share_of(setup.config)
        study = _Study(folder / STUDY, parse_search(selection.search or ""), setup.config.machine.seed)
        ranks.from_first(study.open)
        if selection.folds is not None:
            work = FoldWork.begin(setup, ranks, folder, listener, resume=resume, first=folder / "trial-1" / "fold-1")
            return cls(setup, ranks, folder, listener, study, work, None, config)
        splits = ("train", "val")
        shared = {split: share_features(setup, split, ranks, listener, folder) for split in splits}
        features = {split: each for split, each in shared.items() if each is not None}
        if resume and config.schedule.minutes is not None and not config.start.training.on_features:
            epochs = ranks.from_first(lambda: planned_epochs(folder / "trial-1"))
            if epochs is None:
                epochs = settle(config, setup.dataset, ranks, listener)[0].config.schedule.epochs
            config = replace(config, schedule=replace(config.schedule, epochs=epochs))
        return cls(setup, ranks, folder, listener, study, None, features or None, config)

    @property
    def higher(self) -> bool:
        """Whether the metric that is compared is better where it is higher."""
        return choice_of(self.setup.config, self.setup.task).higher

    def run_trial(self, index: int) -> Trial:
        """One trial; a finished one is read."""
        place = self.folder / f"trial-{index + 1}"
        finished = self.ranks.from_first(lambda: _read_record(place))
        if finished is not None:
            self.ranks.from_first(lambda: self.study.tell(finished, self.higher))
            return finished
        settings = self.ranks.from_first(lambda: self.study.propose(index))
        shown = ", ".join(f"{name} {show_setting(value)}" for name, value in settings.items())
        self.listener.said(f"trial {index + 1} of {self.setup.config.selection.trials}: {shown}")
        for line in report_giving_way(self.config, settings):
            self.listener.said(line)
        metric = choice_of(self.setup.config, self.setup.task).metric
        trial = Trial(number=index + 1, settings=settings, metric=metric, value=math.nan, seconds=0.0)
        try:
            scores, seconds = self._measure(settings, place)
            value = sum(_value(score, metric) for score in scores) / len(scores)
            trial = replace(trial, value=value, seconds=seconds)
        except ResumableError:
            raise
        except VitrailError as error:  # settings with which training diverges, or that the data cannot have
            trial = replace(trial, error=in_one_line(error))
        self.ranks.from_first(lambda: _write_record(trial, place))
        self.ranks.from_first(lambda: self.study.tell(trial, self.higher))
        return trial

    def _measure(self, settings: Mapping[str, Any], place: Path) -> tuple[Sequence[SplitScore], float]:
        setup = self._setup_of(settings)
        if self.folds is not None:
            results = self.folds.run(setup, place)
            return results.scores, results.seconds
        begun = self.ranks.from_first(lambda: open_part(setup.config, setup.dataset, place))
        learned = {name: source for name, source in setup.dataset.splits.items() if name != "test"}
        made = replace(setup, dataset=replace(setup.dataset, splits=learned), shared=self.features)
        listener = Quiet(self.listener, says=False) if setup.config.start.training.on_features else self.listener
        try:
            run, _ = carry_out(made, self.ranks, place, listener, resume=begun)
        except InterruptedRunError as error:
            raise InterruptedRunError(error.exit_code - 128, self.folder) from None
        assert run.val is not None
        return [run.val], run.seconds

    def _setup_of(self, settings: Mapping[str, Any]) -> Setup:
        """The setup of a trial; with folds, its config is still that of the whole run."""
        base = self.config if self.folds is None else self.setup.config
        config = with_changes(base, settings)
        if any(field_homes()[name] == "start" for name in settings):
            return with_task(prepare_run(config, self.setup.dataset), self.setup.task)
        return fresh(replace(self.setup, config=config), self.setup.dataset)

    def finish(self, best: Trial, seconds: float) -> tuple[Run, Predictor]:
        """The run's model, measured on the test pictures: once."""
        place, setup = self.folder / f"trial-{best.number}", self._setup_of(best.settings)
        if self.folds is not None:
            results = self.folds.run(setup, place, quiet=True)
            run, predictor = self.folds.train_last(setup, results)
            return replace(run, seconds=run.seconds - results.seconds + seconds), predictor
        self.ranks.from_first(lambda: _copy_model(place, self.folder))
        predictor = load(self.folder, device=self.ranks.device)
        on_test = measure_test(predictor, setup, self.listener)
        part = self.ranks.from_first(lambda: read_run(place))
        measurement = on_test or measure_split(predictor, setup.dataset, "val")
        test = None if on_test is None else as_score(on_test, setup)
        return replace(part, folder=self.folder, seconds=seconds, test=test, measurement=measurement), predictor


class _Study:
    """What Optuna knows, in a file; only the first rank opens it."""

    def __init__(self, path: Path, space: Space, seed: int) -> None:
        self.path, self.space, self.seed = path, space, seed
        self._study: Any = None

    def open(self) -> None:
        """Read the file, or make it. The run is locked, so that whatever a killed process left behind is swept."""
        optuna = load_optuna()
        with suppress(FileNotFoundError):
            for leftover in self.path.parent.glob(f"{self.path.name}.*"):
                leftover.unlink()
            text = self.path.read_bytes()
            if not text.endswith(b"\n"):  # a line that was cut off
                with atomic_path(self.path) as draft:
                    draft.write_bytes(text[: text.rfind(b"\n") + 1])
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

        backend = JournalFileBackend(str(self.path), lock_obj=JournalFileOpenLock(str(self.path)))
        self._study = optuna.create_study(
            study_name="search", storage=JournalStorage(backend), direction="maximize", load_if_exists=True
        )

    def propose(self, index: int) -> dict[str, Any]:
        """The settings of a trial: those with which it was begun, or new ones."""
        optuna = load_optuna()
        running = optuna.trial.TrialState.RUNNING
        for known in self._study.get_trials(states=(running,)):
            if set(known.params) == set(self.space):
                return known.params
            self._study.tell(known.number, state=optuna.trial.TrialState.FAIL)  # killed while it was proposed
        seed = (self.seed * 1_000_003 + index) % 2**32
        self._study.sampler = optuna.samplers.TPESampler(seed=seed)
        return self._study.ask(self._distributions()).params

    def tell(self, trial: Trial, higher: bool) -> None:
        """Record what a trial reached, unless that is known."""
        state = load_optuna().trial.TrialState
        for known in self._study.get_trials(states=(state.RUNNING,)):
            if known.params == dict(trial.settings) and not trial.error:
                self._study.tell(known.number, trial.value if higher else -trial.value)
            elif known.params == dict(trial.settings):
                self._study.tell(known.number, state=state.FAIL)

    def _distributions(self) -> dict[str, Any]:
        known = load_optuna().distributions
        made: dict[str, Any] = {}
        for name, values in self.space.items():
            if not isinstance(values, Range):
                made[name] = known.CategoricalDistribution(values)
            elif values.whole:
                made[name] = known.IntDistribution(int(values.low), int(values.high))
            else:
                made[name] = known.FloatDistribution(values.low, values.high, log=values.log)
        return made


def mark_best(trials: Sequence[Trial], higher: bool) -> list[Trial]:
    """The trials, the best of them marked: the first of those that are equally good."""
    good = [trial for trial in trials if not trial.error and math.isfinite(trial.value)]
    best = max(good, key=lambda trial: trial.value if higher else -trial.value, default=None)
    return [replace(trial, best=best is not None and trial.number == best.number) for trial in trials]


def _value(score: SplitScore, metric: str) -> float:
    return score.loss if metric == "loss" else score.metrics[metric]


def write_table(trials: Sequence[Trial], path: Path) -> None:
    """One row per trial."""
    names = list(trials[0].settings)
    with atomic_path(path) as draft, draft.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(("trial", "state", trials[0].metric, "seconds", *names, "error"))
        for trial in trials:
            state = "failed" if trial.error else "best" if trial.best else "finished"
            value = "" if trial.error else repr(trial.value)
            settings = [trial.settings[name] for name in names]
            rows.writerow((trial.number, state, value, f"{trial.seconds:.1f}", *settings, trial.error))


def _write_record(trial: Trial, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_path(folder / RECORD) as draft:
        draft.write_text(json.dumps(trial.facts(), indent=1), encoding="utf-8")


def _read_record(folder: Path) -> Trial | None:
    if not (folder / RECORD).is_file():
        return None
    return Trial.from_facts(parse_json(read_bytes(folder / RECORD, LARGEST)))


def _copy_model(source: Path, target: Path) -> None:
    """The weights and the curves of a trial."""
    ignored = shutil.ignore_patterns("last", ".*")
    shutil.copytree(source / "weights", target / "weights", ignore=ignored, dirs_exist_ok=True)
    for name in COPIED:
        with suppress(FileNotFoundError), atomic_path(target / name) as draft:
            shutil.copyfile(source / name, draft)
