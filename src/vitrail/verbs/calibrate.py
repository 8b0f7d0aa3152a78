"""`vitrail.calibrate`: measure how far to trust a checkpoint, and write that into it."""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from rich.console import RenderableType

from vitrail.data.source import Dataset
from vitrail.errors import ConfigError, WeightsError
from vitrail.machine import pick_device
from vitrail.prediction import Predictor
from vitrail.progress import Progress, ending, pick_progress, table, working
from vitrail.registry import EXPORTS
from vitrail.tasks.familiarity import UNFAMILIAR_RATE, check_unfamiliar_rate
from vitrail.verbs.call import DataArgument, resolve_data
from vitrail.verbs.keywords import DataSettings, changed_settings, read_data_settings, renamed
from vitrail.weights.metadata import ClassNames
from vitrail.weights.resolve import BUNDLED, Located, checksums_of, find_files

if TYPE_CHECKING:
    from vitrail.evaluation.measurement import Measurement
    from vitrail.tasks.task import Trust
    from vitrail.weights.checkpoint import Checkpoint

MADE = (
    "these data have no validation split, so one was made of their training pictures; a model that was trained on them "
    "looks surer than it is"
)


@dataclass(frozen=True, kw_only=True)
class Calibrated:
    """A calibrated checkpoint, and what was found."""

    path: Path
    trust: "Trust"
    before: "Measurement"  # of the pictures that it was calibrated on, without the temperature
    after: "Measurement"
    notes: tuple[str, ...] = ()
    data: tuple[str, ...] = field(default=(), repr=False)  # with its settings, as arguments of a command

    def facts(self) -> dict[str, Any]:
        """The numbers, as JSON values."""
        measured = {"before": self.before, "after": self.after}
        numbers = {name: each.results.calibration_facts() for name, each in measured.items()}
        return {"path": str(self.path), **self.trust.facts(), **numbers, "notes": list(self.notes)}

    exit_code = 0

    def to_dict(self) -> dict[str, Any]:
        """The numbers, as JSON values."""
        return self.facts()

    def remarks(self) -> Iterator[str]:
        """What the command prints on the error stream."""
        return (f"note: {note}" for note in self.notes)

    def lines(self) -> Iterator[RenderableType]:
        """What the command prints."""
        yield from self.trust.describe()
        before, after = (each.results.calibration_rows() for each in (self.before, self.after))
        rows = [(name, before.get(name, "–"), text) for name, text in after.items()]
        yield table(rows, "on these pictures", "before", "after", left=3)
        yield from ending([self.path], shlex.join(["vitrail", "eval", str(self.path), *self.data]))


@renamed(classes="class_names")
def calibrate(
    model: str | Path,
    data: Dataset | str | Path,
    *,
    out: str | Path | None = None,
    in_place: bool = False,
    split: str = "val",
    by_position: bool = False,
    class_names: ClassNames | None = None,
    unfamiliar_rate: float | None = None,
    device: str = "auto",
    progress: bool | Progress = False,
    **settings: Unpack[DataSettings],
) -> Calibrated:
    """Measure how far to trust a checkpoint, and write it with that as one of our files; its weights stay as they are.

    A training run with a validation split has done this already. It must be done on pictures that the model was not
    trained on, and that are like those that it will see.

    Args:
        model: A checkpoint: a file, a run folder, hf://owner/name, google://NAME or a bundled name.
        data: Pictures that the model was not trained on: a folder, a table, or a name such as cifar10 or digits. In
            Python, also an open data set. Data without splits of their own get those of the model's run.
        out: The file to write [default: the model's name with -calibrated.safetensors, beside it, or in this folder for
            a model of the hub].
        in_place: Write into the model's own file, which must be in vitrail's format.
        split: The pictures to measure on.
        by_position: For a checkpoint without class names: its classes are those of the data, in the same order.
        class_names: A file with the names of the model's classes, one per line in the model's order, or JSON (index →
            name). In Python, also the names themselves.
        unfamiliar_rate: The share of the calibration pictures to count as unlike anything seen in training: a higher
            one recognises more unfamiliar pictures, and sets aside more ordinary ones [default: the model's own, or
            else 0.05].
        device: Where to compute: auto, cpu, cuda, cuda:1, mps, …
    """
    if unfamiliar_rate is not None:
        check_unfamiliar_rate(unfamiliar_rate)
    config = read_data_settings(calibrate, settings)
    argument, found = resolve_data(model, data, config, device=device, class_names=class_names)
    located, source = argument.place, argument.source
    from vitrail.evaluation.confidence import count_pictures, fit_trust
    from vitrail.evaluation.ood import FEWEST
    from vitrail.report.command_lines import flags
    from vitrail.runtimes.torch_runtime import TorchRuntime
    from vitrail.weights.native import save_checkpoint

    target = _target(located, None if out is None else Path(out), in_place)
    show = pick_progress(progress)
    with working(f"loading {source}", speaks=progress is not False):
        checkpoint = _open(located, class_names)
        if in_place and checkpoint.file_format != "vitrail":
            raise ConfigError(f"is for files of vitrail; {source} is not one; pass `out=` instead.", field="in_place")
        runtime = TorchRuntime(checkpoint.build().to(pick_device(device)))
    dataset, notes = _open_data(found, source, split, checkpoint)
    if unfamiliar_rate is not None and (seen := len(dataset.split("train"))) < FEWEST:
        raise ConfigError(f"needs at least {FEWEST} training pictures; got {seen}; omit it.", field="unfamiliar_rate")
    predictor = Predictor(runtime=runtime, source=source, **replace(checkpoint, trust=None).facts())
    with show("calibrating", count_pictures(dataset, split)) as advance:
        trust, before = fit_trust(
            predictor, dataset, split, by_position=by_position, unsure=checkpoint.is_unsure, progress=advance
        )
    if (familiarity := trust.familiarity) is not None:
        rate = unfamiliar_rate if unfamiliar_rate is not None else _own_rate(checkpoint)
        trust = replace(trust, familiarity=replace(familiarity, unfamiliar_rate=rate))
    elif unfamiliar_rate is not None:
        raise ConfigError(f"needs at least {FEWEST} readable training pictures; omit it.", field="unfamiliar_rate")
    save_checkpoint(replace(checkpoint, trust=trust), target)
    return Calibrated(
        path=target,
        trust=trust,
        before=before,
        after=replace(before, trust=trust),
        notes=notes,
        data=(found.name, *flags(changed_settings(config))),
    )


