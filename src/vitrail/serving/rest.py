"""The routes of /v1: pictures in, labels, embeddings and explanations out."""

from array import array
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from starlette.responses import JSONResponse, Response

from vitrail.serving.batching import Answer, Kind
from vitrail.serving.dispatch import Call, Endpoint, Query, model_of, parameter
from vitrail.serving.exchange import Problem, invalid
from vitrail.serving.openapi import BINARY, SCHEMAS, json_of, pictures_of
from vitrail.serving.supervisor import Host
from vitrail.serving.uploads import Picture, check_pictures, describe, read_pictures

METHODS = ("auto", "attention", "rollout", "gradient-rollout", "relevance", "occlusion")

MODEL = parameter("model", {"type": "string"}, "The model; the first one by default.")
TOP_K = parameter(
    "top_k",
    {"type": "integer", "minimum": 1, "maximum": 100_000},
    "How many labels to give at most; by default 5 classes, or of several labels all that apply.",
)
COVERAGE = parameter(
    "coverage",
    {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    "Also give a set of labels, or an interval of each value, that contains the truth this often; for calibrated "
    "models.",
)
LAYER, HEAD = (
    parameter(name, {"type": "integer", "minimum": -1000, "maximum": 1000}, f"A {name}, from 0; -1 is the last.")
    for name in ("layer", "head")
)
METHOD = parameter("method", {"type": "string", "enum": list(METHODS), "default": "auto"}, "How to explain.")
TARGET = parameter(
    "target", {"type": "string", "maxLength": 200}, "The class, label or value to explain, by name or number."
)
FORMAT = parameter("format", {"type": "string", "enum": ["png", "json"], "default": "png"}, "An overlay, or numbers.")
_NAMING_HEADERS = {
    f"X-Vitrail-{name}": {"schema": {"type": "string"}, "description": f"{what}; in JSON, it is in the answer."}
    for name, what in (("Model", "The model's name"), ("Version", "Its version"), ("Sha256", "Its checksum"))
}
_one_picture = partial(pictures_of, most=1)


@Endpoint("GET", "/v1/models", "The models and what they are", (), "Models", ("not_ready",))
async def list_models(call: Call) -> Response:
    _, *shown = SCHEMAS["Described"]["properties"]  # all but its name
    hosts = [call.service.find(name) for name in call.service.hosts]
    return JSONResponse({"models": [{"name": host.name, **_pick(host.facts, *shown)} for host in hosts]})


@Endpoint(
    "GET",
    "/v1/labels",
    "The names of a model's classes, labels or values",
    (MODEL,),
    "Labels",
    ("not_ready", "unknown_model"),
)
async def list_labels(call: Call) -> Response:
    host = call.host
    return JSONResponse({"model": host.name, **_pick(host.facts, "version", "sha256", "task", "labels", "thresholds")})


@Endpoint(
    "POST",
    "/v1/predict",
    "The most likely classes, the labels that apply, or the values",
    (MODEL, TOP_K, COVERAGE),
    "Predictions",
    body=lambda settings: pictures_of(settings, fields=(TOP_K,)),
)
async def predict(call: Call) -> Response:
    host = call.host
    if not host.facts["classes"]:
        raise invalid(f"{host.name} has no classes to predict.", "Use /v1/embed.")
    pictures, fields = await read_pictures(call)
    top_k = fields.get("top_k", call.arguments.get("top_k"))
    wanted = {"want": "top", "top_k": top_k, "coverage": call.arguments.get("coverage")}
    return await _answer_each(call, host, "logits", pictures, wanted, "predictions", _prediction)


@Endpoint("POST", "/v1/embed", "The embeddings of pictures", (MODEL,), "Embeddings", body=pictures_of)
async def embed(call: Call) -> Response:
    host = call.host
    pictures, _ = await read_pictures(call)
    return await _answer_each(call, host, "features", pictures, {"want": "row"}, "embeddings", _embedding)


@Endpoint(
    "POST",
    "/v1/explain",
    "Explain one picture",
    (MODEL, METHOD, LAYER, HEAD, TARGET, FORMAT),
    {"image/png": {"schema": BINARY}, **json_of("Explained")},
    ("cannot_explain",),
    _NAMING_HEADERS,
    body=_one_picture,
)
async def explain(call: Call) -> Response:
    asked = call.arguments
    options = {
        **{name: asked.get(name) for name in ("method", "layer", "head")},
        "target": asked.get("target") or None,
        "as_png": asked["format"] == "png",
    }
    host, answer = await _answer_one(call, "explain", options)
    if not options["as_png"]:
        return _result(call, host, answer)
    named = {"model": host.name, **_pick(model_of(host, [answer]), "version", "sha256")}
    headers = {f"x-vitrail-{name}": value for name, value in named.items()}
    return Response(answer.blobs[0], media_type="image/png", headers=headers)


@Endpoint(
    "POST",
    "/v1/attention",
    "What each patch attends to",
    (MODEL, LAYER, HEAD),
    "Attention",
    ("cannot_explain",),
    body=_one_picture,
)
async def show_attention(call: Call) -> Response:
    options = {name: call.arguments.get(name) for name in ("layer", "head")}
    return _result(call, *await _answer_one(call, "attention", options))


async def _answer_one(call: Call, kind: Kind, options: dict[str, Any]) -> tuple[Host, Answer]:
    host = call.host
    if not host.facts["explains"]:
        raise Problem("cannot_explain", f"{host.name} runs on {host.facts['runtime']} and cannot be explained.")
    pictures, _ = await read_pictures(call)
    if len(pictures) != 1:
        raise invalid(f"one picture can be explained at a time; got {len(pictures)}.")
    call.exchange.pictures = 1
    (pixels,) = check_pictures(pictures, call.settings)
    assert isinstance(pixels, int)  # or it would have raised
    (answer,) = await call.service.ask(call.request, host, kind, [(options, pictures[0].data, pixels)])
    if answer.problem is not None:
        raise answer.problem
    return host, answer


async def _answer_each(
    call: Call,
    host: Host,
    kind: Kind,
    pictures: list[Picture],
    wanted: dict[str, Any],
    field: str,
    tell: Callable[[Answer | None], dict[str, Any]],
) -> Response:
    """An answer or a problem for each picture; the only picture's problem is the request's."""
    call.exchange.pictures = len(pictures)
    checked = check_pictures(pictures, call.settings)
    queries: list[Query] = [
        ({**wanted, "name": describe(picture.name)}, picture.data, pixels)
        for picture, pixels in zip(pictures, checked, strict=True)
        if isinstance(pixels, int)
    ]
    answers = await call.service.ask(call.request, host, kind, queries) if queries else []
    rest, rows = iter(answers), list[dict[str, Any]]()
    for picture, pixels in zip(pictures, checked, strict=True):
        answer = None if isinstance(pixels, Problem) else next(rest)
        problem = pixels if isinstance(pixels, Problem) else answer and answer.problem
        if problem is not None and len(pictures) == 1:
            raise problem
        error = None if problem is None else problem.entry()
        rows.append({"picture": picture.name, **tell(answer if problem is None else None), "error": error})
    return JSONResponse({**_heading(call, host, answers), field: rows, **_milliseconds(call, answers)})


def _prediction(answer: Answer | None) -> dict[str, Any]:
    """The labels or values, and what a calibrated model adds to them, which is null for another one."""
    facts = {} if answer is None else answer.facts
    labels = [dict(zip(("label", "index", "score"), each, strict=True)) for each in facts.get("labels", ())]
    rest = {name: facts.get(name) for name in ("intervals", "familiarity", "familiar")}
    return {"labels": labels, "label_set": facts.get("label_set"), "values": facts.get("values", ()), **rest}


def _embedding(answer: Answer | None) -> dict[str, Any]:
    return {"vector": None if answer is None else floats(answer.blobs[0]).tolist()}


def floats(blob: bytes) -> "array[float]":
    """Float32 numbers of the worker, which runs on this machine."""
    numbers = array("f")
    numbers.frombytes(blob)
    return numbers


def _result(call: Call, host: Host, answer: Answer) -> Response:
    return JSONResponse({**_heading(call, host, [answer]), **answer.facts["result"], **_milliseconds(call, [answer])})


def _heading(call: Call, host: Host, answers: Sequence[Answer]) -> dict[str, Any]:
    model = {"name": host.name, **_pick(model_of(host, answers), "version", "sha256", "runtime")}
    return {"model": model, "request_id": call.exchange.id}


def _milliseconds(call: Call, answers: Sequence[Answer]) -> dict[str, Any]:
    """Of the slowest of its pictures, and in all."""
    stages = ("queue", "decode", "compute")
    seconds = {name: max((getattr(each, name) for each in answers), default=0.0) for name in stages}
    seconds["total"] = call.exchange.seconds
    return {"milliseconds": {name: round(1000 * each, 3) for name, each in seconds.items()}}


def _pick(facts: Any, *names: str) -> dict[str, Any]:
    return {name: facts[name] for name in names}


ENDPOINTS = (list_models, list_labels, predict, embed, explain, show_attention)
