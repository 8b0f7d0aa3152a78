"""The routes of /v2: the Open Inference Protocol, as Triton's and KServe's clients speak it, and its tensors."""

import json
import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf, prod
from typing import Any, cast

from starlette.responses import JSONResponse, Response

from vitrail import __version__
from vitrail.serving.batching import Answer
from vitrail.serving.dispatch import BODY, Call, Endpoint, ModelFacts, Query, model_of, parameter, read_value
from vitrail.serving.exchange import Problem, invalid
from vitrail.serving.openapi import BINARY, SCHEMAS, json_of
from vitrail.serving.rest import floats
from vitrail.serving.settings import ServeSettings
from vitrail.serving.supervisor import START_RETRY, Host
from vitrail.serving.uploads import FEW, Picture, check_pictures, decode_base64, describe, read_body, read_json
from vitrail.wording import counted

HEADER_LENGTH = "inference-header-content-length"
PICTURE, IMAGES = "picture", "images"
OUTPUTS = {"logits": "FP32", "probabilities": "FP32", "values": "FP32", "label": "BYTES"}
USUAL = ("logits", "probabilities", "label")  # of a model with classes or labels; one that measures has values
NAMED = ("not_ready", "unknown_model")  # errors of a route that names a model
MODEL = parameter("model", {"type": "string"}, "The model's name.", "path")
VERSION = parameter("version", {"type": "string", "maxLength": 64}, "As /v2/models/{model} lists it.", "path")
LENGTH = parameter(
    "Inference-Header-Content-Length",
    {"type": "string", "pattern": "^[0-9]{1,9}$"},
    "The length of the JSON part, if raw tensors follow it.",
    "header",
)


@dataclass
class Tensor:
    """The input."""

    name: str
    datatype: str
    shape: list[int]
    parameters: dict[str, Any] = field(default_factory=dict[str, Any])
    data: Any = None  # as JSON has it
    raw: bytes | None = None  # or as it is behind the JSON


@dataclass
class Inference:
    """One request for inference."""

    id: str | None
    input: Tensor
    outputs: list[tuple[str, bool]]  # name, and whether it is wanted in binary


def read_inference(body: bytes, header_length: str | None, most: int, names: Sequence[str] = USUAL) -> Inference:
    """The request in a body, whose JSON part, with a tensor of `most` numbers, may be followed by a raw one.

    `names` are the outputs that the model has.
    """
    text, rest = body, b""
    if header_length is not None:
        if not header_length.isdecimal() or len(header_length) > 18 or int(header_length) > len(body):
            raise Problem("unreadable_body", "Inference-Header-Content-Length must be the length of the JSON part.")
        text, rest = body[: int(header_length)], body[int(header_length) :]
    content = read_value(BODY, SCHEMAS["Inference"], read_json(text, 2 * most + FEW))
    tensor = Tensor(**content["inputs"][0])
    if (size := tensor.parameters.get("binary_data_size")) is not None:
        if type(size) is not int or not 0 <= size <= len(rest):
            message = f"{tensor.name} is truncated: binary_data_size is larger than what was sent."
            raise Problem("unreadable_body", message)
        tensor.raw, rest = rest[:size], rest[size:]
    if rest:
        raise Problem("unreadable_body", f"{len(rest):,} bytes belong to no input.")
    binary = content.get("parameters", {}).get("binary_data_output", False)
    requested: list[dict[str, Any]] = content.get("outputs") or [{"name": name} for name in names]
    outputs: dict[str, bool] = {}
    for each in requested:
        parameters = each.get("parameters", {})
        if parameters.get("classification"):
            raise invalid("the classification extension is not supported; ask for the output label.")
        if each["name"] not in names:
            raise invalid(f"this model has no output {each['name']}, only {', '.join(names)}.")
        if each["name"] in outputs:
            raise invalid("an output is requested twice.")
        outputs[each["name"]] = bool(parameters.get("binary_data", binary))
    return Inference(content.get("id"), tensor, list(outputs.items()))


def read_bytes(tensor: Tensor, limit: int) -> list[bytes]:
    """The elements of a BYTES tensor."""
    count = _count(tensor, 1, limit)
    if tensor.raw is None:
        listed = _flatten(tensor.data, tensor.name, tensor.shape)
        elements = [decode_base64(each, f"{tensor.name}[{index}]") for index, each in enumerate(listed)]
    else:
        elements = _split(tensor.raw, tensor.name, count)
    if len(elements) != count:
        raise invalid(f"{tensor.name} has {len(elements)} elements; its shape says {count}.")
    return elements


