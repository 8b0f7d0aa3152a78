"""What a finished run has to show: `Run`, as `train` returns it and as its folder keeps it."""

import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.text import Text

from vitrail.errors import ConfigError, DataError
from vitrail.evaluation.measurement import Measurement
from vitrail.progress import ending
from vitrail.schema import from_dict, to_dict
from vitrail.training.best_weights import BEST
from vitrail.training.fold_scores import INTERVAL, Spread, Trial, describe_best, spread_of
from vitrail.training.objectives import SplitScore
from vitrail.training.run_folder import LARGEST, METRICS, REPORT
from vitrail.training.teacher import TeacherComparison
from vitrail.untrusted import parse_json, read_bytes
from vitrail.wording import counted, first_line, name_metric, show_metric


@dataclass(frozen=True, kw_only=True)
class Run:
    """A finished run, and what it has to show; a notebook shows its curves."""

    folder: Path
    epochs: int
    best_epoch: int
    seconds: float
    val: SplitScore | None
    test: SplitScore | None
    folds: tuple[SplitScore, ...] = ()  # each fold's model on the pictures that it was not trained on
    fold_repeats: int = 1  # how many times the pictures were divided into folds
    trials: tuple[Trial, ...] = ()  # what a search has tried
    measurement: Measurement | None = field(default=None, repr=False)  # of the best weights on test, or else on val
    shown: tuple[str, ...] = ()  # the metrics that people follow; none: the first
    held_out: Measurement | None = field(default=None, repr=False)  # the folds' models, each on its own pictures
    teacher: TeacherComparison | None = None  # the model that it learned from, on the same pictures
    method: str = ""  # of a run without labels
    kept_last: bool = False  # whatever validation said, as runs without labels do
    report: Path | None = None
    written: tuple[Path, ...] = ()  # what users will want to open, the report first
    problem: str = ""  # why there is no report
    ended: str = ""  # how it ended, if nothing was left to resume

    @property
    def best(self) -> Path:
        """The weights of the best epoch."""
        return self.folder / BEST

    @property
    def val_chose_epoch(self) -> bool:
        """Whether val decided which epoch's weights are kept, which makes its own figures slightly optimistic."""
        return self.val is not None and self.epochs > 1 and not self.kept_last

    def facts(self) -> dict[str, Any]:
        """The numbers, as `metrics.json` has them."""
        scores = {name: None if it is None else it.facts() for name, it in (("val", self.val), ("test", self.test))}
        counts = {"epochs": self.epochs, "best_epoch": self.best_epoch, "seconds": self.seconds}
        more: dict[str, Any] = {"method": self.method} if self.method else {}
        if self.folds:
            spread = {name: each._asdict() for name, each in self.spread.items()}
            scores_of = [score.facts() for score in self.folds]
            more["folds"] = {"repeats": self.fold_repeats, "interval": INTERVAL, "mean": spread, "scores": scores_of}
        if self.trials:
            more["search"] = [trial.facts() for trial in self.trials]
        if self.teacher is not None:
            more["teacher"] = to_dict(self.teacher)
        return {**counts, **scores, "val_chose_epoch": self.val_chose_epoch, **more}

    @property
    def spread(self) -> dict[str, Spread]:
        """The mean of each metric over the folds, and its interval; empty without folds."""
        return spread_of(self.folds, self.fold_repeats) if self.folds else {}

    @property
    def exit_code(self) -> int:
        """1: no report could be made; torchrun must not start a finished run again because of that."""
        return int(bool(self.problem) and int(os.environ.get("WORLD_SIZE", "1")) == 1)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        facts = {name: value for name, value in self.facts().items() if value is not None}
        written = [str(path) for path in self.written]
        return {"folder": str(self.folder), "weights": str(self.best), **facts, "written": written}

    def remarks(self) -> Iterator[str]:
        """Why there is no report, and what is safe."""
        if self.problem:
            yield f"no report: {self.problem} (the model is in {self.best})"

    def lines(self) -> Iterator[Any]:
        """What the command prints."""
        if not self.ended:
            yield from self.scores()
            folder = shlex.quote(str(self.folder))
            labelled = f"vitrail train LABELLED_PICTURES --weights {folder}"
            yield from ending(self.written, labelled if self.method else f"vitrail predict {folder} PICTURES")
            return
        yield self.ended
        if self.report is not None:
            yield f"its report: {self.report}"
        again = f"vitrail train PICTURES --weights {shlex.quote(str(self.folder))}"
        yield from ending([], f"{again} starts a new run from its weights")

    def scores(self) -> Iterator[Text]:
        """The metrics that people follow on each split, and over the folds; and which trial was the best."""
        if self.trials:
            yield Text(describe_best(self.trials))
        for name, spread in list(self.spread.items())[:1]:
            shown = Text(f"folds {name_metric(name)} ") + Text(show_metric(name, spread.mean), "bold")
            bounds = " to ".join(show_metric(name, bound) for bound in (spread.low, spread.high))
            yield shown + Text(f"  95 %: {bounds}  ({len(self.folds)} folds, each of which chose its epoch)")
        for name, score in (("val", self.val), ("test", self.test)):
            if score is not None:
                chose = "; val also chose the epoch" if name == "val" and self.val_chose_epoch else ""
                shown = Text(f"{name:5} ")
                for metric in [each for each in self.shown if each in score.metrics] or list(score.metrics)[:1]:
                    value = Text(show_metric(metric, score.metrics[metric]), "bold")
                    shown += Text(f"{name_metric(metric)} ") + value + Text("  ")
                yield shown + Text(f"loss {score.loss:.4f}  ({counted(score.count, 'picture')}{chose})")
        if self.teacher is not None:
            yield Text(self.teacher.describe())

    def _repr_png_(self) -> bytes | None:
        curves = self.folder / "results.png"
        return curves.read_bytes() if curves.is_file() else None


def read_run(folder: Path) -> Run:
    """A finished run, read from its folder."""
    try:
        facts = parse_json(read_bytes(folder / METRICS, LARGEST))
        counts = {name: facts[name] for name in ("epochs", "best_epoch", "seconds")}
        scores = [facts.get(name) for name in ("val", "test")]
        val, test = (None if score is None else SplitScore.from_facts(score) for score in scores)
        folds = facts.get("folds", {"scores": (), "repeats": 1})
        scored = tuple(SplitScore.from_facts(score) for score in folds["scores"])
        trials = tuple(Trial.from_facts(trial) for trial in facts.get("search", ()))
        more: dict[str, Any] = {"folds": scored, "fold_repeats": int(folds["repeats"]), "trials": trials}
        if "teacher" in facts:
            more["teacher"] = from_dict(TeacherComparison, facts["teacher"])
    except (ConfigError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{folder / METRICS} is damaged: {first_line(error)}") from error
    more |= {"method": str(facts.get("method", "")), "kept_last": facts.get("val_chose_epoch") is False}
    report = folder / REPORT if (folder / REPORT).is_file() else None
    written = (report,) if report else ()
    return Run(folder=folder, **counts, val=val, test=test, **more, report=report, written=written)
