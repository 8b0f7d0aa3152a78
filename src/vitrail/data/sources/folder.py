"""Class folders: `train/cat/1.jpg` with `val/` and `test/` beside it, or only `cat/1.jpg`."""

import os
import unicodedata
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from vitrail.data.config import DataConfig
from vitrail.data.pixels import EXTENSIONS, is_picture_name
from vitrail.data.source import Dataset, FileSource, align_labels, name_after, split_dataset
from vitrail.data.split import SPLIT_NAMES, refuse_split_file
from vitrail.errors import DataError
from vitrail.storage import is_folder, walk_files
from vitrail.wording import counted


def open_folder(root: Path, config: DataConfig) -> Dataset:
    """The data set in a folder; flat class folders are split here, as planned."""
    folders = subfolders(root)
    splits: dict[str, Path] = {}
    for folder in folders:
        split = SPLIT_NAMES.get(folder.name.lower())
        if split in splits:
            raise DataError(f"{root}: {splits[split].name}/ and {folder.name}/ both mean {split}; keep one.")
        if split:
            splits[split] = folder
    # A single folder called "train" among others is a class (trains, buses, …), not a split.
    if "train" in splits and (len(splits) > 1 or len(folders) == 1):
        refuse_split_file(config, str(root))
        return _open_splits(root, splits)
    _refuse_unknown_splits(root, folders, splits)
    _suggest_subfolder(root, folders)
    return _open_flat(root, folders, config)


def _refuse_unknown_splits(root: Path, folders: list[Path], splits: Mapping[str, Path]) -> None:
    """Folders that are splits, even if we do not know all their names, must not become classes."""
    if len(splits) == len(folders) > 1:
        names = " and ".join(f"{folder.name}/" for folder in folders)
        raise DataError(f"{root}: has {names} but no train/; add it, or rename the folders if they are classes.")
    if "train" in splits and subfolders(splits["train"]) and not _has_pictures(splits["train"]):
        others = ", ".join(f"{folder.name}/" for folder in folders if folder != splits["train"])
        raise DataError(
            f"{root}: train/ holds class folders, so it is a split, and {others} is not the name of a split; "
            f"rename it to one of {', '.join(SPLIT_NAMES)}, or move it elsewhere."
        )


def _suggest_subfolder(root: Path, folders: list[Path]) -> None:
    """A folder that has splits inside is a data set of its own: the user passed a project's folder, not its data."""
    whole = [folder for folder in folders if _has_splits(folder)]
    if not whole:
        return
    names = " or ".join(str(folder) for folder in whole[:3])
    if 1 < len(whole) == len(folders):
        hint = f"pass {names}, or, if these are classes, put the splits first: train/{whole[0].name}, not the other way"
    else:
        hint = f"pass {names}"
    what = "is a data set and not a class" if len(whole) == 1 else "are data sets and not classes"
    listed = ", ".join(f"{folder.name}/" for folder in whole[:3])
    raise DataError(f"{root}: {listed} with train/ and val/ or test/ inside {what}; {hint}.")


def _has_splits(folder: Path) -> bool:
    inside = {SPLIT_NAMES.get(entry.name.lower()) for entry in subfolders(folder)} - {None}
    return "train" in inside and len(inside) > 1


def _has_pictures(folder: Path) -> bool:
    with os.scandir(folder) as entries:
        return any(is_picture_name(entry.name) for entry in entries)


def _open_splits(root: Path, splits: Mapping[str, Path]) -> Dataset:
    folders_of = {name: _class_folders(folder) for name, folder in splits.items()}
    names = {name: list(folders) for name, folders in folders_of.items()}
    classes = align_labels(str(root), names, same_everywhere=True)
    others = _loose_files(root)
    others += [f"{folder.name}/{name}" for folder in splits.values() for name in _loose_files(folder)]
    sources = {name: _source(root, folders, classes, others) for name, folders in folders_of.items()}
    return Dataset(name=name_after(root), classes=classes, splits=sources, ignored=tuple(others))


def _open_flat(root: Path, folders: list[Path], config: DataConfig) -> Dataset:
    if not folders:
        pictures = sum(map(is_picture_name, _loose_files(root)))
        content = f"{counted(pictures, 'picture')} without a class" if pictures else "an empty folder"
        raise DataError(f"{root}: pictures must be in one folder per class (cat/1.jpg, dog/2.jpg); got {content}.")
    named = _class_folders(root)
    classes = align_labels(str(root), {"train": list(named)})
    others = _loose_files(root)
    source = _source(root, named, classes, others)
    if not len(source):
        raise DataError(
            f"{root}: no pictures in its {counted(len(classes), 'folder')}; known extensions: {' '.join(EXTENSIONS)}."
        )
    return split_dataset(name_after(root), classes, source, config, others)


def subfolders(root: Path) -> list[Path]:
    """The visible folders in a folder, sorted."""
    with os.scandir(root) as entries:
        names = [entry.name for entry in entries if is_folder(entry)]
    return [root / name for name in sorted(names) if not name.startswith((".", "__"))]


def _class_folders(folder: Path) -> dict[str, Path]:
    """Class name → folder. Names are compared in one Unicode form, since file systems write é in two ways."""
    folders: dict[str, Path] = {}
    for entry in subfolders(folder):
        name = unicodedata.normalize("NFC", entry.name)
        if name in folders:
            raise DataError(f"{folder}: two folders are called {name} in different Unicode forms; merge them.")
        folders[name] = entry
    return folders


def _loose_files(folder: Path) -> list[str]:
    """The names of files beside the class folders, which therefore have no class."""
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if entry.is_file() and not entry.name.startswith("."))


def _source(root: Path, folders: Mapping[str, Path], classes: tuple[str, ...], others: list[str]) -> FileSource:
    """The pictures of the class folders; files whose names are not those of pictures go to `others`."""
    names: list[str] = []
    counts: list[int] = []
    for name in classes:
        before = len(names)
        if name in folders:
            start = folders[name].relative_to(root).as_posix()
            files = list(walk_files(folders[name]))
            if any("/" in file for file in files):  # links come last
                files.sort(key=lambda file: file.split("/"))
            for file in files:
                (names if is_picture_name(file) else others).append(f"{start}/{file}")
        counts.append(len(names) - before)
    return FileSource(names, np.repeat(np.arange(len(classes)), counts), root)
