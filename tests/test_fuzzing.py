"""The fuzzer's own tests: what it must notice, and that a case can be tried again."""

import itertools
import os
import random
import time
from collections.abc import Callable

import pytest

import fuzzing
from fuzzing import attack, damaged, mutate, twist
from processes import run
from vitrail.errors import DataError

FILE = b'{"version": 1, "names": ["a", "b"], "size": 32}'


def refuse(_: bytes) -> None:
    raise DataError("no")


def fail(_: bytes) -> None:
    raise KeyError("names")


def talk(_: bytes) -> None:
    raise DataError("x" * 5000)


def hoard(_: bytes) -> None:
    bytearray(2 * fuzzing.MEMORY)


def hang(_: bytes) -> None:
    while True:
        try:
            sum(range(10**6))
        except Exception:
            continue


def test_files_are_read_or_refused() -> None:
    assert attack(len, damaged([FILE]), 10) == {"read": 10}
    assert attack(refuse, damaged([FILE]), 10) == {"refused": 10}


def work(_: bytes) -> None:
    ends = time.process_time() + 0.1
    while time.process_time() < ends:
        pass


@pytest.mark.parametrize(
    ("read", "told"),
    [(fail, "KeyError: 'names'"), (talk, "DataError: xxx"), (hoard, "MemoryError"), (work, "s of the processor")],
)
def test_anything_else_is_a_failure(read: Callable[[bytes], None], told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzzing, "CPU_SECONDS", 0.05)
    with pytest.raises(AssertionError, match=f"case {fuzzing.SEED}:0: .*{told}"):
        attack(after_warming_up(read), damaged([FILE]), 3)


def after_warming_up(read: Callable[[bytes], None]) -> Callable[[bytes], None]:
    calls = itertools.count()
    return lambda data: read(data) if next(calls) >= 2 else None


def hang_and_be_noticed() -> None:
    fuzzing.SECONDS = 0.1
    try:
        attack(after_warming_up(hang), damaged([FILE]), 3)
    except AssertionError as error:
        os._exit(7 if "took more than 0.1 s" in str(error) else 1)


def test_a_hang_is_interrupted() -> None:
    assert run(hang_and_be_noticed) == 7


def test_a_case_is_the_same_each_time_and_damaged() -> None:
    def cases_of(change: Callable[..., object], original: object) -> list[object]:
        return [change(original, random.Random(number)) for number in range(300)]

    tree = {"version": 1, "names": ["a", "b"], "more": {"size": 32}}
    for change, original in ((mutate, FILE), (twist, tree)):
        first, second = cases_of(change, original), cases_of(change, original)
        assert list(map(repr, first)) == list(map(repr, second))
        assert sum(repr(case) == repr(original) for case in first) < 15
    assert tree == {"version": 1, "names": ["a", "b"], "more": {"size": 32}}
