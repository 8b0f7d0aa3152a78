"""The description of the service that it serves itself, at /openapi.json."""

from collections.abc import Iterable, Sequence
from typing import Any

from vitrail import __version__
from vitrail.serving.problems import CODES
from vitrail.serving.settings import ServeSettings

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_POSITIVE: Schema = {"type": "integer", "minimum": 1}
_NUMBER: Schema = {"type": "number"}
_TRUE: Schema = {"const": True}


def reference(name: str) -> Schema:
    """A schema by its name."""
    return {"$ref": f"#/components/schemas/{name}"}


def _list(items: Schema, count: int | None = None) -> Schema:
    return {"type": "array", "items": items} | ({} if count is None else {"minItems": count, "maxItems": count})


def _object(**properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _partly(optional: tuple[str, ...], properties: Schema) -> Schema:
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required}


def _closed(schema: Schema) -> Schema:
    return {**schema, "additionalProperties": False}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _told(schema: Schema, description: str) -> Schema:
    return {**schema, "description": description}


_PAIR = _list(_COUNT, 2)
_LABEL = reference("Label")
_HEADING: Schema = {
    "model": reference("Answering"),
    "request_id": _told(_TEXT, "Also the header x-request-id, and in the log."),
}
_TIMES = {"milliseconds": reference("Milliseconds")}
_GEOMETRY: Schema = {
    "grid": _told(_PAIR, "Rows and columns of patches."),
    "box": _told(_list(_NUMBER, 4), "Left, top, right and bottom of the grid, in pixels of the upright picture."),
    "picture_size": _told(_PAIR, "Width and height of the upright picture."),
}
_BASE64: Schema = {"type": "string", "contentEncoding": "base64"}
_PROBABILITY: Schema = {"type": "number", "minimum": 0, "maximum": 1}
_FAILED = _told(_or_null(reference("Error")), "Why this picture has no answer.")
_NAME_OF_PICTURE = _told(_TEXT, "Its file name in a form, or its number.")
_TENSOR: Schema = {
    "name": _TEXT,
    "datatype": {"enum": ["FP32", "BYTES"]},
    "shape": {"type": "array", "items": {"type": "integer", "minimum": -1}, "minItems": 1, "maxItems": 8},
}
_PARAMETERS: Schema = {"type": "object"}
_VALUES: Schema = {"type": "array"}

_INPUT = _closed(
    _partly(
        ("parameters", "data"),
        {
            "name": {"enum": ["picture", "images"]},
            "datatype": {"enum": ["BYTES", "FP32"]},
            "shape": {"type": "array", "items": _POSITIVE, "minItems": 1, "maxItems": 4},
            "parameters": _PARAMETERS,
            "data": _VALUES,
        },
    )
)
_OUTPUT = _closed(
    _partly(("parameters",), {"name": {"enum": ["logits", "probabilities", "label"]}, "parameters": _PARAMETERS})
)

