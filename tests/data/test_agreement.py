"""Ranks that share work must have the same data: here, each rank is a thread."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from vitrail.data import Dataset
from vitrail.data.agreement import check_same_data
from vitrail.data.source import FileSource
from vitrail.errors import DataError
from vitrail.ranks import Ranks

KEYS = tuple(f"{name}/{number}.png" for name in ("cat", "dog") for number in range(6))


def make(keys: Sequence[str] = KEYS, val: int = 1) -> Dataset:
    """Pictures of two classes, the last `val` of them for validation."""
    root, labels = Path("pictures"), [int(key >= "dog") for key in keys]
    every = FileSource(keys, labels, root)
    splits = {"train": every.select(range(len(keys) - val)), "val": every.select(range(len(keys) - val, len(keys)))}
    return Dataset(name="pictures", classes=("cat", "dog"), splits=splits)


@dataclass(frozen=True, kw_only=True)
class ThreadRanks(Ranks):
    """Ranks that are threads of one process, and put what they send on one table."""

    table: list[Any]
    barrier: Barrier

    def gather(self, own: Any) -> list[Any]:
        self.table[self.rank] = own
        self.barrier.wait()
        everything = list(self.table)
        self.barrier.wait()
        return everything

    def from_first(self, make: Callable[[], Any]) -> Any:
        return self.gather(make() if self.is_first else None)[0]


def compare(*datasets: Dataset) -> list[DataError]:
    """The error of each rank."""
    count = len(datasets)
    table, barrier = [None] * count, Barrier(count, timeout=60)

    def check(rank: int) -> DataError | None:
        try:
            check_same_data(datasets[rank], ThreadRanks(rank=rank, world_size=count, table=table, barrier=barrier))
        except DataError as error:
            return error
        return None

    with ThreadPoolExecutor(count) as pool:
        return [error for error in pool.map(check, range(count)) if error is not None]


def test_the_same_data_pass() -> None:
    assert compare(make(), make(), make()) == []


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (make(KEYS[:-1]), "1 picture is missing there: dog/5.png"),
        (make((*KEYS, "dog/6.png")), "1 picture is only there: dog/6.png"),
        (
            make([key.replace("cat", "bat") for key in KEYS]),
            "missing there: cat/0.png, cat/1.png, cat/2.png and 3 more",
        ),
        (make(val=2), "1 picture is of another class or split there: dog/4.png"),
        (make((*KEYS[4::-1], *KEYS[5:])), "the same pictures or classes are in another order there"),
    ],
)
def test_a_difference_is_an_error_on_all_ranks_that_says_which(other: Dataset, difference: str) -> None:
    errors = compare(make(), make(), other)
    assert len({str(error) for error in errors}) == 1
    assert "rank 2 on" in str(errors[0])
    assert difference in str(errors[0])
    assert [getattr(error, "reported", None) for error in errors] == [False, True, True], "only the first prints it"


def test_all_ranks_that_differ_are_counted() -> None:
    assert "rank 1 on" in (text := str(compare(make(), make(KEYS[1:]), make(KEYS[1:]))[0]))
    assert "as does 1 other rank" in text
