"""What the loop needs from a source of batches: pictures from a loader, or features that were computed once."""

from collections.abc import Iterator
from typing import Any, Protocol

from vitrail.data import Batch


class Batches(Protocol):
    """The batches of one split, epoch after epoch; the position within the epoch can be saved."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Batch]: ...

    def set_epoch(self, epoch: int) -> None: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...
