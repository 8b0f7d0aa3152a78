"""Where the numbers of a run go beside its own files: TensorBoard, Weights & Biases, MLflow; one listener for all.

`Tracker` turns events into named numbers once, and the services (`tracking_services.py`) write them. Nothing that it
passes on names a person or a machine: of a path only its last part, and neither user, host nor command line.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path, PureWindowsPath
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast, get_args

from vitrail.errors import ConfigError, MissingExtraError, suggest
from vitrail.files import atomic_path
from vitrail.training.changes import describe_config
from vitrail.training.config import TrainConfig
from vitrail.training.listener import Listener
from vitrail.training.signals import InterruptedRunError
from vitrail.training.tracking_services import SERVICES, Ending, Result, Service, TrackedRun, TrackerName, environment
from vitrail.untrusted import parse_json, read_bytes
from vitrail.wording import in_one_line

if TYPE_CHECKING:
    from vitrail.training.curves import EpochRow
    from vitrail.training.result import Run

Track = bool | str | Sequence[TrackerName]  # True is the first of them; a text may hold several, with commas
IDS = "tracking.json"  # in the run folder: service → the run's id there, so that a resumed run continues it
FIGURES = ("results.png", "confusion_matrix.png")  # of the run folder, which services show
POINTS = 2000  # of the training loss, about, however long the run is


def check_trackers(track: Track) -> tuple[TrackerName, ...]:
    """The requested trackers by name; an unknown one, or one that is not installed, is an error."""
    known = get_args(TrackerName)
    words = () if track is False else known[:1] if track is True else track
    names: Any = [word.strip() for word in words.split(",")] if isinstance(words, str) else words
    for name in names:
        if name not in known:
            raise ConfigError(f"knows no tracker {name!r}; {suggest(str(name), known)}", field="track")
        service = SERVICES[name]
        if any(find_spec(package) is None for package in service.packages):
            raise MissingExtraError(f"`track='{name}'`", service.extra)
    return tuple(dict.fromkeys(names))


class Tracker(Listener):
    """Writes a run's config, losses, epochs, final measures and figures to services; leave it to close them.

    A service that fails is reported once and left alone from then on: tracking never ends a run.
    """

    def __init__(
        self, names: Iterable[TrackerName], folder: Path, config: TrainConfig, say: Callable[[str], None]
    ) -> None:
        self._waiting: dict[TrackerName, Service] = {name: SERVICES[name]() for name in names}
        self._open: dict[TrackerName, Service] = {}
        self._folder, self._config, self._say = folder, config, say
        self._every = 1  # steps between two training losses that are written
        self._step = 0

    def __enter__(self) -> "Tracker":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        ending: Ending = "finished" if kind is None else "failed"
        if isinstance(error, InterruptedRunError | KeyboardInterrupt | SystemExit):
            ending = "stopped"
        self._each(lambda service: service.close(ending))
        self._open.clear()

    def began(self, total_steps: int, done_steps: int, epochs: int) -> None:
        self._every, self._step = max(total_steps // POINTS, 1), done_steps
        self._open, self._waiting = self._waiting, {}
        ids = read_ids(self._folder / IDS)
        facts = config_facts(self._config)

        def start(service: Service) -> None:
            run = TrackedRun(self._folder, self._folder.resolve().name, facts, done_steps, ids.get(service.name, ""))
            ids[service.name] = service.open(run)

        self._each(start)
        self._each(lambda _: write_ids(self._folder / IDS, ids))

    def stepped(self, step: int, loss: float, images_per_second: float) -> None:
        self._step = step
        if step % self._every == 0:
            self._each(lambda service: service.log({"train/loss": loss}, step))

    def finished_epoch(self, row: "EpochRow", is_best: bool) -> None:
        numbers = {f"epoch/{name}": value for name, value in row_numbers(row).items()}
        self._each(lambda service: service.log(numbers, row.step))

    def completed(self, run: "Run") -> None:
        numbers = {f"final/{name}": value for name, value in final_numbers(run.facts()).items()}
        figures = [path for path in (run.folder / name for name in FIGURES) if path.is_file()]
        result = Result(numbers, figures, run.best, self._step)
        self._each(lambda service: service.keep(result))

    def _each(self, action: Callable[[Service], None]) -> None:
        for name, service in list(self._open.items()):
            try:
                with environment(service.environment):
                    action(service)
            except Exception as error:  # of whatever kind: a full disk, no network, an account that has ended
                del self._open[name]
                self._say(f"tracking with {name} has stopped: {in_one_line(error)}; the run goes on without it")


def row_numbers(row: "EpochRow") -> dict[str, float]:
    """The numbers of an epoch by name; what was not measured is left out."""
    numbers: dict[str, Any] = {name: getattr(row, name) for name in ("epoch", "lr", "train_loss", "val_loss")}
    numbers |= {f"train_{name}": value for name, value in row.train_metrics.items()}
    numbers |= {f"val_{name}": value for name, value in row.metrics.items()}
    numbers |= {name: getattr(row, name) for name in ("images_per_second", "seconds")}
    return {name: value for name, value in numbers.items() if value is not None}


def final_numbers(facts: Mapping[str, Any], before: str = "") -> dict[str, float]:
    """The numbers of metrics.json, one level of names: val_accuracy, test_loss, best_epoch, …"""
    numbers: dict[str, float] = {}
    for name, value in facts.items():
        if isinstance(value, Mapping):
            inner = before if name == "metrics" else f"{before}{name}_"
            numbers |= final_numbers(cast("Mapping[str, Any]", value), inner)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            numbers[f"{before}{name}"] = value
    return numbers


def config_facts(config: TrainConfig) -> dict[str, Any]:
    """The whole config on one level, `optim.lr`; of paths and addresses only the last part, which names nobody."""
    facts: dict[str, Any] = {}

    def add(name: str, value: Any) -> None:
        if isinstance(value, dict):
            for inner, each in cast("dict[str, Any]", value).items():
                add(f"{name}.{inner}" if name else inner, each)
        else:
            facts[name] = _without_folders(value)

    add("", describe_config(config))
    facts.pop("chosen", None)  # a sentence, which may quote a path
    return facts


def _without_folders(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_without_folders(each) for each in cast("Sequence[Any]", value)]
    return PureWindowsPath(value).name if isinstance(value, str) and re.search(r"[/\\]", value) else value


def read_ids(path: Path) -> dict[str, str]:
    """Service → the id of the run there; a file that is missing or damaged holds none."""
    try:
        ids: Any = parse_json(read_bytes(path, 4096, ConfigError))
        return {str(name): each for name, each in ids.items() if re.fullmatch(r"[\w-]{1,64}", each)}
    except (ConfigError, OSError, ValueError, TypeError, AttributeError):
        return {}


def write_ids(path: Path, ids: Mapping[str, str]) -> None:
    """Keep the ids for a resumed run."""
    with atomic_path(path) as draft:
        draft.write_text(json.dumps({name: each for name, each in ids.items() if each}), encoding="utf-8")
