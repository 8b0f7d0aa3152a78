"""Class folders: `train/cat/1.jpg` with `val/` and `test/` beside it, or only `cat/1.jpg`."""

import unicodedata
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Protocol, TypeAlias

import numpy as np

from vitrail.data.config import DataConfig
from vitrail.data.copies import Copies
from vitrail.data.label_kinds import Labels, encode_sets
from vitrail.data.labels import doubt_labels, split_cell
from vitrail.data.pixels import EXTENSIONS, is_picture_name
from vitrail.data.source import Dataset, FileSource, align_labels, name_after, split_dataset
from vitrail.data.sources.links import find_links
from vitrail.data.sources.store import Listing, StoreSource, by_parts
from vitrail.data.split import SPLIT_NAMES, refuse_split_file
from vitrail.errors import DataError
from vitrail.registry import NO_TASK, task_of
from vitrail.rng import Integers
from vitrail.storage import Disk, Store, is_address
from vitrail.wording import agree, counted

MakeSource: TypeAlias = Callable[[list[str], Labels], FileSource]
Listed: TypeAlias = tuple[list[str], Integers]  # pictures, and the places of their folders among the classes


class Tree(Protocol):
    """What class folders need to know of the store that they are in."""

    root: str

    def pages(self, folder: str = "") -> Iterator[list[str]]: ...

    def entries(self, folder: str = "") -> dict[str, bool]: ...

    def folders(self, folder: str = "") -> list[str]: ...


def open_folder(store: Store, config: DataConfig) -> Dataset:
    """The data set in a folder; flat class folders are split here, as planned."""
    tree: Tree = store if isinstance(store, Disk) else Listing(store)
    folders = subfolders(tree)
    splits: dict[str, str] = {}
    for folder in folders:
        split = SPLIT_NAMES.get(folder.lower())
        if split in splits:
            raise DataError(f"{tree.root}: {splits[split]}/ and {folder}/ both mean {split}; keep one.")
        if split:
            splits[split] = folder
    make = partial(_make_source, store, tree, config.cache)
    # A single folder called "train" among others is a class (trains, buses, …), not a split.
    has_splits = "train" in splits and (len(splits) > 1 or len(folders) == 1)
    if config.label_kind == "none":
        return _open_unlabelled(tree, splits if has_splits else {}, config, make)
    if has_splits:
        refuse_split_file(config, tree.root)
        return _open_splits(tree, splits, config, make)
    _refuse_unknown_splits(tree, folders, splits)
    _suggest_subfolder(tree, folders)
    return _open_flat(tree, folders, config, make)


def _make_source(store: Store, tree: Tree, cache: Path, names: list[str], labels: Labels) -> FileSource:
    if isinstance(store, Disk):
        return FileSource(names, labels, store.folder)
    assert isinstance(tree, Listing)
    return StoreSource(names, labels, Copies(store, cache), tree.states_of(names))


def _refuse_unknown_splits(tree: Tree, folders: list[str], splits: Mapping[str, str]) -> None:
    """Folders that are splits, even if we do not know all their names, must not become classes."""
    if len(splits) == len(folders) > 1:
        names = " and ".join(f"{folder}/" for folder in folders)
        raise DataError(f"{tree.root}: has {names} but no train/; add it, or rename the folders if they are classes.")
    if "train" in splits and subfolders(tree, splits["train"]) and not _has_pictures(tree, splits["train"]):
        others = ", ".join(f"{folder}/" for folder in folders if folder != splits["train"])
        raise DataError(
            f"{tree.root}: train/ holds class folders, so it is a split, and {others} is not the name of a split; "
            f"rename it to one of {', '.join(SPLIT_NAMES)}, or move it elsewhere."
        )


