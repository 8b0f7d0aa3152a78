"""The commands of a report: what was run, and what a reader may run next."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from vitrail.tasks.task import Task

PICTURES = "PICTURES"  # what the reader fills in


def as_typed(environment: dict[str, Any]) -> str:
    """The command line that an environment records, as a person would type it; empty for a call from Python."""
    program, *words = environment.get("command") or [""]
    ours = Path(program).stem == "vitrail" or Path(program).parent.name == "vitrail"  # vitrail/__main__.py
    return " ".join([*_start(environment), shlex.join(words)]) if ours else ""


def run_commands(folder: Path, data: Sequence[str], environment: dict[str, Any], task: Task) -> dict[str, str]:
    """The command behind a training run, and what to do with it; `data` are its arguments for the command."""
    again = {"train it again, from the same config": _join("train", "--config", folder / "config.yaml")}
    typed = as_typed(environment)
    before = {"the command that was run": typed} if typed else {}
    return {**before, **again, **model_commands(str(folder), data, task)}


def pretraining_commands(folder: Path, data: Sequence[str], environment: dict[str, Any], task: Task) -> dict[str, str]:
    """The command behind a run without labels, and what to do with its model."""
    typed, source = as_typed(environment), str(folder)
    return {
        **({"the command that was run": typed} if typed else {}),
        "pre-train again, from the same config": _join("pretrain", "--config", folder / "config.yaml"),
        "train on pictures with labels": _join("train", "LABELLED_PICTURES", "--weights", source),
        "measure its features on pictures with labels": _join("eval", source, "LABELLED_PICTURES", "--probe", "knn"),
        "write the embeddings of pictures": _join("embed", source, PICTURES),
        "go on with other pictures": _join("pretrain", "OTHER_PICTURES", "--weights", source),
    }


def eval_commands(
    source: str, data: Sequence[str], arguments: Mapping[str, Any], environment: dict[str, Any], task: Task
) -> dict[str, str]:
    """How to measure a model again with the same settings, and what to do with it."""
    options = flags({name: value for name, value in arguments.items() if name != "data_dir"})  # which `data` holds
    again = " ".join([*_start(environment), shlex.join(["eval", source, *data, *options])])
    return {"measure it again": again, **model_commands(source, data, task)}


def flags(settings: Mapping[str, Any], before: str = "--") -> list[str]:
    """Settings of a verb, as the command takes them."""
    words: list[str] = []
    for name, value in settings.items():
        flag = before + name.replace("_", "-")
        if isinstance(value, Mapping):
            words += flags(cast("Mapping[str, Any]", value), f"{flag}.")
        elif isinstance(value, tuple | list):
            words += [flag, ",".join(map(str, cast("Sequence[Any]", value)))]
        else:
            words += [flag] if value is True else [flag, str(value)]
    return words


def model_commands(source: str, data: Sequence[str], task: Task) -> dict[str, str]:
    """What to do next with a model."""
    corrupted = "measure it under noise, blur, JPEG, brightness and rotation"
    return {
        "use it on your pictures": _join("predict", source, PICTURES),
        "see what its predictions rest on": _join("explain", source, PICTURES),
        **({corrupted: _join("eval", source, *data, "--robustness")} if task.compares else {}),
        "fine-tune it on other pictures": _join("train", "OTHER_PICTURES", "--weights", source),
    }


def data_arguments(data: str, data_dir: Path | str | None) -> list[str]:
    """Data as arguments for the command."""
    return [data] if data_dir is None else [data, "--data-dir", str(data_dir)]


def _join(*words: str | Path) -> str:
    return shlex.join(["vitrail", *map(str, words)])


def _start(environment: dict[str, Any]) -> list[str]:
    """The start of the command: torchrun, if there were several processes."""
    ranks, here = int(environment.get("world_size", 1)), int(environment.get("local_world_size", 1))
    if ranks == 1:
        return ["vitrail"]
    nodes = ["--nnodes", str(ranks // here)] if ranks > here else []
    return ["torchrun", *nodes, "--nproc-per-node", str(here), "-m", "vitrail"]
