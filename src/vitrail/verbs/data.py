"""`vitrail.open_data`, `check_data`, `show_data` and `shard_data`: what the command does with a data set."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

from PIL import Image

from vitrail.data.check.findings import Report
from vitrail.data.check.findings import check_data as check_dataset
from vitrail.data.config import Augment, DataConfig, check_workers
from vitrail.data.datasets import open_data as open_dataset
from vitrail.data.datasets import write_split_file
from vitrail.data.shard_writer import WrittenShards, write_shards
from vitrail.data.sheet import augmentation_sheet, contact_sheet
from vitrail.data.source import Dataset, default_preprocess
from vitrail.errors import ConfigError
from vitrail.files import atomic_path
from vitrail.progress import Progress, pick_progress
from vitrail.verbs.settings import DataSettings, ShowSettings, build, check_settings
from vitrail.wording import counted, markdown_cell, reason


@dataclass(frozen=True, kw_only=True, repr=False)
class DataCheck(Report):
    """What is in a data set, and what problems it has."""

    def write(self, folder: str | Path, *, raw: bool = False) -> tuple[Path, ...]:
        """Write check.csv, contact_sheet.png and, if vitrail made the splits, split.csv; returns the paths.

        `raw` leaves the cells unchanged, for programs rather than spreadsheets.
        """
        folder = Path(folder)
        written = [folder / "check.csv", folder / "contact_sheet.png"]
        try:
            with atomic_path(written[0]) as draft:
                self.write_csv(draft, raw=raw)
            with atomic_path(written[1]) as draft:
                contact_sheet(self).save(draft)
            if self.dataset.made_split:
                written.append(folder / "split.csv")
                write_split_file(self.dataset, written[-1])
        except OSError as error:
            raise ConfigError(f"{folder}: the check cannot be written there ({reason(error)}).") from error
        return tuple(written)

    def _repr_markdown_(self) -> str:
        pictures, classes = counted(len(self.facts), "picture"), counted(len(self.dataset.classes), "class")
        about = f"; {self.split_note}" if self.split_note else ""
        lines = [f"**{markdown_cell(self.dataset.name)}**: {pictures}, {classes}{about}", ""]
        if not self.findings:
            return "\n".join([*lines, "No problems were found."])
        lines += ["| severity | finding | count | example |", "|---|---|--:|---|"]
        for finding, count in self.summary():
            example = f"{finding.key} ({finding.detail})" if finding.detail else finding.key
            lines.append(
                f"| {finding.severity} | {markdown_cell(finding.what)} | {count:,} | {markdown_cell(example)} |"
            )
        return "\n".join(lines)


def open_data(data: str | Path, **settings: Unpack[DataSettings]) -> Dataset:
    """A data set by its path, address or name, with its splits; `settings` are the fields of `DataConfig`.

    Names: digits, cifar10, cifar100, mnist, fashion-mnist, hf:NAME. Paths: class folders, a table, CIFAR's or MNIST's
    files, shards.
    """
    check_settings(open_data, settings, DataConfig)
    return _open(data, settings)


def check_data(
    data: str | Path | Dataset,
    *,
    workers: int | None = None,
    progress: bool | Progress = False,
    **settings: Unpack[DataSettings],
) -> DataCheck:
    """Check every picture: damaged files, duplicates, leakage between splits, imbalance.

    `workers` are the threads that decode pictures, by default one per core; `settings` are the fields of `DataConfig`.
    """
    check_settings(check_data, settings, DataConfig)
    check_workers(workers)
    dataset = _open(data, settings)
    with pick_progress(progress)("checking pictures", dataset.num_pictures) as advance:
        report = check_dataset(dataset, workers or os.cpu_count() or 1, advance)
    return DataCheck(dataset=report.dataset, facts=report.facts, findings=report.findings)


def show_data(
    data: str | Path | Dataset,
    *,
    preset: str | None = None,
    size: int | None = None,
    pictures: int = 8,
    seed: int = 0,
    **settings: Unpack[ShowSettings],
) -> Image.Image:
    """What the model sees: training pictures after preprocessing and augmentation, epoch after epoch, on a sheet.

    `preset` is the preprocessing of a family: google, timm, timm-imagenet, hf, torchvision, dinov2 or clip; `size` the
    side of the model's input; `settings` are the fields of `DataConfig` and `Augment`.
    """
    check_settings(show_data, settings, DataConfig, Augment)
    if pictures < 1:
        raise ConfigError(f"pictures must be at least 1; got {pictures}.")
    augment = build(Augment, settings)
    augmentation = set(vars(augment))
    dataset = _open(data, {name: value for name, value in settings.items() if name not in augmentation})
    spec = default_preprocess(dataset, size, preset)
    return augmentation_sheet(dataset, spec, augment, seed=seed, num_pictures=pictures)


def shard_data(
    data: str | Path | Dataset,
    out: str | Path,
    *,
    max_megabytes: int = 200,
    seed: int = 0,
    progress: bool | Progress = False,
    **settings: Unpack[DataSettings],
) -> WrittenShards:
    """Write a data set as webdataset tar shards, shuffled, with a shards.json beside them, into a new or empty folder.

    `max_megabytes` is the largest size of one shard; `settings` are the fields of `DataConfig`.
    """
    check_settings(shard_data, settings, DataConfig)
    if max_megabytes < 1:
        raise ConfigError(f"max_megabytes must be at least 1; got {max_megabytes}.")
    dataset = _open(data, settings)
    with pick_progress(progress)("writing shards", dataset.num_pictures) as advance:
        return write_shards(dataset, Path(out), max_bytes=max_megabytes * 1_000_000, seed=seed, progress=advance)


def _open(data: str | Path | Dataset, settings: Mapping[str, Any]) -> Dataset:
    if not isinstance(data, Dataset):
        return open_dataset(data, build(DataConfig, settings))
    if settings:
        raise ConfigError(f"{', '.join(settings)} cannot change an open data set; pass it to vitrail.open_data.")
    return data
