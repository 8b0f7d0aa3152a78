"""`vitrail.pretrain`: from pictures without labels to a model that `vitrail.train` can start from."""

from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from vitrail.training.config import TrainConfig
from vitrail.training.recipes import read_changes
from vitrail.training.trackers import Track, check_trackers
from vitrail.verbs.keywords import PretrainSettings

if TYPE_CHECKING:
    from vitrail.training.listener import Listener
    from vitrail.training.result import Run


def pretrain(
    data: str | Path = "",
    *,
    recipe: str | None = None,
    config: str | Path | TrainConfig | None = None,
    out: str | Path | None = None,
    check: bool = True,
    report: bool = True,
    track: Track = False,
    progress: "bool | Listener" = False,
    **settings: Unpack[PretrainSettings],
) -> "Run":
    """Learn from pictures without labels, by predicting hidden patches, as a start for `train(weights=…)`.

    By default the model and the recipe are chosen to suit the pictures. Every setting can be passed by its name: those
    of `Start`, `Pretraining`, `Optim`, `Schedule`, `Machine`, `Augment` and `DataConfig`, such as `weights=`,
    `mask_rate=`, `epochs=`. `resume` continues a run, and `plan(method="mae")` shows what it would do.

    Args:
        data: The pictures: a folder of any form, a table, shards, or a name such as cifar10. Labels are optional.
        recipe: Named settings: mae, or mae-small for small pictures [default: chosen from the pictures].
        config: A YAML file with any of the fields below, such as the config.yaml of another run. In Python, also a
            `TrainConfig`.
        out: The folder to write to [default: runs/pretrain-N].
        check: First look for damaged pictures, and for pictures that are in two splits.
        report: Write a report at the end: a page with the curves and the reconstructions.
        track: Also write to trackers: tensorboard (the default if none is named), wandb or mlflow, or several of them.
            In Python, True is tensorboard.
        progress: Show the run, or pass a `Listener` of your own.
    """
    changes = read_changes("pretrain", recipe, config, settings)
    trackers = check_trackers(track)
    from vitrail.verbs.runs import RunOptions, start

    options = RunOptions(report=report, track=trackers, progress=progress)
    return start(str(data), changes, out, "pretrain", options, check=check)