SCHEMAS: Schema = {
    "Problem": _object(error=reference("Error")),
    "Error": _object(code=_TEXT, message=_TEXT, hint=_TEXT),
    "InferenceProblem": _object(error=_TEXT, code=_TEXT, hint=_TEXT),
    "Models": _object(models=_list(reference("Described"))),
    "Described": _object(
        name=_TEXT,
        version=_told(_TEXT, "The beginning of its sha256."),
        sha256=_told(_TEXT, "Of the model's file."),
        classes=_told(_COUNT, "0: it gives embeddings only."),
        image_size=_told(_PAIR, "Height and width of its input."),
        grid=_told(_or_null(_PAIR), "Rows and columns of patches."),
        depth=_or_null(_COUNT),
        heads=_or_null(_COUNT),
        runtime=_told(_TEXT, "What computes."),
        precision=_TEXT,
        explains=_told({"type": "boolean"}, "Whether /v1/explain and /v1/attention take it."),
        methods=_told(_list(_TEXT), "The methods of /v1/explain that it has."),
        temperature=_told(_or_null(_NUMBER), "Of its calibration, if it has one."),
    ),
    "Labels": _object(
        model=_TEXT, version=_TEXT, sha256=_TEXT, labels=_told(_list(_TEXT), "In the order of the logits.")
    ),
    "Answering": _object(name=_TEXT, version=_TEXT, sha256=_TEXT, runtime=_TEXT),
    "Milliseconds": _object(
        queue=_told(_NUMBER, "Of the picture that waited longest."),
        decode=_told(_NUMBER, "Of the slowest picture."),
        compute=_told(_NUMBER, "Of the slowest picture."),
        total=_told(_NUMBER, "Of the whole request."),
    ),
    "Label": _object(
        label=_TEXT,
        index=_told(_COUNT, "The number of the class."),
        score=_told({"type": "number", "minimum": 0, "maximum": 1.000001}, "Its probability."),
    ),
    "Prediction": _object(
        picture=_NAME_OF_PICTURE,
        labels=_told(_list(_LABEL), "The most likely first."),
        label_set=_told(_or_null(_list(_TEXT)), "With `coverage`: labels that hold the truth this often."),
        familiarity=_told(_or_null(_PROBABILITY), "The share of validation pictures that are less familiar."),
        familiar=_told(_or_null({"type": "boolean"}), "Whether it is like the pictures seen in training."),
        error=_FAILED,
    ),
    "Predictions": _object(**_HEADING, predictions=_list(reference("Prediction")), **_TIMES),
    "Embedding": _object(picture=_NAME_OF_PICTURE, vector=_or_null(_list(_NUMBER)), error=_FAILED),
    "Embeddings": _object(**_HEADING, embeddings=_list(reference("Embedding")), **_TIMES),
    "Explained": _object(
        **_HEADING,
        method=_told(_TEXT, "The one that was used."),
        target=_told(_or_null(_LABEL), "The class that is explained, if the method depends on one."),
        labels=_told(_list(_LABEL), "The most likely classes."),
        **_GEOMETRY,
        map=_told(_list(_list(_PROBABILITY)), "How much each patch counts, row by row; the largest is 1."),
        **_TIMES,
    ),
    "Attention": _object(
        **_HEADING,
        **_GEOMETRY,
        layers=_told(_COUNT, "Of the model."),
        heads=_told(_COUNT, "Of each layer."),
        layer=_told(_COUNT, "The one that is shown."),
        head=_told(_or_null(_COUNT), "The one that is shown; null: the mean of all."),
        data=_told(_BASE64, "A byte for each two patches, row by row; each row is scaled to its own largest value."),
        cls=_told(_or_null(_BASE64), "What [cls] attends to: a byte for each patch."),
        **_TIMES,
    ),
    "Server": _object(name=_TEXT, version=_TEXT, extensions=_list(_TEXT)),
    "Live": _object(live=_TRUE),
    "Ready": _object(ready=_TRUE),
    "ModelReady": _object(name=_TEXT, ready=_TRUE),
    "Model": _object(
        name=_TEXT,
        versions=_list(_TEXT),
        platform=_TEXT,
        inputs=_list(_object(**_TENSOR)),
        outputs=_list(_object(**_TENSOR)),
    ),
    "Inference": _closed(
        _partly(
            ("id", "parameters", "outputs"),
            {
                "id": {"type": "string", "maxLength": 200},
                "parameters": _PARAMETERS,
                "inputs": {"type": "array", "minItems": 1, "maxItems": 1, "items": _INPUT},
                "outputs": {"type": "array", "maxItems": 3, "items": _OUTPUT},
            },
        )
    ),
    "Inferred": _partly(
        ("id",),
        {
            "id": _TEXT,
            "model_name": _TEXT,
            "model_version": _TEXT,
            "parameters": _object(sha256=_TEXT),
            "outputs": _list(_partly(("data", "parameters"), {**_TENSOR, "data": _VALUES, "parameters": _PARAMETERS})),
        },
    ),
}

Described = dict[str, Any]
METHODS = ("auto", "attention", "rollout", "gradient-rollout", "relevance", "occlusion")
PICTURE_TYPES = ("image/jpeg", "image/png", "image/webp", "application/octet-stream")
_EVERYWHERE = ("invalid_request", "forbidden", "request_timeout", "headers_too_large", "internal_error")
_GUARDED = ("unauthorized", "rate_limited", "invalid_argument")  # where a token and a pace may be asked for
_BODY = ("unreadable_body", "unreadable_picture", "too_large", "unsupported_format")
_COMPUTED = ("model_failed", "queue_full", "not_ready", "timeout", "too_many_connections")
_BINARY: Described = {"type": "string", "format": "binary"}