def read_floats(tensor: Tensor, shape: Sequence[int], limit: int) -> list[bytes]:
    """The rows of an FP32 tensor as little-endian bytes."""
    count = _count(tensor, len(shape) + 1, limit)
    if tensor.shape[1:] != list(shape):
        wanted = ", ".join(map(str, ("n", *shape)))
        raise invalid(f"{tensor.name} must have the shape [{wanted}]; got {tensor.shape[:8]}.")
    size = prod(shape)
    raw = tensor.raw
    if raw is None:
        numbers = _flatten(tensor.data, tensor.name, tensor.shape)
        if not all(type(number) in (int, float) for number in numbers):
            raise invalid(f"{tensor.name} must hold numbers.")
        try:
            held = array("f", numbers)
        except OverflowError:
            held = array("f", [inf])
        if held.count(inf) or held.count(-inf):
            raise invalid(f"{tensor.name} has a number that float32 cannot hold.")
        raw = held.tobytes()
    if len(raw) != 4 * count * size:
        raise invalid(f"{tensor.name} has {len(raw) // 4:,} numbers; its shape says {count * size:,}.")
    return [raw[start : start + 4 * size] for start in range(0, len(raw), 4 * size)]


def pack_texts(texts: Sequence[str]) -> bytes:
    """A BYTES tensor in binary: each element behind its length."""
    encoded = [text.encode() for text in texts]
    return b"".join(struct.pack("<I", len(each)) + each for each in encoded)


def _count(tensor: Tensor, dimensions: int, limit: int) -> int:
    """How many pictures a tensor has."""
    if len(tensor.shape) == 2 and dimensions == 1 and tensor.shape[1] == 1:  # [n, 1], as some clients write [n]
        return _count(Tensor(tensor.name, tensor.datatype, tensor.shape[:1]), 1, limit)
    if len(tensor.shape) != dimensions or tensor.shape[0] < 1:
        raise invalid(f"{tensor.name} must have {dimensions} dimensions and at least one picture.")
    if tensor.shape[0] > limit:
        limited = counted(limit, "picture")
        raise invalid(f"a request may have at most {limited}; got {tensor.shape[0]:,}.")
    return tensor.shape[0]


def _flatten(value: Any, name: str, shape: list[int]) -> list[Any]:
    """The elements of a tensor, which is one list, or lists nested as its shape says."""
    if not isinstance(value, list):
        raise invalid(f"{name} must have data: a list, or binary_data_size and raw bytes.")
    flat = cast("list[Any]", value)
    if any(isinstance(each, list) for each in flat):
        flat = [flat]
        for side in shape:
            if not all(isinstance(each, list) and len(cast("list[Any]", each)) == side for each in flat):
                raise invalid(f"{name} must be one list, or lists nested as its shape {shape} says.")
            flat = [inner for each in flat for inner in each]
    if len(flat) != prod(shape):
        raise invalid(f"{name} has {len(flat):,} elements; its shape says {prod(shape):,}.")
    return flat


def _split(raw: bytes, name: str, most: int) -> list[bytes]:
    elements: list[bytes] = []
    position = 0
    while position < len(raw) and len(elements) <= most:
        size = int.from_bytes(raw[position : position + 4], "little")
        if position + 4 + size > len(raw):
            raise Problem("unreadable_body", f"{name} is truncated: an element is longer than what was sent.")
        elements.append(raw[position + 4 : position + 4 + size])
        position += 4 + size
    return elements


@Endpoint("GET", "/v2", "The name, version and extensions of the server", (), "Server")
async def show_server(call: Call) -> Response:
    return JSONResponse({"name": "vitrail", "version": __version__, "extensions": ["binary_tensor_data"]})


@Endpoint("GET", "/v2/health/live", "Whether the service runs", (), "Live", is_open=True)
async def show_live(call: Call) -> Response:
    return JSONResponse({"live": True})


@Endpoint("GET", "/v2/health/ready", "Whether all models are ready", (), "Ready", ("not_ready",), is_open=True)
async def show_ready(call: Call) -> Response:
    if not call.service.ready:
        message = "the service, or one of its workers, is starting or stopping."
        raise Problem("not_ready", message, retry_after=START_RETRY)
    return JSONResponse({"ready": True})


async def show_model(call: Call) -> Response:
    host = _find(call)
    return JSONResponse(
        {
            "name": host.name,
            "versions": [host.facts["version"]],
            "platform": f"vitrail_{host.facts['runtime'].split()[0].lower()}",
            "inputs": [
                {"name": PICTURE, "datatype": "BYTES", "shape": [-1]},
                {"name": IMAGES, "datatype": "FP32", "shape": [-1, *_image_shape(host)]},
            ],
            "outputs": [_output(name, -1, host.facts["classes"]) for name in _outputs_of(host)],
        }
    )


