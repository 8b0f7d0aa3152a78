"""Data sets by name, path or address: `open_data`. Only this file decides what kind of source something is."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np

from vitrail.data.config import AUTO, DataConfig
from vitrail.data.download import Remote, fetch, is_web
from vitrail.data.source import TABLES, Dataset, Source
from vitrail.data.sources.cifar import BATCHES, FOLDERS, is_cifar, open_cifar, read_archive
from vitrail.data.sources.folder import open_folder, subfolders
from vitrail.data.sources.hf_datasets import open_hub
from vitrail.data.sources.mnist import FASHION, IDX_FILES, is_idx, is_whole_idx, open_digits, open_idx
from vitrail.data.sources.shards import INDEX, open_shards
from vitrail.data.sources.table import open_table
from vitrail.data.split import UNUSED, read_excluded, refuse_split_file, write_split
from vitrail.errors import DataError, list_names, shorten, suggest
from vitrail.files import atomic_path, harmless_cell
from vitrail.registry import labels_of
from vitrail.storage import Disk, is_address, open_file_store, open_store, refuse_secrets
from vitrail.untrusted import check_regular
from vitrail.wording import agree, counted, hint_path, reason

NAMES = ("digits", "cifar10", "cifar100", "mnist", "fashion-mnist")

_CIFAR_SITE = "https://www.cs.toronto.edu/~kriz"


def _idx_files(site: str, *checksums: str) -> tuple[Remote, ...]:
    names = [name for names in IDX_FILES.values() for name in names]
    return tuple(Remote(url=f"{site}/{name}.gz", md5=md5) for name, md5 in zip(names, checksums, strict=True))


# Name → the files to fetch. CIFAR in its binary version, which has no pickles.
REMOTES = {
    "cifar10": (Remote(url=f"{_CIFAR_SITE}/cifar-10-binary.tar.gz", md5="c32a1d4ab5d03f1284b67883e8d87530"),),
    "cifar100": (Remote(url=f"{_CIFAR_SITE}/cifar-100-binary.tar.gz", md5="03b5dce01913d631647c71ecec9e9cb8"),),
    "mnist": _idx_files(
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "d53e105ee54ea40749a09fcbcd1e9432",
        "9fb629c4189551a2d022fa330f9573f3",
        "ec29112dd5afa0611ce80d1b7f02629c",
    ),
    "fashion-mnist": _idx_files(
        "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion",
        "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "25c81989df183df01b3e8a0aad5dffbe",
        "bef4ecab320f06d8554ea6380940ec79",
        "bb300cfdad3c16e7a12a480ee83cd310",
    ),
}


def open_data(where: str | Path, config: DataConfig | None = None) -> Dataset:
    """A data set by its name, its path or its address.

    Names: digits, cifar10, cifar100, mnist, fashion-mnist, hf:NAME. Paths: class folders, a table, CIFAR's or MNIST's
    files, shards. For a folder that has the name of a data set, write ./digits.
    """
    config = config or DataConfig()
    if "\0" in str(where):
        raise DataError(f"{shorten(str(where))}: no file can have a NUL in its name.")
    try:
        dataset = _with_task(_open(where, config), config)
    except OSError as error:  # a folder without permission, a failing disk, …
        raise DataError(f"{where}: cannot be read ({reason(error)}).") from error
    if config.group is not None:
        _check_groups(dataset, config.group)
    return exclude_samples(dataset, config.exclude) if config.exclude else dataset


def _check_groups(dataset: Dataset, column: str) -> None:
    """Refuse groups where there are none, and those that the data's own splits have torn apart."""
    if not dataset.groups:
        raise DataError(f"{dataset.name}: `group={column}` names a column of a table, and these data are no table.")
    home: dict[str, str] = {}
    for split, source in dataset.splits.items():
        for group in (dataset.groups[source.key(index)] for index in range(len(source))):
            if home.setdefault(group, split) != split:
                raise DataError(
                    f"{dataset.name}: the group {shorten(group)} is in {home[group]} and in {split}; move its pictures "
                    "to one of them, or omit the column of splits."
                )