def describe_api(settings: ServeSettings, models: Sequence[str]) -> Described:
    """The whole description, for these models and limits."""
    named = _named_model(models)
    description: Described = {
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


def _simple(settings: ServeSettings, models: Sequence[str]) -> Described:
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


def _open_inference(model: Described) -> Described:
    version = _in_path("version", {"type": "string", "maxLength": 64}, "As /v2/models/{model} lists it.")
    paths: Described = {
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


def _with_texts(paths: Described) -> Described:
    """With errors in the form of the Open Inference Protocol, as texts."""
    for operations in paths.values():
        for operation in operations.values():
            for status, response in operation["responses"].items():
                if not status.startswith("2"):
                    response["content"] = _json("InferenceProblem")
    return paths


def _infer(parameters: Sequence[Described]) -> Described:
    length = {
        "name": "Inference-Header-Content-Length",
        "in": "header",
        "schema": {"type": "string", "pattern": "^[0-9]{1,9}$"},
        "description": "The length of the JSON part, if raw tensors follow it.",
    }
    operation = _post("Infer, by the Open Inference Protocol", (*parameters, length), _json("Inference"), "Inferred")
    operation["responses"]["200"]["content"]["application/octet-stream"] = {"schema": _BINARY}
    return operation


def _about() -> Described:
    text: Described = {"text/plain; version=0.0.4; charset=utf-8": {"schema": {"type": "string"}}}
    metrics, openapi = _get("Metrics for Prometheus", ()), _get("This description", ())
    metrics["responses"]["200"]["content"] = text
    openapi["responses"]["200"]["content"] = {"application/json": {"schema": {"type": "object"}}}
    return {"/metrics": {"get": metrics}, "/openapi.json": {"get": openapi}}


def _get(
    summary: str, parameters: Sequence[Described], schema: str = "", *codes: str, guarded: bool = True
) -> Described:
    known = (*_EVERYWHERE, *(_GUARDED if guarded else ()), *codes)
    success: Described = {"description": "Done."}
    if schema:
        success["content"] = _json(schema)
    return {"summary": summary, "parameters": list(parameters), "responses": {"200": success, **_responses(known)}}


def _post(summary: str, parameters: Sequence[Described], body: Described, schema: str = "", *codes: str) -> Described:
    operation = _get(summary, parameters, schema, *_BODY, *_COMPUTED, "unknown_model", *codes)
    return {**operation, "requestBody": {"required": True, "content": body}}


def _responses(codes: Iterable[str]) -> Described:
    statuses = sorted({CODES[code][0] for code in codes})
    return {str(status): _problems([code for code in codes if CODES[code][0] == status]) for status in statuses}


def _problems(codes: Sequence[str]) -> Described:
    response: Described = {"description": f"{', '.join(dict.fromkeys(codes))}.", "content": _json("Problem")}
    if CODES[codes[0]][0] in (429, 503):
        wait = {"schema": {"type": "integer", "minimum": 1}, "description": "Seconds to wait."}
        response["headers"] = {"Retry-After": wait}
    return response


def _pictures(settings: ServeSettings, most: int, fields: tuple[str, ...] = ("top_k",)) -> Described:
    """The forms that pictures come in."""
    texts: Described = {"type": "string", "contentEncoding": "base64", "maxLength": settings.max_body}
    properties: Described = {"pictures": {"type": "array", "items": texts, "minItems": 1, "maxItems": most}}
    if most > 1 and "top_k" in fields:
        properties["top_k"] = {"type": "integer", "minimum": 1, "maximum": 100_000}
    listed: Described = {
        "type": "object",
        "properties": properties,
        "required": ["pictures"],
        "additionalProperties": False,
    }
    parts: Described = {"type": "object", "additionalProperties": _BINARY, "minProperties": 1, "maxProperties": most}
    return {
        **{kind: {"schema": _BINARY} for kind in PICTURE_TYPES},
        "multipart/form-data": {"schema": parts},
        "application/json": {"schema": listed},
    }


def _json(schema: str) -> Described:
    return {"application/json": {"schema": reference(schema)}}


def _argument(name: str, schema: Described, description: str) -> Described:
    return {"name": name, "in": "query", "schema": schema, "description": description}


def _in_path(name: str, schema: Described, description: str) -> Described:
    return {"name": name, "in": "path", "required": True, "schema": schema, "description": description}


def _named_model(models: Sequence[str]) -> Described:
    return _in_path("model", {"type": "string", "enum": list(models)}, "The model's name.")
