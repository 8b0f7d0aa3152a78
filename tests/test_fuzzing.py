"""The fuzzer's own tests: what it must notice, and that a case can be tried again."""

import random
from collections.abc import Callable

import pytest

import fuzzing
from fuzzing import attack, damaged, mutate, twist
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


@pytest.mark.parametrize(
    ("read", "told"),
    [(fail, "KeyError: 'names'"), (talk, "DataError: xxx"), (hoard, "MemoryError"), (hang, "s of the processor")],
)
def test_anything_else_is_a_failure(read: Callable[[bytes], None], told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzzing, "CPU_SECONDS", 0.05)
    warmed_up: list[int] = []

    def read_later(data: bytes) -> None:
        warmed_up.append(1)
        if len(warmed_up) > 2:
            read(data)

    with pytest.raises(AssertionError, match=f"case {fuzzing.SEED}:0: .*{told}"):
        attack(read_later, damaged([FILE]), 3)


def test_a_case_is_the_same_each_time_and_damaged() -> None:
    def cases_of(change: Callable[..., object], original: object) -> list[object]:
        return [change(original, random.Random(number)) for number in range(300)]

    tree = {"version": 1, "names": ["a", "b"], "more": {"size": 32}}
    for change, original in ((mutate, FILE), (twist, tree)):
        first, second = cases_of(change, original), cases_of(change, original)
        assert list(map(repr, first)) == list(map(repr, second))
        assert sum(repr(case) == repr(original) for case in first) < 15
    assert tree == {"version": 1, "names": ["a", "b"], "more": {"size": 32}}
