"""The fuzzers: how many cases they try, random damage to files and trees, and a runner that accepts only clear errors.

`make test` tries a few dozen cases, always the same ones. `VITRAIL_FUZZ` multiplies all counts, and another
`VITRAIL_FUZZ_SEED` draws other cases; `make fuzz` sets both. Properties of structured inputs are Hypothesis's, within
the same counts.
"""

import os
import random
import re
import resource
import signal
import struct
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings

from vitrail.errors import VitrailError

TIMES = int(os.environ.get("VITRAIL_FUZZ", "1"))
SEED = int(os.environ.get("VITRAIL_FUZZ_SEED", "0"))

CPU_SECONDS = 10  # per case, of the processor
SECONDS = 60.0  # per case, on a machine that may be busy: until it is interrupted
MEMORY = 2**30  # bytes above what the process has
LONGEST = 3000  # characters of a message

NUMBERS = ["-1", "0", "2147483648", str(2**63), str(2**64), "9" * 400, "9" * 5000, "1e999", "-1e308", "nan", "inf"]
NUMBERS += ["0.5", "1e-320", "0x10", "1_000", "", "null", "true", "²", "१"]
WORDS = ["null", "true", "[]", "{}", '""', "NaN", "Infinity", "=1+1", "\x1b[31m", "..", "/dev/zero", "\\u0000"]
WORDS += ["\\ud800"]
BINARY = [
    struct.pack(order + code, value)
    for order in "<>"
    for code, value in (("I", 2**32 - 1), ("I", 2**31), ("Q", 2**63), ("I", 10**9), ("H", 65535))
]
INSERTED = [b"\0", b"\xff\xfe", b'"', b"\n", b",", b"\r", b"[" * 5000, b'{"a":' * 3000, b"x" * 200_000]
INTEGERS = [0, 1, -1, 127, 128, 255, 256, 2**15, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**63, 2**64]
TEXTS = ["", "\0", "²", "9" * 5000, "Infinity", "NaN", "[" * 3000, "/dev/zero", "../x", "\ud800", "é", "a\nb", "null"]
VALUES: list[Any] = [None, True, False, *INTEGERS, 10**400, -(10**30), 10**4000, 0.5, 1.5, 1e308, -1e308, 1e-320]
VALUES += [float("nan"), float("inf"), *TEXTS, "x" * 10_000, "1", [], {}, [[]], [[1]], {"": None}, {"a": 1}, [1, 2, 3]]
KEYS = ["", "\0", "²", "x", "epochs", "step", "../a", "a" * 5000]


class TookTooLong(BaseException):
    """A case took more than its time."""


Case = TypeVar("Case")
Damage = Callable[[bytes, random.Random], bytes]


def cases(count: int) -> int:
    """How many to try where `make test` tries `count`."""
    return count * TIMES


# The marks of a case that takes seconds: `make fuzz` runs it.
FUZZ = (pytest.mark.fuzz, pytest.mark.skipif(TIMES == 1, reason="takes seconds; make fuzz runs it"))


def in_fuzz_only(test: Callable[..., Any]) -> Callable[..., Any]:
    """For a test that takes seconds, because of its many cases or processes: `make fuzz` runs it."""
    for mark in FUZZ:
        test = mark(test)
    return test