def _suggest_subfolder(tree: Tree, folders: list[str]) -> None:
    """A folder that has splits inside is a data set of its own: the user passed a project's folder, not its data."""
    whole = [folder for folder in folders if _has_splits(tree, folder)]
    if not whole:
        return
    names = " or ".join(_whole(tree, folder) for folder in whole[:3])
    if 1 < len(whole) == len(folders):
        hint = f"pass {names}, or, if these are classes, put the splits first: train/{whole[0]}, not the other way"
    else:
        hint = f"pass {names}"
    what = "is a data set and not a class" if len(whole) == 1 else "are data sets and not classes"
    listed = ", ".join(f"{folder}/" for folder in whole[:3])
    raise DataError(f"{tree.root}: {listed} with train/ and val/ or test/ inside {what}; {hint}.")


def _whole(tree: Tree, folder: str) -> str:
    """A folder as users write it."""
    return f"{tree.root}/{folder}" if is_address(tree.root) else str(Path(tree.root, folder))


def _has_splits(tree: Tree, folder: str) -> bool:
    inside = {SPLIT_NAMES.get(entry.lower()) for entry in subfolders(tree, folder)} - {None}
    return "train" in inside and len(inside) > 1


def _has_pictures(tree: Tree, folder: str) -> bool:
    return any(map(is_picture_name, tree.entries(folder)))


def _open_splits(tree: Tree, splits: Mapping[str, str], config: DataConfig, make: MakeSource) -> Dataset:
    folders_of = {name: _class_folders(tree, folder) for name, folder in splits.items()}
    names = {name: list(folders) for name, folders in folders_of.items()}
    classes = align_labels(tree.root, names, same_everywhere=True)
    others = _loose_files(tree)
    others += [f"{folder}/{name}" for folder in splits.values() for name in _loose_files(tree, folder)]
    listed = {name: _pictures(tree, folders, classes, others) for name, folders in folders_of.items()}
    labels = _label(tree, listed, classes, config)
    return Dataset(
        name=name_after(tree.root),
        classes=labels.classes,
        splits={name: make(*each) for name, each in labels.splits.items()},
        ignored=tuple(others),
        task=labels.task,
        assumed=labels.assumed,
    )


@dataclass(frozen=True)
class _Labelled:
    """The pictures of each split with their labels, and what these mean."""

    splits: Mapping[str, tuple[list[str], Labels]]
    classes: tuple[str, ...]
    task: str = task_of("class")
    assumed: tuple[str, ...] = ()


def _label(tree: Tree, listed: Mapping[str, Listed], classes: tuple[str, ...], config: DataConfig) -> _Labelled:
    """One class for each picture; or several labels, if it is linked into several class folders."""
    wanted = config.label_kind
    if wanted == "values":
        raise DataError(
            f"{tree.root}: class folders hold no numbers; pass a table with a column for each number instead."
        )
    several = "set" if config.separator is not None else wanted
    if several == "class" or (several is None and not isinstance(tree, Disk)):
        return _Labelled(listed, classes)
    links = {split: find_links(tree, names) for split, (names, _) in listed.items()}
    linked = sum(_count_linked(links[split], places) for split, (_, places) in listed.items())
    if several is None and not linked:
        return _Labelled(listed, classes)
    doubt = doubt_labels(classes, sum(len(names) for names, _ in listed.values()))  # folders such as cat,dog
    found = doubt.separator if several and doubt is not None and doubt.certain else None
    sets = [split_cell(name, config.separator or found) for name in classes]
    labels = tuple(sorted({label for some in sets for label in some}))
    matrix = encode_sets(sets, labels)
    splits = {split: _join(names, matrix[places], links[split]) for split, (names, places) in listed.items()}
    how = "pass `task=one` to learn each link as a picture of its own"
    count = f"{counted(linked, 'picture')} {agree(linked, 'is', 'are')}"
    assumed = () if several else (f"{count} linked into several class folders: task {task_of('set')}; {how}",)
    return _Labelled(splits, labels, task_of("set"), assumed)


def _count_linked(first: Integers, places: Integers) -> int:
    """The pictures that are in the folders of several classes; `first` is the first link to each picture."""
    return len(np.unique(first[places != places[first]]))