def _own_rate(checkpoint: "Checkpoint") -> float:
    """The share that an earlier calibration has set."""
    known = None if checkpoint.trust is None else checkpoint.trust.familiarity
    return UNFAMILIAR_RATE if known is None else known.unfamiliar_rate


def _target(located: Located, out: Path | None, in_place: bool) -> Path:
    """The file to write, which must not exist unless it is the model's own."""
    if located.suffix in EXPORTS:
        raise ConfigError(f"{located.name} is an export; calibrate the checkpoint, and export it again.")
    if in_place:
        return _own_file(located, out)
    if out is None:
        beside = Path(located.name.partition("@")[0])
        out = Path(f"{beside.stem}-calibrated.safetensors")
        if located.path is not None and located.name not in BUNDLED:
            out = located.path.parent / out
    if out.suffix != ".safetensors":
        raise ConfigError(f"must end in .safetensors; got {out}.", field="out")
    if out.exists():
        raise ConfigError(f"{out} exists; choose another `out=`, or pass `in_place=True` for a file of vitrail.")
    return out


def _own_file(located: Located, out: Path | None) -> Path:
    if out is not None:
        raise ConfigError("writes into the model's own file; omit `out=`.", field="in_place")
    if located.name in BUNDLED:
        raise ConfigError("cannot change the bundled model; pass `out=` instead.", field="in_place")
    files = [] if located.path is None else find_files(located.path)
    if len(files) != 1 or files[0].suffix != ".safetensors":
        raise ConfigError(f"is for files of vitrail; {located.name} is not one; pass `out=` instead.", field="in_place")
    return files[0]


def _open(located: Located, class_names: ClassNames | None) -> "Checkpoint":
    """The checkpoint in its own number types, with the checksums of a foreign one in its origin."""
    from vitrail.weights.read import open_checkpoint

    checkpoint = open_checkpoint(located, class_names=class_names)
    if not checkpoint.config.num_classes:
        raise WeightsError(
            f"{located.name} has no head, so there are no probabilities to calibrate; train one first: "
            f"vitrail train PICTURES --weights {located.name}"
        )
    if checkpoint.file_format == "vitrail":
        return checkpoint
    return replace(checkpoint, origin=replace(checkpoint.origin, sha256=checksums_of(located.fetch())))


def _open_data(data: DataArgument, source: str, split: str, model: "Checkpoint") -> tuple[Dataset, tuple[str, ...]]:
    """The data with the split to calibrate on, and what the user should know about that."""
    from vitrail.report.assembly import run_of
    from vitrail.verbs.measured_data import open_with_splits

    dataset, split_from = open_with_splits(data, run_of(source), model)
    if split == "val" and "val" not in dataset.splits:
        return dataset.with_validation(data.config.val_rate, data.config.split_seed), (MADE,)
    return dataset, (f"split: {split_from}",) if split_from else ()
