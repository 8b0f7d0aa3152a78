"""Random damage: what it does to a file, and a runner that allows clear errors alone, in bounded time and memory."""

import json
import random
import re
import resource
import signal
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fuzzing import SEED
from vitrail.errors import VitrailError

SECONDS = 60  # per case, of a machine that may be busy
MEMORY = 2**30  # bytes above what the process has
LONGEST = 20_000  # characters of a message

NUMBERS = ["-1", "0", "2147483648", str(2**63), str(2**64), "9" * 400, "9" * 5000, "1e999", "-1e308", "nan", "inf"]
NUMBERS += ["0.5", "1e-320", "0x10", "1_000", "", "null", "true", "²", "१"]
WORDS = [
    "null",
    "true",
    "[]",
    "{}",
    '""',
    "NaN",
    "Infinity",
    "=1+1",
    "\x1b[31m",
    "..",
    "/dev/zero",
    "\\u0000",
    "\\ud800",
]
VALUES: list[Any] = [None, True, False, 0, -1, 2**31, 2**63, 2**64, 10**400, -(10**30), 0.5, 1e308, -1e308, 1e-320]
VALUES += [float("nan"), float("inf"), "", "x" * 10_000, "\0", "\ud800", "1", [], {}, [[]], {"": None}, [1, 2, 3]]


def mutate(data: bytes, draw: random.Random) -> bytes:
    """One to four changes of some bytes: flips, cuts, copies, wild numbers and words, nesting."""
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        data = draw.choice(_CHANGES)(data, draw)
    return data


def _span(data: bytes, draw: random.Random, longest: int = 64) -> tuple[int, int]:
    start = draw.randrange(len(data) + 1)
    return start, min(len(data), start + draw.randint(1, longest))


def _flip(data: bytes, draw: random.Random) -> bytes:
    if not data:
        return b"\0"
    changed = bytearray(data)
    changed[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def _overwrite(data: bytes, draw: random.Random) -> bytes:
    start, end = _span(data, draw, 8)
    return data[:start] + draw.randbytes(end - start) + data[end:]


def _cut(data: bytes, draw: random.Random) -> bytes:
    return data[: draw.randrange(len(data) + 1)]


def _remove(data: bytes, draw: random.Random) -> bytes:
    start, end = _span(data, draw)
    return data[:start] + data[end:]


def _repeat(data: bytes, draw: random.Random) -> bytes:
    start, end = _span(data, draw, 256)
    return data[:end] + data[start:end] * draw.choice((1, 2, 50)) + data[end:]


def _splice(data: bytes, draw: random.Random) -> bytes:
    start, end = _span(data, draw, 256)
    at = draw.randrange(len(data) + 1)
    return data[:at] + data[start:end] + data[at:]


def _insert(data: bytes, draw: random.Random) -> bytes:
    at = draw.randrange(len(data) + 1)
    some = draw.choice((b"\0", b"\xff\xfe", b'"', b"\n", b",", b"\r", b"[" * 5000, b'{"a":' * 3000, b"x" * 200_000))
    return data[:at] + some + data[at:]


def _renumber(data: bytes, draw: random.Random) -> bytes:
    places = [match.span() for match in re.finditer(rb"-?\d+(\.\d+)?(e-?\d+)?", data)]
    if not places:
        return _insert(data, draw)
    start, end = draw.choice(places)
    return data[:start] + draw.choice(NUMBERS).encode() + data[end:]


def _reword(data: bytes, draw: random.Random) -> bytes:
    places = [match.span() for match in re.finditer(rb"\w+", data)]
    if not places:
        return _insert(data, draw)
    start, end = draw.choice(places)
    return data[:start] + draw.choice(WORDS).encode() + data[end:]


_CHANGES = (_flip, _flip, _overwrite, _cut, _remove, _repeat, _splice, _insert, _renumber, _renumber, _reword)


def mutate_json(value: Any, draw: random.Random) -> Any:
    """The same value with one of its parts, at any depth, replaced, removed, added or nested."""
    copied = json.loads(json.dumps(value))
    parents: list[tuple[Any, Any]] = []

    def walk(part: Any) -> None:
        for key in part if isinstance(part, dict) else range(len(part)):
            parents.append((part, key))
            if isinstance(part[key], dict | list):
                walk(part[key])

    walk(copied)
    parent, key = draw.choice(parents)
    kind = draw.randrange(6)
    if kind == 0:
        del parent[key]
    elif kind == 1 and isinstance(parent, dict):
        parent[draw.choice(["", "x", "epochs", "step", "../a", "a" * 5000])] = draw.choice(VALUES)
    elif kind == 2:
        nested: Any = parent[key]
        for _ in range(draw.choice((1, 3, 600))):
            nested = [nested]
        parent[key] = nested
    elif kind == 3 and isinstance(parent[key], int | float) and not isinstance(parent[key], bool):
        parent[key] = parent[key] * draw.choice((-1, 2, 1.5, 10**6)) + draw.choice((0, 1, -1))
    else:
        parent[key] = draw.choice(VALUES)
    return copied


@contextmanager
def limits(seconds: float = SECONDS, memory: int = MEMORY) -> Generator[Callable[[], None]]:
    """Within it, more memory is a MemoryError and more time a TimeoutError; what it gives winds the clock up again."""

    def ring(*_: object) -> None:
        raise TimeoutError(f"took more than {seconds} s")

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + memory, before[1]))
    handler = signal.signal(signal.SIGALRM, ring)
    try:
        yield lambda: signal.setitimer(signal.ITIMER_REAL, seconds) and None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        resource.setrlimit(resource.RLIMIT_AS, before)


def attack(
    read: Callable[[bytes], object],
    originals: Sequence[bytes],
    count: int,
    seed: int = SEED,
    change: Callable[[bytes, random.Random], bytes] = mutate,
) -> dict[str, int]:
    """Read `count` damaged files: each must succeed or be refused by a `VitrailError`. How many did which."""
    outcomes = {"read": 0, "refused": 0}
    with limits() as wind_up:
        for case in range(count):
            draw = random.Random(f"{seed}:{case}")
            data = change(draw.choice(originals), draw)
            wind_up()
            error = _error_of(read, data)
            clear = isinstance(error, VitrailError) and len(str(error)) < LONGEST
            if error is not None and not clear:
                text = f"{type(error).__name__}: {str(error)[:2000]}"
                raise AssertionError(f"case {seed}:{case}: {text} for {data[:2000]!r}") from error
            outcomes["read" if error is None else "refused"] += 1
    return outcomes


def _error_of(read: Callable[[bytes], object], data: bytes) -> BaseException | None:
    try:
        read(data)
    except BaseException as error:
        return error
    return None
