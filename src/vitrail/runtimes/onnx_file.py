"""What an ONNX file says about itself, read from its protobuf without loading its graph, onnx or a runtime.

A file that we do not trust is judged here first: weights that lie in other files must lie in the same folder, and the
numbers of our own exports must have the checksum that their manifest says.
"""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from vitrail.errors import WeightsError

# Numbers of the fields that we follow, from onnx.proto3.
GRAPH, METADATA = 7, 14  # of ModelProto
NODE, INITIALIZER = 1, 5  # of GraphProto
ATTRIBUTE = 5  # of NodeProto
TENSOR, SUBGRAPH, TENSORS, SUBGRAPHS = 5, 6, 10, 11  # of AttributeProto
RAW_DATA, EXTERNAL_DATA = 9, 13  # of TensorProto
KEY, VALUE = 1, 2  # of StringStringEntryProto
DEEPEST = 20  # graphs within graphs

Span = tuple[int, int]  # where a field's bytes begin and end


@dataclass(kw_only=True)
class OnnxFacts:
    """Metadata by key, the files that hold weights, the checksum of the weights, and the content that was judged."""

    metadata: dict[str, str] = field(default_factory=dict[str, str])
    external: set[str] = field(default_factory=set[str])
    crc32: int = 0
    content: bytes = b""


def read_onnx_facts(path: Path) -> OnnxFacts:
    """Walk through the file once; anything that is not a model of ONNX is an error."""
    facts = OnnxFacts()
    try:
        data = facts.content = path.read_bytes()
        if not data:
            raise ValueError("the file is empty")
        for number, span in _fields(data, (0, len(data))):
            if number == METADATA:
                entry = dict(_fields(data, span))
                facts.metadata[_text(data, entry.get(KEY))] = _text(data, entry.get(VALUE))
            elif number == GRAPH:
                _read_graph(data, span, facts, 0)
    except (ValueError, IndexError, RecursionError, OSError) as error:
        raise WeightsError(f"{path} is damaged, or not an ONNX model ({error}).") from error
    for name in sorted(facts.external):
        _check_external(path, name)
        facts.crc32 = _crc_of_file(path.parent / name, facts.crc32)
    return facts


def _read_graph(data: bytes, span: Span, facts: OnnxFacts, depth: int) -> None:
    if depth > DEEPEST:
        raise ValueError("graphs are nested too deeply")
    for number, part in _fields(data, span):
        if number == INITIALIZER:
            _read_tensor(data, part, facts)
        elif number == NODE:
            for attribute in (inner for kind, inner in _fields(data, part) if kind == ATTRIBUTE):
                for kind, inner in _fields(data, attribute):
                    if kind in (TENSOR, TENSORS):
                        _read_tensor(data, inner, facts)
                    elif kind in (SUBGRAPH, SUBGRAPHS):
                        _read_graph(data, inner, facts, depth + 1)


def _read_tensor(data: bytes, span: Span, facts: OnnxFacts) -> None:
    for number, part in _fields(data, span):
        if number == RAW_DATA:
            facts.crc32 = zlib.crc32(memoryview(data)[part[0] : part[1]], facts.crc32)
        elif number == EXTERNAL_DATA:
            entry = dict(_fields(data, part))
            if _text(data, entry.get(KEY)) == "location":
                facts.external.add(_text(data, entry.get(VALUE)))


def _fields(data: bytes, span: Span) -> Iterator[tuple[int, Span]]:
    """The length-delimited fields of a message, by number; numbers and fixed fields are passed over."""
    position, end = span
    while position < end:
        tag, position = _varint(data, position, end)
        kind = tag & 7
        if kind == 2:
            length, position = _varint(data, position, end)
            if position + length > end:
                raise ValueError("the file ends too early")
            yield tag >> 3, (position, position + length)
            position += length
        elif kind == 0:
            _, position = _varint(data, position, end)
        elif kind in (1, 5):
            position += 8 if kind == 1 else 4
        else:
            raise ValueError("unknown kind of field")
    if position != end:
        raise ValueError("the file ends too early")


def _varint(data: bytes, position: int, end: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if position >= end:
            raise ValueError("the file ends too early")
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
    raise ValueError("a number is too long")


def _text(data: bytes, span: Span | None) -> str:
    return "" if span is None else data[span[0] : span[1]].decode("utf-8", errors="replace")


def _check_external(path: Path, name: str) -> None:
    """Weights beside the file are fine; a path that leads elsewhere is not followed."""
    if not name or Path(name).name != name or name.startswith("."):
        raise WeightsError(f"{path} points outside its own folder: {name!r}; we do not follow that.")
    target = path.parent / name
    if target.is_symlink() or not target.is_file():
        raise WeightsError(f"{path} keeps its weights in {name}, which must lie beside it as a plain file.")


def _crc_of_file(path: Path, start: int) -> int:
    value = start
    with path.open("rb") as file:
        while piece := file.read(1 << 22):
            value = zlib.crc32(piece, value)
    return value