def set_up_hypothesis() -> None:
    """What every property is tried with: examples that nothing but the code decides on, however slow the machine.

    `make fuzz` passes the seed to Hypothesis itself, which ignores it where examples are derandomised.
    """
    settings.register_profile(
        "vitrail",
        max_examples=cases(20),
        derandomize=TIMES == 1,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    settings.load_profile("vitrail")


# --- Damage to bytes. ---


def mutate(data: bytes, draw: random.Random, words: Sequence[bytes] = ()) -> bytes:
    """One to four changes: flips, cuts, copies, wild numbers and words, among them `words` that mean something here."""
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        data = draw.choice((*_CHANGES, partial(_insert, words=words), partial(_overwrite, words=words)))(data, draw)
    return data


def damaged(originals: Sequence[bytes], damage: Damage = mutate) -> Callable[[random.Random], bytes]:
    """What draws one of these files with some damage."""
    return lambda draw: damage(draw.choice(originals), draw)


def _place(data: bytes, draw: random.Random) -> int:
    """Anywhere; often near the beginning or the end, where files have their headers."""
    size = len(data)
    return draw.choice((draw.randint(0, size), draw.randint(0, size // 20), draw.randint(size - size // 20, size)))


def _span(data: bytes, draw: random.Random, longest: int = 64) -> tuple[int, int]:
    start = _place(data, draw)
    return start, min(len(data), start + draw.randint(1, longest))


def _flip(data: bytes, draw: random.Random) -> bytes:
    if not data:
        return b"\0"
    changed = bytearray(data)
    changed[min(_place(data, draw), len(data) - 1)] ^= 1 << draw.randrange(8)
    return bytes(changed)


def _overwrite(data: bytes, draw: random.Random, words: Sequence[bytes] = ()) -> bytes:
    start, end = _span(data, draw, 300)
    noise, zeros = draw.randbytes(draw.randint(1, 8)), bytes(end - start)
    word = draw.choice([noise, zeros, draw.choice(BINARY), *draw.sample(words, min(len(words), 1))])
    return data[:start] + word + data[start + len(word) :]


def _cut(data: bytes, draw: random.Random) -> bytes:
    return data[: _place(data, draw)]


def _remove(data: bytes, draw: random.Random) -> bytes:
    start, end = _span(data, draw)
    return data[:start] + data[end:]


def _repeat(data: bytes, draw: random.Random) -> bytes:
    start, end = _span(data, draw, 256)
    return data[:end] + data[start:end] * draw.choice((1, 2, 50)) + data[end:]


def _splice(data: bytes, draw: random.Random) -> bytes:
    """A piece of the data at another place, before or instead of what is there."""
    start, end = _span(data, draw, 512)
    at = _place(data, draw)
    return data[:at] + data[start:end] + data[at + draw.choice((0, end - start)) :]


def _swap(data: bytes, draw: random.Random) -> bytes:
    start, end = _span(data, draw, 5000)
    middle = (start + end) // 2
    return data[:start] + data[middle:end] + data[start:middle] + data[end:]


def _insert(data: bytes, draw: random.Random, words: Sequence[bytes] = ()) -> bytes:
    at = _place(data, draw)
    word = draw.choice((*INSERTED, *BINARY, *words))
    return data[:at] + word * (draw.choice((1, 1, 1, 2, 100)) if len(word) < 50 else 1) + data[at:]


def _replace(data: bytes, draw: random.Random, pattern: bytes, values: Sequence[str]) -> bytes:
    places = [match.span() for match in re.finditer(pattern, data)]
    if not places:
        return _insert(data, draw)
    start, end = draw.choice(places)
    return data[:start] + draw.choice(values).encode() + data[end:]


_renumber = partial(_replace, pattern=rb"-?\d+(\.\d+)?(e-?\d+)?", values=NUMBERS)
_reword = partial(_replace, pattern=rb"\w+", values=WORDS)
_CHANGES = (_flip, _flip, _cut, _remove, _repeat, _splice, _swap, _renumber, _renumber, _reword)


# --- Damage to trees of plain values. ---


def twist(tree: Any, draw: random.Random) -> Any:
    """The same tree with one of its parts, at any depth, replaced, removed, renamed, scaled, nested or with one more.

    Whatever is beside that part is not copied.
    """
    return _at(tree, draw.choice(list(_paths(tree))), draw)


def _paths(tree: Any) -> Iterator[tuple[Any, ...]]:
    yield ()
    for key in tree if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ():
        yield from ((key, *path) for path in _paths(tree[key]))


def _at(tree: Any, path: tuple[Any, ...], draw: random.Random) -> Any:
    if not path:
        return _change(tree, draw)
    key = path[0]
    if len(path) == 1 and draw.random() < 0.15:
        if isinstance(tree, list):
            return [*tree[:key], *tree[key + 1 :]]
        others = {name: value for name, value in tree.items() if name != key}
        return {**others, draw.choice(KEYS): tree[key]} if draw.random() < 0.4 else others
    changed = _at(tree[key], path[1:], draw)
    return {**tree, key: changed} if isinstance(tree, dict) else [*tree[:key], changed, *tree[key + 1 :]]


def _change(value: Any, draw: random.Random) -> Any:
    kind = draw.randrange(5)
    if kind == 0 and isinstance(value, dict):
        return {**value, draw.choice(KEYS): draw.choice(VALUES)}
    if kind == 0 and isinstance(value, list):
        return [*value, draw.choice(VALUES)]
    if kind == 1:
        for _ in range(draw.choice((1, 3, 600))):
            value = [value]
        return value
    if kind == 2 and isinstance(value, int | float) and not isinstance(value, bool):
        return value * draw.choice((-1, 2, 1.5, 10**6)) + draw.choice((0, 1, -1))
    return draw.choice(VALUES)


# --- The runner. ---


def attack(read: Callable[[Case], object], make: Callable[[random.Random], Case], count: int) -> Counter[str]:
    """Read `count` cases that `make` draws: each must be read, or refused by a `VitrailError`. How many were which.

    Within bounded time and memory; case N of a seed is always the same.
    """
    outcomes: Counter[str] = Counter()
    for case in (-2, -1):  # so that everything is imported before the memory is limited
        with suppress(VitrailError):
            read(make(_draw(case)))
    with _limits() as wind_up:
        for number in range(count):
            case = make(_draw(number))
            wind_up()
            began = time.process_time()
            error = _error_of(read, case)
            if error is None and time.process_time() - began > CPU_SECONDS:
                error = TookTooLong(f"took more than {CPU_SECONDS} s of the processor")
            if error is not None and not (isinstance(error, VitrailError) and len(str(error)) < LONGEST):
                text = f"{type(error).__name__}: {str(error)[:2000]}"
                raise AssertionError(f"case {SEED}:{number}: {text} for {repr(case)[:2000]}") from error
            outcomes["read" if error is None else "refused"] += 1
    return outcomes


def _draw(case: int) -> random.Random:
    return random.Random(f"{SEED}:{case}")


def _error_of(read: Callable[[Case], object], case: Case) -> BaseException | None:
    try:
        read(case)
    except BaseException as error:
        return error
    return None


@contextmanager
def _limits() -> Generator[Callable[[], None]]:
    """Within it, more memory is a MemoryError and more time ends a case; what it gives winds the clock up again."""

    def ring(*_: object) -> None:
        raise TookTooLong(f"took more than {SECONDS} s")

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY, before[1]))
    handler = signal.signal(signal.SIGALRM, ring)
    try:
        yield lambda: signal.setitimer(signal.ITIMER_REAL, SECONDS) and None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        resource.setrlimit(resource.RLIMIT_AS, before)
