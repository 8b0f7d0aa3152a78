"""`vitrail.train`, `resume`, `plan` and `demo`: from a folder of pictures to a model and its report."""

import os
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from rich.console import RenderableType

from vitrail.errors import ConfigError
from vitrail.progress import SteadyConsole
from vitrail.training import recipes
from vitrail.training.config import TrainConfig
from vitrail.training.recipes import ask_for, read_changes
from vitrail.verbs.keywords import ResumeSettings, TrainSettings

if TYPE_CHECKING:
    from vitrail.training.listener import Listener, Plan
    from vitrail.training.run_folder import Run
    from vitrail.verbs.runs import Interrupted


def train(
    data: str | Path = "",
    *,
    recipe: str | None = None,
    config: str | Path | TrainConfig | None = None,
    out: str | Path | None = None,
    check: bool = True,
    report: bool = True,
    track: bool = False,
    progress: "bool | Listener" = False,
    **settings: Unpack[TrainSettings],
) -> "Run":
    """Train or fine-tune on pictures, measure the result and write its report.

    By default the model and the recipe are chosen to suit the pictures. Every setting can be passed by its name:
    those of `Start`, `Optim`, `Schedule`, `Machine`, `Augment` and `DataConfig`, such as `weights=`, `lr=`, `epochs=`.

    Args:
        data: The data set: a folder of class folders, a table, shards, or a name such as digits or cifar10.
        recipe: Named settings: digits, mnist, cifar10, cifar10-tiny, scratch, finetune, finetune-adamw, linear, lora,
            imagenet-s16 or imagenet-b16 [default: chosen from the data].
        config: A YAML file with any of the fields below, such as the config.yaml of another run. In Python, also a
            `TrainConfig`.
        out: The folder to write to [default: runs/train-N].
        check: First look for labels that are no classes, damaged pictures, leakage between splits and imbalance.
        report: Write a report at the end: a page, its figures and its tables.
        track: Also write TensorBoard files.
        progress: Show the run, or pass a `Listener` of your own.
    """
    changes = read_changes("train", recipe, config, settings)
    from vitrail.verbs.runs import start

    return start(str(data), changes, out, "train", check=check, report=report, track=track, progress=progress)


def resume(
    folder: str | Path,
    *,
    config: str | Path | TrainConfig | None = None,
    report: bool = True,
    track: bool = False,
    progress: "bool | Listener" = False,
    **settings: Unpack[ResumeSettings],
) -> "Run":
    """Continue a run in its folder, with the same result to the bit as if it had not been stopped.

    A finished run is returned as it is. Settings may repeat those of the run, and change only how it is carried out or
    where its files are now: `workers=`, `device=`, `data=`, `weights=`, …
    """
    changes = read_changes("resume", None, config, settings)
    from vitrail.verbs.runs import resume_run

    return resume_run(Path(folder), changes, report=report, track=track, progress=progress)


def plan(
    data: str | Path = "",
    *,
    recipe: str | None = None,
    config: str | Path | TrainConfig | None = None,
    out: str | Path | None = None,
    check: bool = True,
    progress: "bool | Listener" = False,
    **settings: Unpack[TrainSettings],
) -> "Plan":
    """What `train` would do with these arguments: the whole config, parameters, memory and time; nothing is written."""
    changes = read_changes("plan", recipe, config, settings)
    from vitrail.verbs.runs import plan_run

    return plan_run(str(data), changes, out, check=check, progress=progress)


def demo(*, out: str | Path | None = None, progress: "bool | Listener" = False) -> "Run":
    """Train a small ViT on the handwritten digits that come with scikit-learn."""
    from vitrail.verbs.runs import start

    changes = ask_for(recipes.recipe("digits"))
    return start("", changes, out, "demo", check=False, report=True, track=False, progress=progress)


def train_command(
    data: str = "",
    *,
    recipe: str | None = None,
    config: str | None = None,
    resume: str | None = None,
    out: str | None = None,
    dry_run: bool = False,
    check: bool = True,
    report: bool = True,
    track: bool = False,
    as_json: bool = False,
    word: Callable[[str], str] = str,
    **settings: Unpack[TrainSettings],
) -> "Run | Plan | Interrupted | None":
    """What `vitrail train` does: a new run, one that is continued, or only its plan.

    Args:
        resume: The folder of a run to continue; other flags must agree with the run.
        dry_run: Show the whole config, the parameters, memory and time, and stop.
    """
    read_changes("train" if resume is None else "resume", recipe, config, settings)  # before torch is loaded
    if resume is not None and out is not None and Path(out) != Path(resume):
        raise ConfigError(f"continues in {resume}; omit `out={out}`.", field="resume")
    if resume is not None and dry_run:
        raise ConfigError("shows what a new run would do; omit `resume=`.", field="dry_run")
    from vitrail.verbs.runs import RunDisplay, until_interrupted

    console = SteadyConsole(stderr=as_json, highlight=False, soft_wrap=True)
    display = RunDisplay(console, word, silent=as_json)

    def work() -> "Run | Plan":
        if resume is not None:
            more: dict[str, Any] = {name: value for name, value in (("data", data), ("recipe", recipe)) if value}
            return _resume(resume, config=config, report=report, track=track, progress=display, **settings, **more)
        if dry_run:
            return plan(data, recipe=recipe, config=config, out=out, check=check, progress=display, **settings)
        how: Any = {"recipe": recipe, "config": config, "out": out, "check": check, "report": report, "track": track}
        return train(data, progress=display, **how, **settings)

    result = until_interrupted(work, display)
    return result if os.environ.get("RANK", "0") == "0" or not hasattr(result, "lines") else None


_resume = resume  # in `train_command`, that is the folder
train_command.__doc__ = f"{train_command.__doc__}{(train.__doc__ or '').partition('Args:')[2]}"


@dataclass(frozen=True)
class Demo:
    """A run of the demo, with what to try next."""

    run: "Run"

    @property
    def exit_code(self) -> int:
        """1: no report could be made."""
        return self.run.exit_code

    def remarks(self) -> Iterator[str]:
        """Why there is no report."""
        return self.run.remarks()

    def lines(self) -> Iterator[RenderableType]:
        """The results, and what to try next."""
        yield ""
        yield from self.run.scores()
        yield f"\nwrote {', '.join(map(str, self.run.written))}"
        if self.run.report is not None:
            shown = "the curves, the mistakes and what the model looks at"
            yield f"\nopen {self.run.report} in a browser for {shown}"
        folder = shlex.quote(str(self.run.folder))
        yield "\ntry this model:"
        yield f"  vitrail predict {folder} PICTURES"
        yield f"  vitrail eval {folder} digits --robustness"
        yield f"  vitrail figures {folder}"
        yield "\nthen your own pictures, in a folder with one folder per class:"
        yield from (f"  vitrail {verb} PICTURES" for verb in ("data check", "train"))
        yield "  vitrail train PICTURES --minutes 30"


def demo_command(*, out: str | None = None, word: Callable[[str], str] = str) -> "Demo | Interrupted":
    """What `vitrail demo` does.

    Args:
        out: The folder to write to [default: runs/demo-N].
    """
    from vitrail.verbs.runs import RunDisplay, until_interrupted

    console = SteadyConsole(highlight=False, soft_wrap=True)
    display = RunDisplay(console, word)
    console.print("vitrail demo: a Vision Transformer learns handwritten digits, from scratch, on this machine.\n")
    return until_interrupted(lambda: Demo(demo(out=out, progress=display)), display)
