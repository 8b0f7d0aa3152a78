"""The routes of /v1: pictures in, labels, embeddings and explanations out."""

import math
from array import array
from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from vitrail.errors import suggest
from vitrail.serving.batching import Answer
from vitrail.serving.dispatch import Clock, Service, model_of
from vitrail.serving.exchange import exchange_of
from vitrail.serving.openapi import METHODS
from vitrail.serving.problems import Problem
from vitrail.serving.supervisor import Host
from vitrail.serving.uploads import Picture, describe, judge, read_pictures

MOST = 20
LONGEST = 200


def read_arguments(request: Request, *known: str) -> dict[str, str]:
    """Name → text; a name that is unknown or there twice is an error."""
    try:
        pairs = parse_qsl(
            request.scope["query_string"].decode("ascii"),
            keep_blank_values=True,
            max_num_fields=MOST,
            errors="strict",
        )
    except ValueError:
        raise Problem("invalid_argument", "the arguments in the address cannot be read.") from None
    values: dict[str, str] = {}
    for name, value in pairs:
        if name not in known:
            told = suggest(name[:50], known) if known else "this address takes none."
            raise Problem("invalid_argument", f"unknown argument {name[:50]!r}; {told}")
        if name in values:
            raise Problem("invalid_argument", f"{name} is given twice.")
        if len(value) > LONGEST:
            raise Problem("invalid_argument", f"{name} must have at most {LONGEST} characters.")
        values[name] = value
    return values


def read_share(name: str, value: str) -> float:
    """A share between 0 and 1."""
    try:
        share = float(value) if value.isascii() else math.nan
    except ValueError:
        share = math.nan
    if not 0 < share < 1:
        raise Problem("invalid_argument", f"{name} must be between 0 and 1; got {repr(value)[:50]}.")
    return share


def whole_number(name: str, value: Any, least: int, most: int) -> int:
    """A whole number within limits, as a number of JSON or as text."""
    if isinstance(value, str):
        digits = value.removeprefix("-")
        if digits.isascii() and digits.isdecimal() and len(digits) < 10:
            value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise Problem(
            "invalid_argument",
            f"{name} must be a whole number from {least:,} to {most:,}; got {repr(value)[:50]}.",
        )
    return value


TOP_K = 5
MOST_CLASSES = 100_000
# What is told about a model beside its name.
_TOLD = (
    *("version", "sha256", "classes", "image_size", "grid", "depth", "heads"),
    *("runtime", "precision", "explains", "methods", "temperature"),
)


