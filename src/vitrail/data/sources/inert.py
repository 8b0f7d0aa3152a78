"""Pickles of plain values and byte arrays, read by a small interpreter of our own that can do nothing else.

Python's unpickler can be kept from running code, but still takes gigabytes for nine bytes that name a large memo slot,
or hashes a tuple of tuples of tuples forever. This one carries out only the few instructions that CIFAR's files consist
of, as Python 2 and Python 3 write them. Its result is at most a small multiple of what it reads: values are shared,
never copied, and every instruction takes the same time.
"""

import pickletools
from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from vitrail.errors import DataError, shorten

MAX_STEPS = 1_000_000  # CIFAR-100's training file has 200,000, or 500,000 as Python 3 writes it
REFUSED = "which no CIFAR file needs: refused, nothing was run."

# (module, name) → what stands for it: nothing that a pickle names is ever imported.
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
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}
        self._encoded = len(data)  # bytes that `encode` may still produce

    def run(self) -> Any:
        for number, (opcode, argument, _) in enumerate(pickletools.genops(self._data)):
            if number >= MAX_STEPS:
                raise DataError(f"the pickle has more than {MAX_STEPS:,} instructions, {REFUSED}")
            if opcode.name == "STOP":
                break
            self._step(opcode, argument)
        return self._pop()

    def _step(self, opcode: pickletools.OpcodeInfo, argument: Any) -> None:
        push = self._stack.append
        match opcode.name:
            case "BININT1" | "BININT2" | "BININT" | "LONG1" | "NONE":
                push(argument)
            case "BINPUT" | "LONG_BINPUT":
                self._memo[argument] = self._stack[-1]
            case "MEMOIZE":
                self._memo[len(self._memo)] = self._stack[-1]
            case "SHORT_BINUNICODE" | "BINUNICODE" | "BINUNICODE8" | "SHORT_BINBYTES" | "BINBYTES" | "BINBYTES8":
                push(argument)
            case "SHORT_BINSTRING" | "BINSTRING":  # texts of Python 2 are bytes
                push(argument.encode("latin-1"))
            case "BINGET" | "LONG_BINGET":
                push(self._memo[argument])
            case "MARK":
                self._marks.append(len(self._stack))
            case "NEWTRUE" | "NEWFALSE":
                push(opcode.name == "NEWTRUE")
            case "EMPTY_LIST":
                push([])
            case "EMPTY_DICT":
                push({})
            case "EMPTY_TUPLE":
                push(())
            case "TUPLE":
                push(tuple(self._pop_to_mark()))
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                push(tuple([self._pop() for _ in range(int(opcode.name[-1]))][::-1]))
            case "APPEND":
                value = self._pop()
                self._top(list).append(value)
            case "APPENDS":
                values = self._pop_to_mark()
                self._top(list).extend(values)
            case "SETITEM":
                value, key = self._pop(), self._pop()
                self._fill([key, value])
            case "SETITEMS":
                self._fill(self._pop_to_mark())
            case "GLOBAL":
                push(_find(*argument.split(" ", 1)))
            case "STACK_GLOBAL":
                name, module = self._pop(str), self._pop(str)
                push(_find(module, name))
            case "REDUCE":
                push(self._call(self._pop(tuple), self._pop(_Global)))
            case "BUILD":
                state, target = self._pop(), self._top(object)
                if isinstance(target, InertArray):
                    target.state = state
                elif not isinstance(target, InertType):
                    raise DataError(f"the pickle sets the state of {type(target).__name__}, {REFUSED}")
            case "PROTO" | "FRAME":
                pass
            case _:
                raise DataError(f"the pickle has the instruction {opcode.name}, {REFUSED}")

    def _pop(self, kind: type[Any] = object) -> Any:
        if self._marks and len(self._stack) <= self._marks[-1]:
            raise DataError("damaged: an instruction takes more values than there are.")
        value = self._stack.pop()
        if not isinstance(value, kind):
            raise DataError(f"damaged: {kind.__name__} expected; got {type(value).__name__}.")
        return value

    def _top(self, kind: type[Any]) -> Any:
        value = self._pop(kind)
        self._stack.append(value)
        return value

    def _pop_to_mark(self) -> list[Any]:
        start = self._marks.pop()
        values = self._stack[start:]
        del self._stack[start:]
        return values

    def _fill(self, values: list[Any]) -> None:
        target = self._top(dict)
        for key, value in zip(values[::2], values[1::2], strict=True):
            if not isinstance(key, str | bytes):  # hashing a tuple of tuples may take forever
                raise DataError(f"the pickle has a key that is not text: {type(key).__name__}.")
            target[key] = value

    def _call(self, arguments: tuple[Any, ...], target: _Global) -> Any:
        if target.kind == "array":
            return InertArray()
        if target.kind == "type":
            return InertType(arguments[0])
        text, encoding = (*arguments, "latin1")[:2]
        if not isinstance(text, str) or encoding not in ("latin1", b"latin1", "latin-1"):
            raise DataError(f"the pickle uses the unexpected encoding {shorten(encoding)}.")
        self._encoded -= len(text)  # one text may be encoded again and again
        if self._encoded < 0:
            raise DataError("the pickle unpacks to more than its size: refused.")
        return text.encode("latin1")


def _find(module: str, name: str) -> _Global:
    if (module, name) not in _GLOBALS:
        raise DataError(f"the pickle asks for {shorten(module)[1:-1]}.{shorten(name)[1:-1]}, {REFUSED}")
    return _Global(_GLOBALS[module, name])
