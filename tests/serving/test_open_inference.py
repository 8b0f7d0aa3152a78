"""Tensors of the Open Inference Protocol, in JSON and behind it."""

import base64
import io
import json
import struct
from collections.abc import Generator
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput
from tritonclient.utils import InferenceServerException

import vitrail
from serving.conftest import Running, encode
from vitrail.data.pixels import prepare_array
from vitrail.serving.exchange import Problem
from vitrail.serving.open_inference import Tensor, pack_texts, read_bytes, read_floats, read_inference


def body(tensor: dict[str, Any], blob: bytes = b"", **more: Any) -> tuple[bytes, str | None]:
    text = json.dumps({"inputs": [tensor], **more}).encode()
    return text + blob, str(len(text)) if blob else None


def test_binary_parts_belong_to_their_inputs() -> None:
    blob = pack_texts(["ab", "cde"])
    assert blob == b"\2\0\0\0ab\3\0\0\0cde"
    tensor = {"name": "picture", "datatype": "BYTES", "shape": [2], "parameters": {"binary_data_size": len(blob)}}
    asked = read_inference(*body(tensor, blob, outputs=[{"name": "label"}], id="7"), 100)
    assert read_bytes(asked.input, 2) == [b"ab", b"cde"]
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


PICTURES = [encode("PNG"), encode("JPEG", (90, 120)), encode("WEBP", (33, 32))]


@pytest.fixture(scope="module")
def triton(running: Running) -> Generator[Any]:
    client = InferenceServerClient(f"127.0.0.1:{running.port}")
    yield client
    client.close()


@pytest.fixture(scope="module")
def predictor() -> vitrail.Predictor:
    return vitrail.load()


def bytes_input(pictures: list[bytes], binary: bool) -> Any:
    tensor = InferInput("picture", [len(pictures)], "BYTES")
    values = pictures if binary else [base64.b64encode(picture) for picture in pictures]
    tensor.set_data_from_numpy(np.array(values, dtype=np.object_), binary_data=binary)
    return tensor


