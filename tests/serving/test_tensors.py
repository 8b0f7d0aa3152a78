"""Tensors of the Open Inference Protocol, in JSON and behind it."""

import json
import struct
from typing import Any

import numpy as np
import pytest

from vitrail.serving.problems import Problem
from vitrail.serving.tensors import Tensor, pack_texts, read_bytes, read_floats, read_inference


def body(tensor: dict[str, Any], blob: bytes = b"", **more: Any) -> tuple[bytes, str | None]:
    text = json.dumps({"inputs": [tensor], **more}).encode()
    return text + blob, str(len(text)) if blob else None


def test_binary_parts_belong_to_their_inputs() -> None:
    blob = pack_texts(["ab", "cde"])
    assert blob == b"\2\0\0\0ab\3\0\0\0cde"
    tensor = {"name": "picture", "datatype": "BYTES", "shape": [2], "parameters": {"binary_data_size": len(blob)}}
    asked = read_inference(*body(tensor, blob, outputs=[{"name": "label"}], id="7"), 100)
    assert read_bytes(asked.inputs[0], 2) == [b"ab", b"cde"]
    assert (asked.id, asked.outputs) == ("7", [("label", False)])


def test_numbers_may_be_nested() -> None:
    values = np.arange(24, dtype=np.float32).reshape(2, 3, 2, 2)
    for data in (values.tolist(), values.ravel().tolist()):
        rows = read_floats(Tensor("images", "FP32", [2, 3, 2, 2], data=data), [3, 2, 2], 2)
        assert rows == [values[0].tobytes(), values[1].tobytes()]


@pytest.mark.parametrize(
    ("shape", "data", "raw"),
    [
        ([1, 3, 2, 2], [1.0] * 11, None),
        ([1, 3, 2, 2], ["1"] * 12, None),
        ([1, 3, 2, 2], [True] * 12, None),
        ([1, 3, 2, 2], [1e39] * 12, None),
        ([1, 3, 2, 2], [[[[[[[[[[1.0]]]]]]]]]] * 12, None),
        ([1, 3, 2, 2], [[1.0] * 12], None),
        ([2, 3, 2, 2], [[1.0] * 13, [1.0] * 11], None),
        ([1, 3, 2, 2], [[[[1.0, 1.0], [1.0]], [[1.0, 1.0], [1.0, 1.0, 1.0]], [[1.0, 1.0], [1.0, 1.0]]]], None),
        ([1, 3, 2, 2], [*[1.0] * 11, [1.0]], None),
        ([1, 3, 2, 2], None, None),
        ([1, 3, 2, 2], None, bytes(47)),
        ([1, 3, 2, 3], None, bytes(72)),
        ([12], None, bytes(48)),
        ([0, 3, 2, 2], [], None),
        ([9, 3, 2, 2], None, bytes(9 * 48)),
    ],
)
def test_wrong_numbers(shape: list[int], data: Any, raw: bytes | None) -> None:
    with pytest.raises(Problem) as caught:
        read_floats(Tensor("images", "FP32", shape, data=data, raw=raw), [3, 2, 2], 4)
    assert caught.value.status == 422


@pytest.mark.parametrize(
    ("tensor", "blob", "status"),
    [
        ({"parameters": {"binary_data_size": 4}}, b"abc", 400),
        ({"parameters": {"binary_data_size": 2}}, b"abc", 400),
        ({"parameters": {"binary_data_size": True}}, b"a", 400),
        ({"parameters": []}, b"", 422),
        ({"name": 1}, b"", 422),
        ({"shape": [1.5]}, b"", 422),
        ({"shape": "1"}, b"", 422),
        ({"extra": 1}, b"", 422),
    ],
)
def test_wrong_requests(tensor: dict[str, Any], blob: bytes, status: int) -> None:
    with pytest.raises(Problem) as caught:
        read_inference(*body({"name": "picture", "datatype": "BYTES", "shape": [1], **tensor}, blob), 100)
    assert caught.value.status == status


def test_texts_may_be_nested_as_their_shape() -> None:
    for shape, data in (([2], ["QQ==", "Qg=="]), ([2, 1], [["QQ=="], ["Qg=="]]), ([2, 1], ["QQ==", "Qg=="])):
        assert read_bytes(Tensor("picture", "BYTES", shape, data=data), 2) == [b"A", b"B"]
    for data in ([["QQ==", "Qg=="]], [["QQ=="], "Qg=="], [["QQ=="], ["Qg=="]]):
        with pytest.raises(Problem):
            read_bytes(Tensor("picture", "BYTES", [2], data=data), 2)


def test_elements_are_not_read_past_their_end() -> None:
    for raw in (struct.pack("<I", 2**32 - 1) + b"abc", b"\1\0", pack_texts(["a"]) * 3):
        with pytest.raises(Problem):
            read_bytes(Tensor("picture", "BYTES", [1], raw=raw), 5)
