"""Pickles of plain values and byte arrays, read by a small interpreter of our own that can do nothing else.

Python's unpickler can be kept from running code, but still takes gigabytes for nine bytes that name a large memo slot,
or hashes a tuple of tuples of tuples forever. This one knows the few instructions that CIFAR's files consist of, as
Python 2 and Python 3 write them. Its result is at most a small multiple of what it reads: values are shared, never
copied, and every instruction takes the same time.
"""

from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np

from vitrail.errors import DataError, shorten

MAX_STEPS = 1_000_000  # CIFAR-100's training file has 200,000, or 500,000 as Python 3 writes it
REFUSED = "which no CIFAR file needs: refused, nothing was run."

# (module, name) → the stand-in for it: nothing of theirs is ever imported.
_GLOBALS = {
    ("numpy.core.multiarray", "_reconstruct"): "array",
    ("numpy._core.multiarray", "_reconstruct"): "array",
    ("numpy", "ndarray"): "type",
    ("numpy", "dtype"): "type",
    ("_codecs", "encode"): "encode",
}


def load_inert(data: bytes, name: str) -> Mapping[str, Any]:
    """A pickled dictionary of plain values and byte arrays; anything else in it is refused, and nothing runs."""
    try:
        value = _Machine(data).run()
        if not isinstance(value, dict):
            raise DataError(f"must hold a dictionary; got {type(value).__name__}.")
        return {as_text(key): item for key, item in cast("dict[Any, Any]", value).items()}
    except DataError as error:
        raise DataError(f"{name}: {error}") from None
    except (IndexError, KeyError, ValueError) as error:
        raise DataError(f"{name}: damaged or truncated ({type(error).__name__}: {error}).") from None


def as_text(value: Any) -> str:
    """A text, or UTF-8 bytes as one."""
    if not isinstance(value, str | bytes):
        raise DataError(f"must hold text where names are; got {shorten(value)}.")
    try:
        return value if isinstance(value, str) else value.decode()
    except UnicodeDecodeError:
        raise DataError(f"must hold names in UTF-8; got {shorten(value)}.") from None


class InertType:
    """A numpy type, as a pickle describes it."""

    def __init__(self, code: Any) -> None:
        self.code = code


