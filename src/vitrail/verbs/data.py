"""`vitrail.open_data`, `check_data`, `show_data` and `shard_data`: what the command does with a data set."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, cast

from vitrail.data.config import Augment, DataConfig, check_workers
from vitrail.data.source import Dataset
from vitrail.errors import ConfigError
from vitrail.progress import Progress, pick_progress
from vitrail.verbs.call import DataArgument, Out, check_out, make_out, refuse_settings, resolve_dataset
from vitrail.verbs.keywords import DataSettings, ShowSettings, build, changed_settings, check_settings

if TYPE_CHECKING:
    from PIL import Image

    from vitrail.data.shard_writer import WrittenShards
    from vitrail.verbs.data_check import DataCheck


def open_data(data: str | Path, **settings: Unpack[DataSettings]) -> Dataset:
    """A data set by its path, address or name, with its splits; `settings` are the fields of `DataConfig`.

    Names: digits, cifar10, cifar100, mnist, fashion-mnist, hf:NAME. Paths: class folders, a table, CIFAR's or MNIST's
    files, shards.
    """
    check_settings(open_data, settings, DataConfig)
    return _resolve(data, settings).open()


def check_data(
    data: str | Path | Dataset,
    *,
    out: Out = None,
    raw: bool = False,
    workers: int | None = None,
    progress: bool | Progress = False,
    **settings: Unpack[DataSettings],
) -> "DataCheck":
    """Check every picture: damaged files, duplicates, leakage between splits, imbalance.

    The `settings` are the fields of `DataConfig`.

    Args:
        data: The data set: a path, an address or a name. In Python, also an open one.
        out: The folder to write to [default: runs/data-check-N]. In Python, nothing is written by default.
        raw: Write the cells of CSV files unchanged, for programs. By default, a cell that a spreadsheet would take
            for a formula gets a leading apostrophe, and control characters are spelled out.
        workers: Threads that decode pictures [default: one per core].
    """
    check_settings(check_data, settings, DataConfig)
    check_workers(workers)
    check_out(out)
    argument = _resolve(data, settings)
    dataset = argument.open()
    from vitrail.data.check.findings import check_data as check_dataset
    from vitrail.verbs.data_check import DataCheck

    with pick_progress(progress)("checking pictures", dataset.num_pictures) as advance:
        report = check_dataset(dataset, workers or os.cpu_count() or 1, advance)
    checked = DataCheck(dataset=report.dataset, facts=report.facts, findings=report.findings, where=_words(argument))
    folder = make_out(out, "data-check")
    return checked if folder is None else replace(checked, written=checked.write(folder, raw=raw))


def show_data(
    data: str | Path | Dataset,
    *,
    preset: str | None = None,
    size: int | None = None,
    channels: int | None = None,
    value_range: Sequence[float] | None = None,
    pictures: int = 8,
    seed: int = 0,
    out: Out = None,
    **settings: Unpack[ShowSettings],
) -> "Image.Image":
    """What the model sees: training pictures after preprocessing and augmentation, epoch after epoch, on a sheet.

    The `settings` are the fields of `DataConfig` and `Augment`.

    Args:
        data: The data set: a path, an address or a name. In Python, also an open one.
        preset: The preprocessing: google, timm, timm-imagenet, hf, torchvision, dinov2 or clip.
        size: The side of the model's input, in pixels [default: 224, or the pictures' own size for data sets in
            memory].
        channels: Channels of the pictures, if they are neither grey nor RGB [default: 3].
        value_range: The values that become black and white, for pictures of more than 8 bits.
        pictures: How many pictures to show.
        seed: The seed for choosing pictures and for augmentation.
        out: The folder to write to [default: runs/data-show-N]. In Python, nothing is written by default.
    """
    check_settings(show_data, settings, DataConfig, Augment)
    if pictures < 1:
        raise ConfigError(f"pictures must be at least 1; got {pictures}.")
    check_out(out)
    augment = build(Augment, settings)
    augmentation = set(vars(augment))
    argument = _resolve(data, {name: value for name, value in settings.items() if name not in augmentation})
    dataset = argument.open()
    from vitrail.data.sheet import augmentation_sheet
    from vitrail.data.source import default_preprocess
    from vitrail.verbs.data_check import write_sheet

    spec = default_preprocess(dataset, size, preset, channels)
    if value_range is not None:
        spec = replace(spec, value_range=cast("tuple[float, float]", tuple(value_range)))  # which checks it
    sheet = augmentation_sheet(dataset, spec, augment, seed=seed, num_pictures=pictures)
    folder = make_out(out, "data-show")
    return sheet if folder is None else write_sheet(sheet, folder, _words(argument))


def shard_data(
    data: str | Path | Dataset,
    out: str | Path,
    *,
    max_megabytes: int = 200,
    seed: int = 0,
    progress: bool | Progress = False,
    **settings: Unpack[DataSettings],
) -> "WrittenShards":
    """Write a data set as webdataset tar shards, shuffled, with a shards.json beside them, into a new or empty folder.

    The `settings` are the fields of `DataConfig`.

    Args:
        data: The data set: a path, an address or a name. In Python, also an open one.
        out: An empty or new folder.
        max_megabytes: The largest size of one shard, in megabytes.
        seed: The seed for the order of the pictures.
    """
    check_settings(shard_data, settings, DataConfig)
    if max_megabytes < 1:
        raise ConfigError(f"max_megabytes must be at least 1; got {max_megabytes}.")
    dataset = _resolve(data, settings).open()
    from vitrail.data.shard_writer import write_shards

    with pick_progress(progress)("writing shards", dataset.num_pictures) as advance:
        return write_shards(dataset, Path(out), max_bytes=max_megabytes * 1_000_000, seed=seed, progress=advance)


def _words(data: DataArgument) -> tuple[str, ...]:
    """The data set and its settings, as arguments of a command."""
    from vitrail.report.command_lines import flags

    return data.name, *flags(changed_settings(data.config))


def _resolve(data: str | Path | Dataset, settings: Mapping[str, Any]) -> DataArgument:
    refuse_settings(data, settings)
    return resolve_dataset(data, build(DataConfig, settings))
