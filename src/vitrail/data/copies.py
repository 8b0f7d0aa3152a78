"""Copies on this machine of the files of an object store: what was fetched once is read from the disk from then on.

A copy is named after its file's name and version, so that a changed file is fetched again, and the ranks and runs of a
machine share it. It appears whole or not at all, and counts only if it has the size of its file. Nothing is ever
removed: training data that are evicted while they are used would be fetched again in every epoch.
"""

import hashlib
import os
import posixpath
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from itertools import islice, takewhile
from pathlib import Path
from threading import Condition

import numpy as np
import numpy.typing as npt
from filelock import FileLock

from vitrail.errors import DataError
from vitrail.files import workshop_in
from vitrail.storage import Disk, FileState, Span, Store, is_address, open_store
from vitrail.wording import reason

FOLDER = "stores"  # of the cache
RESERVE = 1 << 28  # bytes of the disk that stay free
TOGETHER = 1 << 26  # bytes that are held in memory before they are written
PAGES = 10  # of a listing, before files are asked for one by one

STATES = np.dtype([("size", np.int64), ("version", np.uint64)])
States = npt.NDArray[np.void]  # of each file: its size, and a hash of its version; 0, 0 if there is no such file


class Copies:
    """The files of a store, as paths of this machine; those of a disk are there already.

    A name is below the store's root, or is an address of its own.
    """

    def __init__(self, store: Store, cache: Path) -> None:
        self.store = store
        self._folder = cache / FOLDER
        self._stores: dict[str, Store] = {}
        self._got: dict[str, Path] = {}  # large files, whose states are asked for once
        self._busy: set[str] = set()  # what a thread is fetching
        self._changed = Condition()

    def where(self, name: str) -> str:
        """A file as users write it."""
        store, own = self._locate(name)
        return store.path(own)

    def get(self, name: str) -> Path:
        """One file, which may be large: itself, or its copy."""
        store, own = self._locate(name)
        if isinstance(store, Disk):
            return store.folder / own
        if name in self._got:
            return self._got[name]
        state = store.state(own)
        path = Path(self._path(store, own, pack_state(state)[1]))
        if not _is_whole(path, state.size):
            path.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(f"{path}.lock"):  # other threads, and the other ranks of this machine
                if not _is_whole(path, state.size):
                    self._fetch(store, own, path, state.size)
        self._got[name] = path
        return path

    def _fetch(self, store: Store, name: str, path: Path, size: int) -> None:
        self.require_space(size)
        try:
            with workshop_in(path.parent) as workshop:
                store.fetch(name, workshop / path.name)
                if not _is_whole(workshop / path.name, size):
                    raise DataError(f"{store.path(name)}: changed while it was fetched; run again.")
                (workshop / path.name).replace(path)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise self._cannot_keep(error) from error

    def states(self, names: Sequence[str]) -> States:
        """The state of each file: from a listing of the folder that they are in, or one by one if that is too long."""
        states = np.zeros(len(names), dtype=STATES)
        places: dict[str, tuple[Store, dict[str, list[int]]]] = {}  # root → its store, and where each name is wanted
        for index, name in enumerate(names):
            store, own = self._locate(name)
            if not isinstance(store, Disk):
                places.setdefault(store.root, (store, {}))[1].setdefault(own, []).append(index)
        for store, wanted in places.values():
            for name, state in _find_states(store, wanted):
                states[wanted[name]] = pack_state(state)
        return states

    def read(self, name: str, state: np.void) -> bytes:
        """One file, from its copy, which is made if there is none."""
        store, own = self._locate(name)
        if isinstance(store, Disk):
            return (store.folder / own).read_bytes()
        self.bring([name], np.array([state], dtype=STATES))
        try:
            return Path(self._path(store, own, int(state["version"]))).read_bytes()
        except FileNotFoundError as error:
            raise FileNotFoundError(error.errno, "no such file", store.path(own)) from None

    def bring(self, names: Sequence[str], states: States) -> None:
        """Make the copies that are missing, many at once; a file that cannot be read has none."""
        tried: set[str] = set()
        missing = dict(self._missing(names, states))
        while missing:
            with self._changed:
                self._changed.wait_for(partial(self._is_mine, missing))
                free = {path: file for path, file in missing.items() if path not in self._busy}
                mine = {path: file for path, file in free.items() if not _is_whole(path, file.size)}
                self._busy |= mine.keys()
            tried |= mine.keys()
            try:
                for group in _groups(mine):
                    self._bring(group)
            finally:
                with self._changed:
                    self._busy -= mine.keys()
                    self._changed.notify_all()
            missing = {path: file for path, file in missing.items() if path not in tried}
            missing = {path: file for path, file in missing.items() if not _is_whole(path, file.size)}

    def _is_mine(self, missing: "Mapping[str, _File]") -> bool:
        """Whether no other thread is fetching some of these."""
        return not missing.keys() <= self._busy

    def _bring(self, files: "Mapping[str, _File]") -> None:
        self.require_space(sum(file.size for file in files.values()))
        stores = {file.store.root: file.store for file in files.values()}
        for root, store in stores.items():
            own = {path: file for path, file in files.items() if file.store.root == root}
            answers = store.read([Span(file.name) for file in own.values()])
            found = {path: answer for path, answer in zip(own, answers, strict=True) if isinstance(answer, bytes)}
            try:
                self._write(found)
            except OSError as error:
                raise self._cannot_keep(error) from error

    def _write(self, contents: Mapping[str, bytes]) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        with workshop_in(self._folder) as workshop:
            for path, content in ((Path(path), content) for path, content in contents.items()):
                (workshop / path.name).write_bytes(content)
                path.parent.mkdir(parents=True, exist_ok=True)
                (workshop / path.name).replace(path)

    def require_space(self, num_bytes: int) -> None:
        """Raise if copies of this size do not fit on the disk."""
        folder = self._folder
        while not folder.exists():
            folder = folder.parent
        free = shutil.disk_usage(folder).free
        if num_bytes and num_bytes + RESERVE > free:
            raise DataError(
                f"{self.store.root}: copies of its files take {num_bytes / 1e6:,.0f} MB, and {self._folder} has "
                f"{free / 1e6:,.0f} MB left; make room, or keep them on another disk with `data_dir=`."
            )

    def missing_bytes(self, names: Sequence[str], states: States) -> int:
        """How many bytes of these files have no copy yet."""
        return sum(file.size for _, file in self._missing(names, states))

    def _missing(self, names: Sequence[str], states: States) -> "Iterator[tuple[str, _File]]":
        """The files without a copy, by where that will be; there may be millions."""
        for name, (size, version) in zip(names, states.tolist(), strict=True):
            if version:
                store, own = self._locate(name)
                path = self._path(store, own, version)
                if not _is_whole(path, size):
                    yield path, _File(store, own, size)

    def _path(self, store: Store, name: str, version: int) -> str:
        text = f"{store.root}\0{name}\0{version}".encode("utf-8", "surrogateescape")
        own = hashlib.blake2b(text, digest_size=16).hexdigest()
        return f"{self._folder}/{_folder_name(store.root)}/{own[:2]}/{own[2:]}"

    def _locate(self, name: str) -> tuple[Store, str]:
        """The store that a file is in, and its name there."""
        if is_address(name):
            return self._elsewhere(name)
        if isinstance(self.store, Disk) or "./" not in name or not {".", ".."} & set(name.split("/")):
            return self.store, name
        whole = posixpath.normpath(name)
        if not whole.startswith("../"):
            return self.store, whole
        scheme, _, folder = self.store.root.partition("://")
        return self._elsewhere(f"{scheme}://{posixpath.normpath(f'{folder}/{whole}')}")

    def _elsewhere(self, address: str) -> tuple[Store, str]:
        scheme, _, rest = address.partition("://")
        bucket, _, name = rest.partition("/")
        root = f"{scheme}://{bucket}"
        if root not in self._stores:
            self._stores[root] = open_store(root)
        return self._stores[root], name

    def _cannot_keep(self, error: OSError) -> DataError:
        return DataError(f"{self._folder}: a copy of {self.store.root} cannot be kept there ({reason(error)}).")