def test_health_and_metadata(triton: Any) -> None:
    assert triton.is_server_live()
    assert triton.is_server_ready()
    assert triton.is_model_ready("cifar10")
    assert "binary_tensor_data" in triton.get_server_metadata()["extensions"]
    metadata = triton.get_model_metadata("cifar10")
    assert triton.is_model_ready("cifar10", metadata["versions"][0])
    assert not triton.is_model_ready("cifar10", "1")
    assert not triton.is_model_ready("cifar11")
    assert {each["name"] for each in metadata["inputs"]} == {"picture", "images"}


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False])
def test_pictures(triton: Any, predictor: vitrail.Predictor, binary_in: bool, binary_out: bool) -> None:
    outputs = [InferRequestedOutput(name, binary_data=binary_out) for name in ("label", "probabilities", "logits")]
    result = triton.infer("cifar10", [bytes_input(PICTURES, binary_in)], outputs=outputs, request_id="mine")
    expected = list(predictor.predict(PICTURES, top_k=10))
    assert result.get_response()["id"] == "mine"
    labels = [label.decode() if isinstance(label, bytes) else label for label in result.as_numpy("label")]
    assert labels == [each.label for each in expected]
    logits = np.stack([value for _, value in predictor.logits((str(i), data) for i, data in enumerate(PICTURES))])
    np.testing.assert_allclose(result.as_numpy("logits"), logits, rtol=1e-4, atol=1e-4)
    for row, each in zip(result.as_numpy("probabilities"), expected, strict=True):
        np.testing.assert_allclose(row[list(each.indices)], each.scores, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("binary", [True, False])
def test_prepared_images(triton: Any, predictor: vitrail.Predictor, binary: bool) -> None:
    images = np.empty((2, 3, *predictor.preprocess.size), dtype=np.float32)
    for row, data in zip(images, PICTURES, strict=False):
        prepare_array(data, predictor.preprocess, row)
    tensor = InferInput("images", list(images.shape), "FP32")
    tensor.set_data_from_numpy(images, binary_data=binary)
    result = triton.infer("cifar10", [tensor])  # all outputs
    np.testing.assert_allclose(result.as_numpy("logits"), predictor.runtime.logits(images), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_compressed_requests(triton: Any, predictor: vitrail.Predictor, algorithm: str) -> None:
    tensors = [bytes_input(PICTURES, True)]
    result = triton.infer("cifar10", tensors, request_compression_algorithm=algorithm)
    assert [label.decode() for label in result.as_numpy("label")] == [
        each.label for each in predictor.predict(PICTURES)
    ]


def test_every_output_by_default(client: httpx.Client) -> None:
    encoded = base64.b64encode(PICTURES[0]).decode()
    body = {"inputs": [{"name": "picture", "datatype": "BYTES", "shape": [1], "data": [encoded]}]}
    answer = client.post("/v2/models/cifar10/infer", json=body).json()
    assert [each["name"] for each in answer["outputs"]] == ["logits", "probabilities", "label"]
    assert abs(sum(answer["outputs"][1]["data"]) - 1) < 1e-5
    assert (
        client.post("/v2/models/cifar10/infer", json={**body, "parameters": {"binary_data_output": True}})
        .headers["inference-header-content-length"]
        .isdecimal()
    )


def test_numbers_that_are_too_large_are_the_clients_mistake(client: httpx.Client, predictor: vitrail.Predictor) -> None:
    images = np.full((1, 3, *predictor.preprocess.size), 3e38, dtype=np.float32)  # too large for the model
    tensor = InferInput("images", list(images.shape), "FP32")
    tensor.set_data_from_numpy(images)
    body, length = InferenceServerClient.generate_request_body([tensor])
    answer = client.post(
        "/v2/models/cifar10/infer", content=body, headers={"inference-header-content-length": str(length)}
    )
    assert answer.status_code == 422
    assert answer.json()["code"] == "invalid_argument"
    assert "too large for the model" in answer.json()["error"]


def test_mistakes(triton: Any) -> None:
    damaged = io.BytesIO()
    Image.new("RGB", (50, 50)).save(damaged, "PNG")
    with pytest.raises(InferenceServerException, match=r"\[1\] picture 1: damaged or truncated"):
        triton.infer("cifar10", [bytes_input([PICTURES[0], damaged.getvalue()[:60]], True)])
    with pytest.raises(InferenceServerException, match=r"\[415\] picture 0 is a GIF picture, which is not accepted"):
        triton.infer("cifar10", [bytes_input([b"GIF89a, but no picture"], True)])
    tensor = InferInput("images", [1, 3, 32, 32], "FP32")
    tensor.set_data_from_numpy(np.full((1, 3, 32, 32), np.nan, dtype=np.float32))
    with pytest.raises(InferenceServerException, match="not finite"):
        triton.infer("cifar10", [tensor])
    tensor = InferInput("images", [1, 3, 5, 5], "FP32")
    tensor.set_data_from_numpy(np.zeros((1, 3, 5, 5), dtype=np.float32))
    with pytest.raises(InferenceServerException, match=r"must have the shape \[n, 3, 32, 32\]"):
        triton.infer("cifar10", [tensor])
    with pytest.raises(InferenceServerException, match=r"outputs\[0\].name must be one of logits, .*; got 'logit'"):
        triton.infer("cifar10", [bytes_input(PICTURES, True)], outputs=[InferRequestedOutput("logit")])
    with pytest.raises(InferenceServerException, match="classification extension"):
        triton.infer("cifar10", [bytes_input(PICTURES, True)], outputs=[InferRequestedOutput("label", class_count=2)])
    with pytest.raises(InferenceServerException, match="no model 'cifar11'"):
        triton.infer("cifar11", [bytes_input(PICTURES, True)])
