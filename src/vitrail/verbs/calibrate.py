"""`vitrail.calibrate`: measure how far to trust a checkpoint, and write that into it."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack

from vitrail.data.config import DataConfig
from vitrail.data.source import Dataset
from vitrail.errors import ConfigError, WeightsError
from vitrail.evaluation.confidence import count_pictures, fit_trust
from vitrail.evaluation.measurement import Measurement
from vitrail.machine import pick_device
from vitrail.prediction import Predictor
from vitrail.progress import Progress, pick_progress, silent, working
from vitrail.registry import EXPORTS
from vitrail.report.assembly import run_of
from vitrail.runtimes.torch_runtime import TorchRuntime
from vitrail.verbs.call import tell_data
from vitrail.verbs.evaluate import open_with_splits
from vitrail.verbs.loading import check_model
from vitrail.verbs.settings import DataSettings, read_data_settings
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.metadata import ClassNames
from vitrail.weights.native import save_checkpoint
from vitrail.weights.read import open_checkpoint
from vitrail.weights.resolve import BUNDLED, Located, checksums_of, find_files, locate
from vitrail.weights.trust import Trust

MADE = (
    "these data have no validation split, so one was made of their training pictures; a model that was trained on them "
    "looks surer than it is"
)


@dataclass(frozen=True, kw_only=True)
class Calibrated:
    """A calibrated checkpoint, and what was found."""

    path: Path
    trust: Trust
    before: Measurement  # of the pictures that it was calibrated on, without the temperature
    after: Measurement
    notes: tuple[str, ...] = ()

    def facts(self) -> dict[str, Any]:
        """The numbers, as JSON values."""
        numbers = {
            name: {"nll": each.metrics.nll, "calibration_error": each.metrics.calibration.error}
            for name, each in (("before", self.before), ("after", self.after))
        }
        return {"path": str(self.path), **self.trust.facts(), **numbers, "notes": list(self.notes)}


def calibrate(
    model: str | Path,
    data: Dataset | str | Path,
    *,
    out: str | Path | None = None,
    in_place: bool = False,
    split: str = "val",
    by_position: bool = False,
    classes: ClassNames | None = None,
    device: str = "auto",
    progress: bool | Progress = False,
    **settings: Unpack[DataSettings],
) -> Calibrated:
    """Measure how far to trust a checkpoint, and write it with that as one of our files; its weights stay as they are.

    A training run with a validation split has done this already. It must be done on pictures that the model was not
    trained on, and that are like those that it will see.

    Args:
        model: a checkpoint: what `vitrail.load` takes, except exports.
        data: an open data set, or what `vitrail.open_data` takes; `settings` are the fields of its `DataConfig`. Data
            without splits of their own get those of the model's run.
        out: the file to write; by default the model's name with -calibrated.safetensors, beside it, or in this folder
            for a model of the hub or a bundled one.
        in_place: write into the model's own file instead, which must be one of ours.
        split: the pictures to measure on.
        by_position: for a checkpoint without class names: its classes are those of the data, in the same order.
        classes: the names of the model's classes, in order, or a file of them, for a checkpoint without names.
    """
    config = read_data_settings(calibrate, settings)
    source, where = str(model), data.name if isinstance(data, Dataset) else str(data)
    check_model(source, device, classes)
    if not isinstance(data, Dataset):
        source, where = tell_data(source, where)
    located = locate(source, allow_export=True)
    target = _target(located, None if out is None else Path(out), in_place)
    show = pick_progress(progress) if progress is not False else silent
    with working(f"loading {source}", speaks=progress is not False):
        checkpoint = _open(located, classes)
        if in_place and checkpoint.file_format != "vitrail":
            raise ConfigError(f"is for files of ours; {source} is not one; pass `out=` instead.", field="in_place")
        runtime = TorchRuntime(checkpoint.build().to(pick_device(device)))
    dataset, notes = _open_data(data, where, config, source, split)
    predictor = Predictor(runtime=runtime, source=source, **replace(checkpoint, trust=None).facts())
    with show("calibrating", count_pictures(dataset, split)) as advance:
        trust, before = fit_trust(predictor, dataset, split, by_position=by_position, progress=advance)
    save_checkpoint(replace(checkpoint, trust=trust), target)
    return Calibrated(path=target, trust=trust, before=before, after=replace(before, trust=trust), notes=notes)


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
        raise ConfigError(f"{out} exists; choose another `out=`, or pass `in_place=True` for a file of ours.")
    return out


def _own_file(located: Located, out: Path | None) -> Path:
    if out is not None:
        raise ConfigError("writes into the model's own file; omit `out=`.", field="in_place")
    files = [] if located.path is None or located.name in BUNDLED else find_files(located.path)
    if len(files) != 1 or files[0].suffix != ".safetensors":
        raise ConfigError(f"is for files of ours; {located.name} is not one; pass `out=` instead.", field="in_place")
    return files[0]


def _open(located: Located, classes: ClassNames | None) -> Checkpoint:
    """The checkpoint in its own number types, with the checksums of a foreign one in its origin."""
    checkpoint = open_checkpoint(located, class_names=classes)
    if not checkpoint.config.num_classes:
        raise WeightsError(f"{located.name} has no head, so there are no probabilities to calibrate.")
    if checkpoint.file_format == "vitrail":
        return checkpoint
    return replace(checkpoint, origin=replace(checkpoint.origin, sha256=checksums_of(located.fetch())))


def _open_data(
    data: Dataset | str | Path, where: str, config: DataConfig, source: str, split: str
) -> tuple[Dataset, tuple[str, ...]]:
    """The data with the split to calibrate on, and what the user should know about that."""
    dataset, split_from = open_with_splits(data, where, config, run_of(source))
    if split == "val" and "val" not in dataset.splits:
        return dataset.with_validation(config.val_rate, config.split_seed), (MADE,)
    return dataset, (f"split: {split_from}",) if split_from else ()