class Simple:
    """The handlers of /v1."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def models(self, request: Request) -> Response:
        read_arguments(request)
        hosts = [self._service.find(name) for name in self._service.hosts]
        return JSONResponse(
            {"models": [{"name": host.name, **{name: host.facts[name] for name in _TOLD}} for host in hosts]}
        )

    async def labels(self, request: Request) -> Response:
        host = self._service.find(read_arguments(request, "model").get("model"))
        facts = {name: host.facts[name] for name in ("version", "sha256", "labels")}
        return JSONResponse({"model": host.name, **facts})

    async def predict(self, request: Request) -> Response:
        clock = Clock()
        arguments = read_arguments(request, "model", "top_k", "coverage")
        host = self._service.find(arguments.get("model"))
        if not host.facts["classes"]:
            raise Problem("invalid_argument", f"{host.name} has no classes to predict.", "Use /v1/embed.")
        top_k = _top_k(arguments)
        found = await read_pictures(request, self._service.settings, ("top_k",))
        if "top_k" in found.fields:
            top_k = _top_k(found.fields)
        coverage = read_share("coverage", arguments["coverage"]) if "coverage" in arguments else None
        wanted = {"want": "top", "top_k": min(top_k, host.facts["classes"]), "coverage": coverage}
        entries, answers = await self._answer(request, host, "logits", found.pictures, wanted)
        predictions = [
            {"picture": picture.name, "labels": _labels(entry), **_trust(entry), "error": _error(entry)}
            for picture, entry in zip(found.pictures, entries, strict=True)
        ]
        return JSONResponse(
            {**_heading(request, host, answers), "predictions": predictions, "milliseconds": clock.read(answers)}
        )

    async def embed(self, request: Request) -> Response:
        clock = Clock()
        host = self._service.find(read_arguments(request, "model").get("model"))
        found = await read_pictures(request, self._service.settings)
        entries, answers = await self._answer(request, host, "features", found.pictures, {"want": "row"})
        embeddings = [
            {"picture": picture.name, "vector": _vector(entry), "error": _error(entry)}
            for picture, entry in zip(found.pictures, entries, strict=True)
        ]
        return JSONResponse(
            {**_heading(request, host, answers), "embeddings": embeddings, "milliseconds": clock.read(answers)}
        )

    async def explain(self, request: Request) -> Response:
        clock = Clock()
        arguments = read_arguments(request, "model", "method", "layer", "head", "target", "format")
        form = _choice("format", arguments.get("format", "png"), ("png", "json"))
        options = {
            "method": _choice("method", arguments.get("method", "auto"), METHODS),
            **_layer_and_head(arguments),
            "target": arguments.get("target") or None,
            "as_png": form == "png",
        }
        host, answer = await self._ask_about_one(request, "explain", arguments.get("model"), options)
        if form == "png":
            model = model_of(host, [answer])
            named = {"model": host.name, "version": model["version"], "sha256": model["sha256"]}
            headers = {f"x-vitrail-{name}": value for name, value in named.items()}
            return Response(answer.blobs[0], media_type="image/png", headers=headers)
        return _result(request, host, answer, clock)

    async def attention(self, request: Request) -> Response:
        clock = Clock()
        arguments = read_arguments(request, "model", "layer", "head")
        host, answer = await self._ask_about_one(
            request, "attention", arguments.get("model"), _layer_and_head(arguments)
        )
        return _result(request, host, answer, clock)

    async def _ask_about_one(
        self, request: Request, kind: Any, model: str | None, options: dict[str, Any]
    ) -> tuple[Host, Answer]:
        host = self._service.find(model)
        if not host.facts["explains"]:
            raise Problem("cannot_explain", f"{host.name} runs on {host.facts['runtime']} and cannot be explained.")
        found = await read_pictures(request, self._service.settings)
        if len(found.pictures) != 1:
            raise Problem("invalid_argument", f"one picture can be explained at a time; got {len(found.pictures)}.")
        exchange_of(request).pictures = 1
        (pixels,) = judge(found.pictures, self._service.settings)
        assert isinstance(pixels, int)  # or it would have raised
        (answer,) = await self._service.ask(request, host, kind, [(options, found.pictures[0].data, pixels)])
        if error := answer.facts.get("error"):
            raise Problem(error["code"], error["message"])
        return host, answer

    async def _answer(
        self, request: Request, host: Host, kind: Any, pictures: list[Picture], wanted: dict[str, Any]
    ) -> tuple[list[Answer | Problem], Sequence[Answer]]:
        """An answer or a problem for each picture; the only picture's problem is the request's."""
        exchange_of(request).pictures = len(pictures)
        judged = judge(pictures, self._service.settings)
        items = [
            ({**wanted, "name": describe(picture.name)}, picture.data, pixels)
            for picture, pixels in zip(pictures, judged, strict=True)
            if isinstance(pixels, int)
        ]
        answers = await self._service.ask(request, host, kind, items) if items else []
        rest = iter(answers)
        entries = [_settle(next(rest)) if isinstance(each, int) else each for each in judged]
        if len(entries) == 1 and isinstance(entries[0], Problem):
            raise entries[0]
        return entries, answers


def _settle(answer: Answer) -> Answer | Problem:
    error = answer.facts.get("error")
    return answer if error is None else Problem(error["code"], error["message"])


def _result(request: Request, host: Host, answer: Answer, clock: Clock) -> Response:
    content = {**_heading(request, host, [answer]), **answer.facts["result"]}
    return JSONResponse({**content, "milliseconds": clock.read([answer])})


def _heading(request: Request, host: Host, answers: Sequence[Answer]) -> dict[str, Any]:
    facts = model_of(host, answers)
    model = {"name": host.name, **{name: facts[name] for name in ("version", "sha256", "runtime")}}
    return {"model": model, "request_id": exchange_of(request).id}


def _labels(entry: Answer | Problem) -> list[dict[str, Any]]:
    if isinstance(entry, Problem):
        return []
    return [{"label": label, "index": index, "score": score} for label, index, score in entry.facts["labels"]]


def _trust(entry: Answer | Problem) -> dict[str, Any]:
    """What a calibrated model adds to its labels; all null for another one."""
    facts = {} if isinstance(entry, Problem) else entry.facts
    return {name: facts.get(name) for name in ("label_set", "familiarity", "familiar")}


def _vector(entry: Answer | Problem) -> list[float] | None:
    return None if isinstance(entry, Problem) else floats(entry.blobs[0]).tolist()


def floats(blob: bytes) -> "array[float]":
    """Float32 numbers of the worker, which runs on this machine."""
    numbers = array("f")
    numbers.frombytes(blob)
    return numbers


def _error(entry: Answer | Problem) -> dict[str, Any] | None:
    return entry.entry() if isinstance(entry, Problem) else None


def _top_k(values: dict[str, Any]) -> int:
    return whole_number("top_k", values.get("top_k", TOP_K), 1, MOST_CLASSES)


def _layer_and_head(arguments: dict[str, str]) -> dict[str, int | None]:
    return {
        name: whole_number(name, arguments[name], -1000, 1000) if arguments.get(name) else None
        for name in ("layer", "head")
    }


def _choice(name: str, value: str, known: tuple[str, ...]) -> str:
    if value not in known:
        raise Problem("invalid_argument", f"{name} must be one of {', '.join(known)}; got {value[:50]!r}.")
    return value
