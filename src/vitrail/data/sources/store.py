"""Pictures that are files of a store: listed once, in the order of a disk, and read from copies that are kept."""

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from vitrail.data.copies import STATES, Copies, States, pack_state, unpack_state
from vitrail.data.label_kinds import Labels
from vitrail.data.pixels import Picture
from vitrail.data.source import FileSource
from vitrail.rng import Integers
from vitrail.storage import FileState, Store


class StoreSource(FileSource):
    """Files of an object store. Their states are those of the time when the data were opened."""

    def __init__(self, names: Sequence[str], labels: Sequence[int] | Labels, copies: Copies, states: States) -> None:
        super().__init__(names, labels, Path())
        self.copies = copies
        self.states = states

    def picture(self, index: int) -> bytes:
        return self.copies.read(self.names[index], self.states[index])

    def require_room(self) -> None:
        self.copies.require_space(self.copies.missing_bytes(self.names, self.states))

    def prefetch(self, indices: Sequence[int] | Integers) -> None:
        self.copies.bring([self.names[index] for index in indices], self.states[np.asarray(indices, dtype=np.int64)])

    def state(self, index: int) -> FileState:
        return unpack_state(self.states[index])

    def size(self, index: int) -> int:
        return int(self.states[index]["size"]) if self.states[index]["version"] else -1

    def offer(self, index: int) -> Picture:
        try:
            return self.picture(index)
        except OSError:  # which whoever opens the address finds too
            return self.copies.where(self.names[index])

    def select(self, indices: Sequence[int] | Integers) -> "StoreSource":
        chosen: list[int] = np.asarray(indices, dtype=np.int64).tolist()
        names = [self.names[index] for index in chosen]
        return StoreSource(names, self.labels[chosen], self.copies, self.states[chosen])

    def renamed(self, names: Sequence[str], labels: Sequence[int] | Labels) -> "StoreSource":
        return StoreSource(names, labels, self.copies, find_states(names, self.names, self.states))


class Listing:
    """What is below one address, listed once: as `Store.entries` and `Store.pages` have it, in the order of a disk."""

    def __init__(self, store: Store) -> None:
        self.root = store.root
        names: list[str] = []
        states = array("Q")
        for page in store.listing():
            for name, state in page:
                names.append(name)
                states.extend(pack_state(state))
        order = sorted(range(len(names)), key=lambda index: by_parts(names[index]))
        self.names = [names[index] for index in order]
        table = np.frombuffer(states, dtype=STATES) if states else np.zeros(0, dtype=STATES)
        self.states = table[order]

    def _below(self, folder: str) -> range:
        """The places of a folder's files, which are all beside each other."""
        if not folder:
            return range(len(self.names))
        start = by_parts(f"{folder}/")
        return range(
            bisect_left(self.names, start, key=by_parts), bisect_left(self.names, start + "\U0010ffff", key=by_parts)
        )

    def entries(self, folder: str = "") -> dict[str, bool]:
        start = len(folder) + 1 if folder else 0
        found: dict[str, bool] = {}
        for index in self._below(folder):
            own, slash, _ = self.names[index][start:].partition("/")
            found[own] = found.get(own, False) or bool(slash)
        return dict(sorted(found.items()))

    def folders(self, folder: str = "") -> list[str]:
        return [name for name, is_folder in self.entries(folder).items() if is_folder]

    def states_of(self, names: Sequence[str]) -> States:
        """The states of some of the files."""
        return find_states(names, self.names, self.states)

    def pages(self, folder: str = "") -> Iterator[list[str]]:
        below = self._below(folder)
        yield self.names[below.start : below.stop]


def find_states(names: Sequence[str], known: Sequence[str], states: States) -> States:
    """The states of some files among those of others."""
    places = {name: place for place, name in enumerate(known)}
    found = np.zeros(len(names), dtype=STATES)
    for index, name in enumerate(names):
        if (place := places.get(name)) is not None:
            found[index] = states[place]
    return found


def by_parts(name: str) -> str:
    """What sorts names as folder after folder does: a/1 is before a-b/1, though "-" is before "/"."""
    return name.replace("/", "\0")