async def show_model_ready(call: Call) -> Response:
    host = _find(call)
    if call.service.draining or not host.ready:
        raise Problem("not_ready", f"the model {host.name} is not ready.", retry_after=START_RETRY)
    return JSONResponse({"name": host.name, "ready": True})


async def infer(call: Call) -> Response:
    host = _find(call)
    if not host.facts["classes"]:
        raise invalid(f"{host.name} has no classes.", "Use /v1/embed.")
    body = await read_body(call.request, call.settings)
    most = call.settings.max_pictures * prod(_image_shape(host))
    asked = read_inference(body, call.request.headers.get(HEADER_LENGTH), most, _outputs_of(host))
    queries = _queries(asked.input, host, call.settings)
    call.exchange.pictures = len(queries)
    answers = await call.service.ask(call.request, host, "logits", queries)
    for index, problem in enumerate(answer.problem for answer in answers):
        if problem is not None:
            raise problem if len(answers) == 1 else Problem(problem.code, f"[{index}] {problem.message}")
    return _respond(host.name, model_of(host, answers), asked, answers)


ENDPOINTS = (
    *(show_server, show_live, show_ready),
    *(
        endpoint
        for path, names in (
            ("/v2/models/{model}", (MODEL,)),
            ("/v2/models/{model}/versions/{version}", (MODEL, VERSION)),
        )
        for endpoint in (
            Endpoint("GET", path, "A model's inputs and outputs", names, "Model", NAMED)(show_model),
            Endpoint("GET", f"{path}/ready", "Whether a model is ready", names, "ModelReady", NAMED)(show_model_ready),
            Endpoint(
                "POST",
                f"{path}/infer",
                "Infer, by the Open Inference Protocol",
                (*names, LENGTH),
                {**json_of("Inferred"), "application/octet-stream": {"schema": BINARY}},
                body=lambda _: json_of("Inference"),
            )(infer),
        )
    ),
)


def _find(call: Call) -> Host:
    host, version = call.host, call.arguments.get("version")
    if version is not None and version != host.facts["version"]:
        raise Problem("unknown_model", f"only version {host.facts['version']} of {host.name} is served.")
    return host


def _queries(tensor: Tensor, host: Host, settings: ServeSettings) -> list[Query]:
    """What the worker gets: encoded pictures, or prepared ones."""
    if {PICTURE: "BYTES", IMAGES: "FP32"}.get(tensor.name) != tensor.datatype:
        raise invalid(f"the input must be {PICTURE} (BYTES) or {IMAGES} (FP32).")
    wanted = {"want": "scores"}
    if tensor.name == IMAGES:
        rows = read_floats(tensor, _image_shape(host), settings.max_pictures)
        return [({**wanted, "tensor": True, "name": describe(str(i))}, row, 0) for i, row in enumerate(rows)]
    pictures = [Picture(str(i), data) for i, data in enumerate(read_bytes(tensor, settings.max_pictures))]
    queries: list[Query] = []
    for picture, pixels in zip(pictures, check_pictures(pictures, settings), strict=True):
        if isinstance(pixels, Problem):
            raise pixels
        queries.append(({**wanted, "name": describe(picture.name)}, picture.data, pixels))
    return queries


def _image_shape(host: Host) -> list[int]:
    return [host.facts["channels"], *host.facts["image_size"]]


def _outputs_of(host: Host) -> Sequence[str]:
    return ("values",) if host.facts["output"] == "values" else USUAL


def _output(name: str, count: int, classes: int) -> dict[str, Any]:
    shape = [count] if name == "label" else [count, classes]
    return {"name": name, "datatype": OUTPUTS[name], "shape": shape}


def _respond(name: str, model: ModelFacts, asked: Inference, answers: list[Answer]) -> Response:
    described: list[dict[str, Any]] = []
    raw: list[bytes] = []
    for output, is_binary in asked.outputs:
        facts = _output(output, len(answers), model["classes"])
        if output == "label":
            values = [answer.facts["label"] for answer in answers]
            data = pack_texts(values) if is_binary else b""
        else:
            data = b"".join(answer.blobs[0 if output == "logits" else 1] for answer in answers)
            values = [] if is_binary else floats(data).tolist()
        if is_binary:
            facts["parameters"] = {"binary_data_size": len(data)}
            raw.append(data)
        else:
            facts["data"] = values
        described.append(facts)
    content: dict[str, Any] = {
        "model_name": name,
        "model_version": model["version"],
        "parameters": {"sha256": model["sha256"]},
        "outputs": described,
        **({} if asked.id is None else {"id": asked.id}),
    }
    if not raw:
        return JSONResponse(content)
    text = json.dumps(content).encode()
    headers = {HEADER_LENGTH: str(len(text))}
    return Response(b"".join((text, *raw)), media_type="application/octet-stream", headers=headers)