def _with_task(dataset: Dataset, config: DataConfig) -> Dataset:
    """The data for the task that was requested, which must be one for such labels."""
    if config.label_kind == "none":
        dataset = dataset.without_labels()
    if config.label_kind not in (None, labels_of(dataset.task)):
        raise DataError(f"{dataset.name}: has {dataset.labelling.what}, which `task={config.task}` cannot learn.")
    if config.separator is not None and labels_of(dataset.task) != "set":
        raise DataError(f"{dataset.name}: has {dataset.labelling.what}, which `separator=` cannot separate.")
    named = config.task != AUTO
    task = config.task if named else dataset.task
    return replace(dataset, max_broken_rate=config.max_broken_rate, task=task, named_task=named)


def exclude_samples(dataset: Dataset, files: Sequence[Path]) -> Dataset:
    """The data without the samples that tables list by their keys; all others stay in their splits.

    Where a key is in several splits, the split beside it says which is meant. A key may also be spelled as in the CSV
    files that are written for people.
    """
    keys = {split: source.keys() for split, source in dataset.splits.items()}
    splits_of: dict[str, set[str]] = {key: set() for key, _ in dataset.unused}
    for split, names in keys.items():
        for key in names:
            splits_of.setdefault(key, set()).add(split)
    chosen: dict[str, set[str]] = {split: set() for split in keys}
    for file in files:
        listed = read_excluded(file)
        spelled = {} if listed.keys() <= splits_of.keys() else {harmless_cell(key): key for key in splits_of}
        unknown = [key for key in listed if key not in splits_of and key not in spelled]
        if unknown:
            raise DataError(
                f"{file}: {len(unknown):,} of its {counted(len(listed), 'key')} {agree(len(unknown), 'is', 'are')} not "
                f"in {dataset.name}, such as {shorten(unknown[0])}; it must list samples of these data, by the keys "
                "that vitrail data audit, vitrail data check and split.csv have for them."
            )
        for key, named in listed.items():
            own = key if key in splits_of else spelled[key]
            for split in (named & splits_of[own]) or splits_of[own]:
                chosen[split].add(own)
    masks = {split: np.array([key in chosen[split] for key in names], dtype=bool) for split, names in keys.items()}
    train = dataset.splits["train"]
    if empty := dataset.labelling.missing(train.labels[~masks["train"]], dataset.classes):
        raise DataError(f"{dataset.name}: `exclude=` leaves no training pictures of {list_names(empty)}.")
    splits, excluded = (
        {split: dataset.splits[split].select(np.flatnonzero(mask)) for split, mask in parts.items() if mask.any()}
        for parts in ({split: ~mask for split, mask in masks.items()}, masks)
    )
    return replace(dataset, splits=splits, excluded=excluded)


def _open(where: str | Path, config: DataConfig) -> Dataset:
    text = str(where)
    if isinstance(where, str) and text in NAMES:
        refuse_split_file(config, text)
        return open_digits() if text == "digits" else _open_named(text, config.cache)
    if is_address(where) or is_web(text):
        refuse_secrets(text)
    if is_address(where):
        return _open_address(text.rstrip("/"), config)
    if text.startswith("hf:"):
        return open_hub(text.removeprefix("hf:"), config)
    if is_web(text) or text.endswith((".tar", INDEX)):
        return open_shards(text, config)
    return _open_path(Path(where), config)


def check_where(where: str | Path) -> None:
    """Raise if `open_data` could only fail, because nothing is there. Of a store, the folder itself is listed."""
    text = str(where)
    if is_address(where) or is_web(text):
        refuse_secrets(text)
    if is_address(where) and "{" not in text:
        _require_address(text.rstrip("/"))
    elif isinstance(where, str) and (text in NAMES or text.startswith("hf:") or is_web(text)):
        return
    elif "{" not in text:  # a range of shards stands for several files
        _require_path(Path(where))


def _require_address(address: str) -> dict[str, bool]:
    """What is directly in a folder of a store, and nothing for a file; raises if there is neither."""
    if address.startswith("hf://") and not address.startswith("hf://datasets/"):
        raise DataError(f"{address} is a model; data on the hub are hf://datasets/OWNER/NAME, or hf:OWNER/NAME.")
    is_file = address.lower().endswith((*TABLES, ".tar", INDEX))
    with suppress(FileNotFoundError):
        if is_file:
            store, name = open_file_store(address)
            store.state(name)
            return {}
        try:
            if entries := open_store(address).entries():
                return entries
        except NotADirectoryError:
            raise DataError(f"{address}: a data file must be {', '.join(TABLES)} or .tar shards.") from None
    raise DataError(f"{address}: no such {'file' if is_file else 'folder'}.")


