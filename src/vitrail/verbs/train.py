"""`vitrail.train`, `resume`, `plan` and `demo`: from a folder of pictures to a model and its report."""

from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from vitrail.training import recipes
from vitrail.training.config import TrainConfig
from vitrail.training.recipes import ask_for, read_changes
from vitrail.training.trackers import Track, check_trackers
from vitrail.verbs.keywords import PlanSettings, ResumeSettings, TrainSettings

if TYPE_CHECKING:
    from vitrail.training.listener import Listener, Plan
    from vitrail.training.result import Run


def train(
    data: str | Path = "",
    *,
    recipe: str | None = None,
    config: str | Path | TrainConfig | None = None,
    out: str | Path | None = None,
    check: bool = True,
    report: bool = True,
    track: Track = False,
    progress: "bool | Listener" = False,
    **settings: Unpack[TrainSettings],
) -> "Run":
    """Train or fine-tune on pictures, measure the result and write its report.

    By default the model and the recipe are chosen to suit the pictures. Every setting can be passed by its name:
    those of `Start`, `Optim`, `Schedule`, `Machine`, `Augment`, `DataConfig`, `Selection` and `Distill`, such as
    `weights=`, `lr=`, `epochs=`, `folds=`, `teacher=`.

    Args:
        data: The data set: a folder of class folders, a table, shards, or a name such as digits or cifar10.
        recipe: Named settings: digits, mnist, cifar10, cifar10-tiny, scratch, finetune, finetune-adamw, linear, lora,
            imagenet-s16 or imagenet-b16 [default: chosen from the data].
        config: A YAML file with any of the fields below, such as the config.yaml of another run. In Python, also a
            `TrainConfig`.
        out: The folder to write to [default: runs/train-N].
        check: First look for labels that are no classes, damaged pictures, leakage between splits and imbalance.
        report: Write a report at the end: a page, its figures and its tables.
        track: Also write to trackers: tensorboard (the default if none is named), wandb or mlflow, or several of them.
            In Python, True is tensorboard.
        progress: Show the run, or pass a `Listener` of your own.
    """
    changes = read_changes("train", recipe, config, settings)
    trackers = check_trackers(track)
    from vitrail.verbs.runs import RunOptions, start

    options = RunOptions(report=report, track=trackers, progress=progress)
    return start(str(data), changes, out, "train", options, check=check)


def resume(
    folder: str | Path,
    *,
    config: str | Path | TrainConfig | None = None,
    report: bool = True,
    track: Track = False,
    progress: "bool | Listener" = False,
    **settings: Unpack[ResumeSettings],
) -> "Run":
    """Continue a run in its folder, with the same result to the bit as if it had not been stopped.

    A finished run is returned as it is. Settings may repeat those of the run, and change only how it is carried out or
    where its files are now: `workers=`, `device=`, `data=`, `weights=`, …
    """
    changes = read_changes("resume", None, config, settings)
    trackers = check_trackers(track)
    from vitrail.verbs.runs import RunOptions, resume_run

    return resume_run(Path(folder), changes, RunOptions(report=report, track=trackers, progress=progress))


def plan(
    data: str | Path = "",
    *,
    recipe: str | None = None,
    config: str | Path | TrainConfig | None = None,
    out: str | Path | None = None,
    check: bool = True,
    progress: "bool | Listener" = False,
    **settings: Unpack[PlanSettings],
) -> "Plan":
    """What `train` would do with these arguments: the whole config, parameters, memory and time; nothing is written.

    With `method="mae"`, what `pretrain` would do.
    """
    changes = read_changes("plan", recipe, config, settings)
    from vitrail.verbs.runs import RunOptions, plan_run

    return plan_run(str(data), changes, out, RunOptions(progress=progress), check=check)


def demo(*, out: str | Path | None = None, progress: "bool | Listener" = False) -> "Run":
    """Train a small ViT on the handwritten digits that come with scikit-learn.

    Args:
        out: The folder to write to [default: runs/demo-N].
        progress: Show the run, or pass a `Listener` of your own.
    """
    from vitrail.verbs.runs import RunOptions, start

    changes = ask_for(recipes.recipe("digits"))
    return start("", changes, out, "demo", RunOptions(progress=progress), check=False)