@dataclass(frozen=True, slots=True)
class _File:
    store: Store
    name: str
    size: int


def _groups(files: Mapping[str, _File]) -> Iterator[dict[str, _File]]:
    """Files that fit into memory together."""
    group: dict[str, _File] = {}
    for path, file in files.items():
        if group and sum(each.size for each in group.values()) + file.size > TOGETHER:
            yield group
            group = {}
        group[path] = file
    if group:
        yield group


def _common_folder(one: str, other: str) -> str:
    pairs = zip(one.split("/")[:-1], other.split("/")[:-1], strict=False)
    return "/".join(part for part, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _find_states(store: Store, wanted: Mapping[str, object]) -> Iterator[tuple[str, FileState]]:
    """A page of a listing has a thousand states and comes after the other; those of single files come many at once."""
    left = set(wanted)
    folder = _common_folder(min(left), max(left))  # what these share, all do
    with suppress(FileNotFoundError):  # a folder that does not exist
        for page in islice(store.listing(folder), PAGES + len(left) // 100):
            for name, state in page:
                if name in left:
                    left.remove(name)
                    yield name, state
            if not left:
                return
    for name, state in zip(left, store.states(list(left)), strict=True):
        if isinstance(state, FileState):
            yield name, state


@cache
def _folder_name(root: str) -> str:
    return re.sub(r"[^\w.-]+", "_", root)[:100]


def pack_state(state: FileState) -> tuple[int, int]:
    """A state as a row of `States`."""
    digest = hashlib.blake2b(f"{state.size}-{state.version}".encode(), digest_size=8).digest()
    return state.size, int.from_bytes(digest, "little") or 1


def unpack_state(state: np.void) -> FileState:
    """A row of `States` as a state; one without a version is of a file that is not there."""
    return FileState(int(state["size"]), f"{state['version']:016x}" if state["version"] else "")


def _is_whole(path: str | Path, size: int) -> bool:
    try:
        return os.stat(path).st_size == size  # noqa: PTH116 - of a text, since a `Path` for each of millions takes long
    except OSError:
        return False