class InertArray:
    """A numpy array, as a pickle describes it, until `array` has checked it."""

    state: Any = None

    def array(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """The array itself, on the bytes of the file."""
        state = self.state
        if not isinstance(state, tuple) or len(cast("tuple[Any, ...]", state)) != 5:
            raise DataError("an array of the pickle has no content.")
        _, shape, dtype, fortran, data = cast("tuple[Any, ...]", state)
        if not isinstance(dtype, InertType) or dtype.code not in ("u1", b"u1", "|u1", b"|u1"):
            raise DataError("the array must hold unsigned bytes.")
        if not isinstance(data, bytes) or not _is_shape(shape):
            raise DataError(f"the array must hold unsigned bytes of one shape; got the shape {shorten(shape)}.")
        try:
            return np.frombuffer(data, dtype=np.uint8).reshape(shape, order="F" if fortran is True else "C")
        except (ValueError, OverflowError):
            raise DataError(f"an array of the shape {shorten(shape)} cannot have {len(data):,} bytes.") from None


def _is_shape(shape: Any) -> bool:
    sizes = cast("tuple[Any, ...]", shape) if isinstance(shape, tuple) else ()
    return 1 <= len(sizes) <= 4 and all(type(size) is int and 0 <= size < 2**40 for size in sizes)


class _Global:
    def __init__(self, kind: str) -> None:
        self.kind = kind


class _Machine:
    """The stack, the marks and the memo that the instructions work on."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._place = 0
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}
        self._encoded = len(data)  # bytes that `encode` may still produce

    def run(self) -> Any:
        for _ in range(MAX_STEPS):
            code = self._data[self._place]
            self._place += 1
            if code == 0x2E:  # STOP
                return self._stack.pop()
            step = _STEPS.get(code)
            if step is None:
                raise DataError(f"the pickle has the instruction {bytes([code])!r}, {REFUSED}")
            step(self)
        raise DataError(f"the pickle has more than {MAX_STEPS:,} instructions, {REFUSED}")

    def take(self, count: int) -> bytes:
        piece = self._data[self._place : self._place + count]
        if len(piece) != count:
            raise DataError(
                f"damaged or truncated: {count:,} bytes must follow at {self._place:,}; got {len(piece):,}."
            )
        self._place += count
        return piece

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little")

    def line(self) -> str:
        end = self._data.index(b"\n", self._place, self._place + 200)
        return self.take(end + 1 - self._place)[:-1].decode()

    def push(self, value: Any) -> None:
        self._stack.append(value)

    def pop(self, kind: type[Any] = object) -> Any:
        if self._marks and len(self._stack) <= self._marks[-1]:
            raise DataError("damaged: an instruction takes more values than there are.")
        value = self._stack.pop()
        if not isinstance(value, kind):
            raise DataError(f"damaged: {kind.__name__} expected; got {type(value).__name__}.")
        return value

    def top(self, kind: type[Any]) -> Any:
        value = self.pop(kind)
        self.push(value)
        return value

    def mark(self) -> None:
        self._marks.append(len(self._stack))

    def pop_to_mark(self) -> list[Any]:
        start = self._marks.pop()
        values = self._stack[start:]
        del self._stack[start:]
        return values

    def put(self, slot: int) -> None:
        self._memo[slot] = self._stack[-1]

    def memoize(self) -> None:
        self.put(len(self._memo))

    def get(self, slot: int) -> None:
        self.push(self._memo[slot])

    def tuple_of(self, count: int) -> None:
        values = [self.pop() for _ in range(count)]
        self.push(tuple(reversed(values)))

    def append(self) -> None:
        value = self.pop()
        self.top(list).append(value)

    def extend(self) -> None:
        values = self.pop_to_mark()
        self.top(list).extend(values)

    def set_item(self) -> None:
        value, key = self.pop(), self.pop()
        self._fill([key, value])

    def set_items(self) -> None:
        self._fill(self.pop_to_mark())

    def _fill(self, values: list[Any]) -> None:
        target = self.top(dict)
        for key, value in zip(values[::2], values[1::2], strict=True):
            if not isinstance(key, str | bytes):  # hashing a tuple of tuples may take forever
                raise DataError(f"the pickle has a key that is not text: {type(key).__name__}.")
            target[key] = value

    def find(self, module: Any, name: Any) -> None:
        kind = _GLOBALS.get((str(module), str(name))) if isinstance(module, str) and isinstance(name, str) else None
        if kind is None:
            raise DataError(f"the pickle asks for {shorten(module)[1:-1]}.{shorten(name)[1:-1]}, {REFUSED}")
        self.push(_Global(kind))

    def find_on_stack(self) -> None:
        name, module = self.pop(), self.pop()
        self.find(module, name)

    def reduce(self) -> None:
        arguments, target = self.pop(tuple), self.pop(_Global)
        if target.kind == "array":
            self.push(InertArray())
        elif target.kind == "type":
            self.push(InertType(arguments[0]))
        else:
            self.push(self._encode(*arguments[:2]))

    def _encode(self, text: Any, encoding: Any = "latin1") -> bytes:
        if not isinstance(text, str) or encoding not in ("latin1", b"latin1", "latin-1"):
            raise DataError(f"the pickle uses the unexpected encoding {shorten(encoding)}.")
        self._encoded -= len(text)  # one text may be encoded again and again
        if self._encoded < 0:
            raise DataError("the pickle unpacks to more than its size: refused.")
        return text.encode("latin1")

    def build(self) -> None:
        state = self.pop()
        target = self.top(object)
        if isinstance(target, InertArray):
            target.state = state
        elif not isinstance(target, InertType):
            raise DataError(f"the pickle sets the state of {type(target).__name__}, {REFUSED}")


def _signed(machine: _Machine, size: int) -> int:
    return int.from_bytes(machine.take(size), "little", signed=True)


def _long(machine: _Machine) -> None:
    size = machine.number(1)
    if size > 8:
        raise DataError(f"the pickle has a whole number of {size} bytes, {REFUSED}")
    machine.push(_signed(machine, size))


def _text(machine: _Machine, size: int) -> None:
    machine.push(machine.take(machine.number(size)).decode("utf-8", "surrogatepass"))


def _bytes(machine: _Machine, size: int) -> None:
    machine.push(machine.take(machine.number(size)))


# Instruction → what it does. Texts of Python 2 are bytes.
_STEPS: dict[int, Callable[[_Machine], Any]] = {
    0x80: lambda m: m.take(1),  # PROTO
    0x95: lambda m: m.take(8),  # FRAME
    ord("("): _Machine.mark,
    ord("N"): lambda m: m.push(None),
    0x88: lambda m: m.push(True),
    0x89: lambda m: m.push(False),
    ord("J"): lambda m: m.push(_signed(m, 4)),
    ord("K"): lambda m: m.push(m.number(1)),
    ord("M"): lambda m: m.push(m.number(2)),
    0x8A: _long,
    ord("U"): lambda m: _bytes(m, 1),
    ord("T"): lambda m: _bytes(m, 4),
    ord("C"): lambda m: _bytes(m, 1),
    ord("B"): lambda m: _bytes(m, 4),
    0x8E: lambda m: _bytes(m, 8),
    0x8C: lambda m: _text(m, 1),
    ord("X"): lambda m: _text(m, 4),
    0x8D: lambda m: _text(m, 8),
    ord("]"): lambda m: m.push([]),
    ord("}"): lambda m: m.push({}),
    ord(")"): lambda m: m.push(()),
    ord("t"): lambda m: m.push(tuple(m.pop_to_mark())),
    0x85: lambda m: m.tuple_of(1),
    0x86: lambda m: m.tuple_of(2),
    0x87: lambda m: m.tuple_of(3),
    ord("a"): _Machine.append,
    ord("e"): _Machine.extend,
    ord("s"): _Machine.set_item,
    ord("u"): _Machine.set_items,
    ord("q"): lambda m: m.put(m.number(1)),
    ord("r"): lambda m: m.put(m.number(4)),
    0x94: _Machine.memoize,
    ord("h"): lambda m: m.get(m.number(1)),
    ord("j"): lambda m: m.get(m.number(4)),
    ord("c"): lambda m: m.find(m.line(), m.line()),
    0x93: _Machine.find_on_stack,
    ord("R"): _Machine.reduce,
    ord("b"): _Machine.build,
}
