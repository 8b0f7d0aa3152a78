"""The description of the service that it serves itself, at /openapi.json."""

from collections.abc import Iterable, Sequence
from typing import Any

from vitrail import __version__
from vitrail.serving.problems import CODES
from vitrail.serving.schemas import SCHEMAS, reference
from vitrail.serving.settings import ServeSettings

Schema = dict[str, Any]
METHODS = ("auto", "attention", "rollout", "gradient-rollout", "relevance", "occlusion")
PICTURE_TYPES = ("image/jpeg", "image/png", "image/webp", "application/octet-stream")
_EVERYWHERE = ("invalid_request", "forbidden", "request_timeout", "headers_too_large", "internal_error")
_GUARDED = ("unauthorized", "rate_limited", "invalid_argument")  # where a token and a pace may be asked for
_BODY = ("unreadable_body", "unreadable_picture", "too_large", "unsupported_format")
_COMPUTED = ("model_failed", "queue_full", "not_ready", "timeout", "too_many_connections")
_BINARY: Schema = {"type": "string", "format": "binary"}


def describe_api(settings: ServeSettings, models: Sequence[str]) -> Schema:
    """The whole description, for these models and limits."""
    named = _named_model(models)
    description: Schema = {
        "openapi": "3.1.0",
        "info": {
            "title": "vitrail",
            "version": __version__,
            "summary": "Labels, embeddings and explanations of pictures by Vision Transformers.",
            "description": "A picture is a JPEG, PNG or WebP, recognised by its content. It is turned upright as its "
            "EXIF or XMP tag says, and of an animated one the first frame counts. An error has a code, a message and a "
            "hint; among several pictures, one that cannot be read has an error of its own, and the others an answer.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": {**_simple(settings, models), **_with_texts(_open_inference(named)), **_about()},
        "components": {"schemas": SCHEMAS},
    }
    if settings.token:
        description["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        description["security"] = [{"token": []}]
        for path in ("/v2/health/live", "/v2/health/ready"):
            description["paths"][path]["get"]["security"] = []
    return description


def _simple(settings: ServeSettings, models: Sequence[str]) -> Schema:
    model = _argument("model", {"type": "string", "enum": list(models)}, "The model; the first one by default.")
    top_k = _argument(
        "top_k", {"type": "integer", "minimum": 1, "maximum": 100_000, "default": 5}, "How many labels to give."
    )
    coverage = _argument(
        "coverage",
        {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
        "Also give a set of labels that contains the right one this often; for calibrated models.",
    )
    layer, head = (
        _argument(name, {"type": "integer", "minimum": -1000, "maximum": 1000}, f"A {name}, from 0; -1 is the last.")
        for name in ("layer", "head")
    )
    method = _argument("method", {"type": "string", "enum": list(METHODS), "default": "auto"}, "How to explain.")
    target = _argument("target", {"type": "string", "maxLength": 200}, "The class to explain, by name or number.")
    form = _argument("format", {"type": "string", "enum": ["png", "json"], "default": "png"}, "An overlay, or numbers.")
    explained = _post("Explain one picture", (model, method, layer, head, target, form), _pictures(settings, 1))
    explained["responses"]["200"]["content"] = {"image/png": {"schema": _BINARY}, **_json("Explained")}
    explained["responses"]["200"]["headers"] = {
        f"X-Vitrail-{name}": {"schema": {"type": "string"}, "description": f"{what}; in JSON, it is in the answer."}
        for name, what in (("Model", "The model's name"), ("Version", "Its version"), ("Sha256", "Its checksum"))
    }
    explained["responses"]["422"] = _problems(("invalid_argument", "cannot_explain"))
    attention = _post(
        "What each patch attends to", (model, layer, head), _pictures(settings, 1), "Attention", "cannot_explain"
    )
    many, plain = (_pictures(settings, settings.max_pictures, fields) for fields in (("top_k",), ()))
    return {
        "/v1/models": {"get": _get("The models and what they are", (), "Models", "not_ready")},
        "/v1/labels": {"get": _get("The names of a model's classes", (model,), "Labels", "not_ready", "unknown_model")},
        "/v1/predict": {"post": _post("The most likely classes", (model, top_k, coverage), many, "Predictions")},
        "/v1/embed": {"post": _post("The embeddings of pictures", (model,), plain, "Embeddings")},
        "/v1/explain": {"post": explained},
        "/v1/attention": {"post": attention},
    }


def _open_inference(model: Schema) -> Schema:
    version = _in_path("version", {"type": "string", "maxLength": 64}, "As /v2/models/{model} lists it.")
    paths: Schema = {
        "/v2": {"get": _get("The name, version and extensions of the server", (), "Server")},
        "/v2/health/live": {"get": _get("Whether the service runs", (), "Live", guarded=False)},
        "/v2/health/ready": {"get": _get("Whether all models are ready", (), "Ready", "not_ready", guarded=False)},
    }
    for path, parameters in (
        ("/v2/models/{model}", (model,)),
        ("/v2/models/{model}/versions/{version}", (model, version)),
    ):
        ready = _get("Whether a model is ready", parameters, "ModelReady", "not_ready", "unknown_model")
        paths[path] = {"get": _get("A model's inputs and outputs", parameters, "Model", "not_ready", "unknown_model")}
        paths[f"{path}/ready"] = {"get": ready}
        paths[f"{path}/infer"] = {"post": _infer(parameters)}
    return paths


def _with_texts(paths: Schema) -> Schema:
    """With errors in the form of the Open Inference Protocol, as texts."""
    for operations in paths.values():
        for operation in operations.values():
            for status, response in operation["responses"].items():
                if not status.startswith("2"):
                    response["content"] = _json("InferenceProblem")
    return paths


def _infer(parameters: Sequence[Schema]) -> Schema:
    length = {
        "name": "Inference-Header-Content-Length",
        "in": "header",
        "schema": {"type": "string", "pattern": "^[0-9]{1,9}$"},
        "description": "The length of the JSON part, if raw tensors follow it.",
    }
    operation = _post("Infer, by the Open Inference Protocol", (*parameters, length), _json("Inference"), "Inferred")
    operation["responses"]["200"]["content"]["application/octet-stream"] = {"schema": _BINARY}
    return operation


def _about() -> Schema:
    text: Schema = {"text/plain; version=0.0.4; charset=utf-8": {"schema": {"type": "string"}}}
    metrics, openapi = _get("Metrics for Prometheus", ()), _get("This description", ())
    metrics["responses"]["200"]["content"] = text
    openapi["responses"]["200"]["content"] = {"application/json": {"schema": {"type": "object"}}}
    return {"/metrics": {"get": metrics}, "/openapi.json": {"get": openapi}}


def _get(summary: str, parameters: Sequence[Schema], schema: str = "", *codes: str, guarded: bool = True) -> Schema:
    known = (*_EVERYWHERE, *(_GUARDED if guarded else ()), *codes)
    success: Schema = {"description": "Done."}
    if schema:
        success["content"] = _json(schema)
    return {"summary": summary, "parameters": list(parameters), "responses": {"200": success, **_responses(known)}}


def _post(summary: str, parameters: Sequence[Schema], body: Schema, schema: str = "", *codes: str) -> Schema:
    operation = _get(summary, parameters, schema, *_BODY, *_COMPUTED, "unknown_model", *codes)
    return {**operation, "requestBody": {"required": True, "content": body}}


def _responses(codes: Iterable[str]) -> Schema:
    statuses = sorted({CODES[code][0] for code in codes})
    return {str(status): _problems([code for code in codes if CODES[code][0] == status]) for status in statuses}


def _problems(codes: Sequence[str]) -> Schema:
    response: Schema = {"description": f"{', '.join(dict.fromkeys(codes))}.", "content": _json("Problem")}
    if CODES[codes[0]][0] in (429, 503):
        wait = {"schema": {"type": "integer", "minimum": 1}, "description": "Seconds to wait."}
        response["headers"] = {"Retry-After": wait}
    return response


def _pictures(settings: ServeSettings, most: int, fields: tuple[str, ...] = ("top_k",)) -> Schema:
    """The forms that pictures come in."""
    texts: Schema = {"type": "string", "contentEncoding": "base64", "maxLength": settings.max_body}
    properties: Schema = {"pictures": {"type": "array", "items": texts, "minItems": 1, "maxItems": most}}
    if most > 1 and "top_k" in fields:
        properties["top_k"] = {"type": "integer", "minimum": 1, "maximum": 100_000}
    listed: Schema = {
        "type": "object",
        "properties": properties,
        "required": ["pictures"],
        "additionalProperties": False,
    }
    parts: Schema = {"type": "object", "additionalProperties": _BINARY, "minProperties": 1, "maxProperties": most}
    return {
        **{kind: {"schema": _BINARY} for kind in PICTURE_TYPES},
        "multipart/form-data": {"schema": parts},
        "application/json": {"schema": listed},
    }


def _json(schema: str) -> Schema:
    return {"application/json": {"schema": reference(schema)}}


def _argument(name: str, schema: Schema, description: str) -> Schema:
    return {"name": name, "in": "query", "schema": schema, "description": description}


def _in_path(name: str, schema: Schema, description: str) -> Schema:
    return {"name": name, "in": "path", "required": True, "schema": schema, "description": description}


def _named_model(models: Sequence[str]) -> Schema:
    return _in_path("model", {"type": "string", "enum": list(models)}, "The model's name.")