def _join(names: list[str], labels: Labels, first: Integers) -> tuple[list[str], Labels]:
    """Each picture once, by its first name, with all labels of its links."""
    together = labels.copy()
    np.maximum.at(together, first, labels)
    kept = np.flatnonzero(first == np.arange(len(names)))
    return [names[index] for index in kept.tolist()], together[kept]


def _open_flat(tree: Tree, folders: list[str], config: DataConfig, make: MakeSource) -> Dataset:
    if not folders:
        pictures = sum(map(is_picture_name, _loose_files(tree)))
        content = f"{counted(pictures, 'picture')} without a class" if pictures else "an empty folder"
        raise DataError(f"{tree.root}: pictures must be in one folder per class (cat/1.jpg, dog/2.jpg); got {content}.")
    named = _class_folders(tree)
    classes = align_labels(tree.root, {"train": list(named)})
    others = _loose_files(tree)
    listed = _pictures(tree, named, classes, others)
    if not listed[0]:
        count, known = counted(len(classes), "folder"), " ".join(EXTENSIONS)
        raise DataError(f"{tree.root}: no pictures in its {count}; known extensions: {known}.")
    labels = _label(tree, {"train": listed}, classes, config)
    source, name = make(*labels.splits["train"]), name_after(tree.root)
    return split_dataset(name, labels.classes, source, config, others, task=labels.task, assumed=labels.assumed)


def _open_unlabelled(tree: Tree, splits: Mapping[str, str], config: DataConfig, make: MakeSource) -> Dataset:
    """All pictures in a folder and below, or in the folder of each split."""
    others: list[str] = []
    listed = {split: _pictures(tree, {"": folder}, ("",), others)[0] for split, folder in splits.items()}
    name, pictures = name_after(tree.root), listed or {"train": _pictures(tree, {"": ""}, ("",), others)[0]}
    if not any(pictures.values()):
        raise DataError(f"{tree.root}: no pictures in it or below; known extensions: {' '.join(EXTENSIONS)}.")
    sources = {split: make(names, np.zeros((len(names), 0), dtype=np.float32)) for split, names in pictures.items()}
    if splits:
        refuse_split_file(config, tree.root)
        return Dataset(name=name, classes=(), splits=sources, ignored=tuple(others), task=NO_TASK)
    return split_dataset(name, (), sources["train"], config, others, task=NO_TASK)


def subfolders(tree: Tree, folder: str = "") -> list[str]:
    """The own names of the visible folders in a folder, sorted."""
    return [name for name in tree.folders(folder) if not name.startswith("__")]


def _class_folders(tree: Tree, folder: str = "") -> dict[str, str]:
    """Class name → folder. Names are compared in one Unicode form, since file systems write é in two ways."""
    folders: dict[str, str] = {}
    for entry in subfolders(tree, folder):
        name = unicodedata.normalize("NFC", entry)
        if name in folders:
            where = _whole(tree, folder) if folder else tree.root
            raise DataError(f"{where}: two folders are called {name} in different Unicode forms; merge them.")
        folders[name] = f"{folder}/{entry}" if folder else entry
    return folders


def _loose_files(tree: Tree, folder: str = "") -> list[str]:
    """The names of files beside the class folders, which therefore have no class."""
    return [name for name, is_folder in tree.entries(folder).items() if not is_folder]


def _pictures(tree: Tree, folders: Mapping[str, str], classes: tuple[str, ...], others: list[str]) -> Listed:
    """The pictures of the class folders and their labels; files with other extensions go to `others`."""
    names: list[str] = []
    counts: list[int] = []
    for name in classes:
        before = len(names)
        if name in folders:
            files = list(chain.from_iterable(tree.pages(folders[name])))
            depth = folders[name].count("/") + 1
            if "".join(files).count("/") > depth * len(
                files
            ):  # with folders inside, and links to some, which come last
                files.sort(key=by_parts)
            for file in files:
                (names if is_picture_name(file) else others).append(file)
        counts.append(len(names) - before)
    return names, np.repeat(np.arange(len(classes)), counts)
