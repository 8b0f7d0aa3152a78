"""The routes of /v2: the Open Inference Protocol, as Triton's and KServe's clients speak it."""

import json
from math import prod
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from vitrail import __version__
from vitrail.serving.arguments import read_arguments
from vitrail.serving.batching import Answer
from vitrail.serving.bodies import Picture, describe, judge, read_body
from vitrail.serving.exchange import exchange_of
from vitrail.serving.problems import Problem
from vitrail.serving.service import START_RETRY, Asked, Facts, Service, model_of
from vitrail.serving.simple import floats
from vitrail.serving.supervising import Host
from vitrail.serving.tensors import Inference, Tensor, pack_texts, read_bytes, read_floats, read_inference

HEADER_LENGTH = "inference-header-content-length"
PICTURE, IMAGES = "picture", "images"
OUTPUTS = ("logits", "probabilities", "label")


class OpenInference:
    """The handlers of /v2."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def server(self, request: Request) -> Response:
        return JSONResponse({"name": "vitrail", "version": __version__, "extensions": ["binary_tensor_data"]})

    async def live(self, request: Request) -> Response:
        return JSONResponse({"live": True})

    async def ready(self, request: Request) -> Response:
        if not self._service.ready:
            raise Problem(
                "not_ready", "the service, or one of its workers, is starting or stopping.", retry_after=START_RETRY
            )
        return JSONResponse({"ready": True})

    async def model(self, request: Request) -> Response:
        return JSONResponse(describe_model(self._find(request)))

    async def model_ready(self, request: Request) -> Response:
        host = self._find(request)
        if self._service.draining or not host.ready:
            raise Problem("not_ready", f"the model {host.name} is not ready.", retry_after=START_RETRY)
        return JSONResponse({"name": host.name, "ready": True})

    async def infer(self, request: Request) -> Response:
        host = self._find(request)
        if not host.facts["classes"]:
            raise Problem("invalid_argument", f"{host.name} has no classes.", "Use /v1/embed.")
        body = await read_body(request, self._service.settings)
        most = self._service.settings.max_pictures * prod(_image_shape(host))
        asked = read_inference(body, request.headers.get(HEADER_LENGTH), most)
        outputs = asked.outputs or [(name, asked.binary) for name in OUTPUTS]
        for name, _ in outputs:
            if name not in OUTPUTS:
                raise Problem("invalid_argument", f"there is no output {name[:50]!r}; known: {', '.join(OUTPUTS)}.")
        if len({name for name, _ in outputs}) != len(outputs):
            raise Problem("invalid_argument", "an output is requested twice.")
        answers = await self._service.ask(request, host, "logits", self._items(request, host, asked))
        for index, answer in enumerate(answers):
            if error := answer.facts.get("error"):
                raise Problem(
                    error["code"], f"{error['message']}" if len(answers) == 1 else f"[{index}] {error['message']}"
                )
        return _respond(host.name, model_of(host, answers), asked, outputs, answers)

    def _find(self, request: Request) -> Host:
        read_arguments(request)
        host = self._service.find(request.path_params["model"])
        version = request.path_params.get("version")
        if version is not None and version != host.facts["version"]:
            raise Problem("unknown_model", f"only version {host.facts['version']} of {host.name} is served.")
        return host

    def _items(self, request: Request, host: Host, asked: Inference) -> list[Asked]:
        """What the worker gets: encoded pictures, or prepared ones."""
        if len(asked.inputs) != 1:
            raise Problem(
                "invalid_argument", f"there must be one input, {PICTURE} or {IMAGES}; got {len(asked.inputs)}."
            )
        tensor, settings = asked.inputs[0], self._service.settings
        kinds = {PICTURE: "BYTES", IMAGES: "FP32"}
        if kinds.get(tensor.name) != tensor.datatype:
            raise Problem("invalid_argument", f"the input must be {PICTURE} (BYTES) or {IMAGES} (FP32).")
        if tensor.name == IMAGES:
            rows = self._read_images(host, tensor)
            items: list[Asked] = [
                ({"want": "scores", "tensor": True, "name": describe(str(index))}, row, 0)
                for index, row in enumerate(rows)
            ]
        else:
            pictures = [
                Picture(str(index), data) for index, data in enumerate(read_bytes(tensor, settings.max_pictures))
            ]
            items = []
            for picture, pixels in zip(pictures, judge(pictures, settings), strict=True):
                if isinstance(pixels, Problem):
                    raise pixels
                items.append(({"want": "scores", "name": describe(picture.name)}, picture.data, pixels))
        exchange_of(request).pictures = len(items)
        return items

    def _read_images(self, host: Host, tensor: Tensor) -> list[bytes]:
        return read_floats(tensor, _image_shape(host), self._service.settings.max_pictures)


def _image_shape(host: Host) -> list[int]:
    return [host.facts["channels"], *host.facts["image_size"]]


def describe_model(host: Host) -> dict[str, Any]:
    """A model's metadata."""
    facts = host.facts
    return {
        "name": host.name,
        "versions": [facts["version"]],
        "platform": f"vitrail_{facts['runtime'].split()[0].lower()}",
        "inputs": [
            {"name": PICTURE, "datatype": "BYTES", "shape": [-1]},
            {"name": IMAGES, "datatype": "FP32", "shape": [-1, facts["channels"], *facts["image_size"]]},
        ],
        "outputs": [
            {"name": "logits", "datatype": "FP32", "shape": [-1, facts["classes"]]},
            {"name": "probabilities", "datatype": "FP32", "shape": [-1, facts["classes"]]},
            {"name": "label", "datatype": "BYTES", "shape": [-1]},
        ],
    }


def _respond(
    name_of_model: str, model: Facts, asked: Inference, outputs: list[tuple[str, bool]], answers: list[Answer]
) -> Response:
    described: list[dict[str, Any]] = []
    raw: list[bytes] = []
    for name, binary in outputs:
        facts: dict[str, Any] = {"name": name, "datatype": "BYTES", "shape": [len(answers)]}
        if name == "label":
            texts = [answer.facts["label"] for answer in answers]
            data = pack_texts(texts) if binary else b""
        else:
            texts = []
            data = b"".join(answer.blobs[OUTPUTS.index(name)] for answer in answers)
            facts |= {"datatype": "FP32", "shape": [len(answers), model["classes"]]}
        if binary:
            facts["parameters"] = {"binary_data_size": len(data)}
            raw.append(data)
        else:
            facts["data"] = texts if name == "label" else floats(data).tolist()
        described.append(facts)
    content: dict[str, Any] = {
        "model_name": name_of_model,
        "model_version": model["version"],
        "parameters": {"sha256": model["sha256"]},
        "outputs": described,
    }
    if asked.id is not None:
        content["id"] = asked.id
    if not raw:
        return JSONResponse(content)
    text = json.dumps(content).encode()
    return Response(
        b"".join((text, *raw)), media_type="application/octet-stream", headers={HEADER_LENGTH: str(len(text))}
    )