def _open_address(address: str, config: DataConfig) -> Dataset:
    """As `_open_path`, for an object store."""
    entries = {} if "{" in address else _require_address(address)
    if address.endswith((".tar", INDEX)):
        return open_shards(address, config)
    if address.lower().endswith(TABLES):
        return open_table(*open_file_store(address), config)
    if is_local_only(entries):
        raise DataError(f"{address}: the files of CIFAR and MNIST must be on this machine; copy them to a folder.")
    if INDEX in entries or (any(name.endswith(".tar") for name in entries) and not any(entries.values())):
        return open_shards(address, config)
    return open_folder(open_store(address), config)


def is_local_only(entries: Mapping[str, bool]) -> bool:
    """Whether a folder holds files that are read from a disk only, judging by their names."""
    groups = (*BATCHES, *((name,) for name in FOLDERS), *((IDX_FILES["train"][0] + end,) for end in ("", ".gz")))
    files = {name for name, is_folder in entries.items() if not is_folder or name in FOLDERS}
    return any(files.issuperset(group) for group in groups)


def _require_path(path: Path) -> None:
    with suppress(OSError, ValueError):  # a name that is too long, or with a NUL
        if path.exists():
            return
    hint = hint_path(str(path), beside=()) or suggest(str(path), NAMES)
    raise DataError(f"{path}: no such file or folder, and not the name of a data set; {hint}")


def _open_path(path: Path, config: DataConfig) -> Dataset:
    _require_path(path)
    nested = [path / name for name in FOLDERS if is_cifar(path / name)]
    if is_cifar(path) or len(nested) == 1 or is_idx(path):
        refuse_split_file(config, str(path))
        return open_idx(path) if is_idx(path) else open_cifar(path if is_cifar(path) else nested[0])
    if not path.is_dir():
        check_regular(path)
        if path.suffix.lower() not in TABLES:
            raise DataError(f"{path}: a data file must be {', '.join(TABLES)}, .tar shards or CIFAR's archive.")
        return open_table(Disk(path.parent), path.name, config)
    # Beside class folders, a .tar is the download that they were unpacked from.
    if (path / INDEX).is_file() or (any(path.glob("*.tar")) and not subfolders(Disk(path))):
        return open_shards(str(path), config)
    return open_folder(Disk(path), config)


def _open_named(name: str, folder: Path) -> Dataset:
    if name.startswith("cifar"):
        return _open_named_cifar(name, folder)
    folders = [candidate for candidate in (folder / name, folder) if is_whole_idx(candidate)]
    if not folders:
        for remote in REMOTES[name]:
            fetch(remote, folder / name)
        folders = [folder / name]
    classes = FASHION if name == "fashion-mnist" else tuple("0123456789")
    return replace(open_idx(folders[0], classes), name=name)


def _open_named_cifar(name: str, folder: Path) -> Dataset:
    number = name.removeprefix("cifar")
    names = [candidate for candidate in FOLDERS if candidate.startswith(f"cifar-{number}-")]
    copies = [folder / candidate for candidate in names if is_cifar(folder / candidate)]
    copies += [folder] if is_cifar(folder) else []
    archives = [folder / f"cifar-{number}-{kind}.tar.gz" for kind in ("binary", "python")]
    copies = copies or [archive for archive in archives if archive.is_file()]
    if not copies:
        copies = [_unpack(fetch(REMOTES[name][0], folder), folder / names[0])]
    dataset = open_cifar(copies[0])
    if dataset.name != name:
        raise DataError(f"{copies[0]}: holds {dataset.name}, not {name}.")
    return dataset


def _unpack(archive: Path, folder: Path) -> Path:
    """CIFAR's files in one flat folder, from which they are read faster the next time."""
    contents = read_archive(archive)
    with atomic_path(folder) as draft:  # or half of them would pass for the whole
        draft.mkdir()
        for name, content in contents.items():
            (draft / name).write_bytes(content)
    return folder


def write_split_file(dataset: Dataset, path: Path) -> None:
    """Record which sample is in which split, to be read again with `DataConfig.split_file`."""

    def describe(source: Source) -> list[tuple[str, str]]:
        return dataset.cells(source, range(len(source)))

    rows = {name: describe(source) for name, source in dataset.splits.items()}
    unused = [*dataset.unused, *chain.from_iterable(map(describe, dataset.excluded.values()))]
    write_split(path, rows | ({UNUSED: unused} if unused else {}))
