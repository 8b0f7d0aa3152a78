"""The description of the service that it serves itself, at /openapi.json."""

from collections.abc import Sequence

from vitrail import __version__
from vitrail.serving.dispatch import Endpoint, Schema
from vitrail.serving.exchange import CODES
from vitrail.serving.settings import ServeSettings

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


def _object(*optional: str, **properties: Schema) -> Schema:
    """An object with these fields, of which some are optional."""
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required}


def _closed(schema: Schema) -> Schema:
    return {**schema, "additionalProperties": False}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _about(schema: Schema, description: str) -> Schema:
    return {**schema, "description": description}


_PAIR = _list(_COUNT, 2)
_LABEL = reference("Label")
_HEADING: Schema = {
    "model": reference("Answering"),
    "request_id": _about(_TEXT, "Also the header x-request-id, and in the log."),
}
_TIMES = {"milliseconds": reference("Milliseconds")}
_GEOMETRY: Schema = {
    "grid": _about(_PAIR, "Rows and columns of patches."),
    "box": _about(_list(_NUMBER, 4), "Left, top, right and bottom of the grid, in pixels of the upright picture."),
    "picture_size": _about(_PAIR, "Width and height of the upright picture."),
}
_BASE64: Schema = {"type": "string", "contentEncoding": "base64"}
_PROBABILITY: Schema = {"type": "number", "minimum": 0, "maximum": 1}
_FAILED = _about(_or_null(reference("Error")), "Why this picture has no answer.")
_NAME_OF_PICTURE = _about(_TEXT, "Its file name in a form, or its number.")
_TENSOR: Schema = {
    "name": _TEXT,
    "datatype": {"enum": ["FP32", "BYTES"]},
    "shape": {"type": "array", "items": {"type": "integer", "minimum": -1}, "minItems": 1, "maxItems": 8},
}
_PARAMETERS: Schema = {"type": "object"}
_VALUES: Schema = {"type": "array"}

_INPUT = _object(
    *("parameters", "data"),
    name={"enum": ["picture", "images"]},
    datatype={"enum": ["BYTES", "FP32"]},
    shape={"type": "array", "items": _POSITIVE, "minItems": 1, "maxItems": 4},
    parameters=_PARAMETERS,
    data=_VALUES,
)
_OUTPUT = _object("parameters", name={"enum": ["logits", "probabilities", "values", "label"]}, parameters=_PARAMETERS)

SCHEMAS: Schema = {
    "Problem": _object(error=reference("Error")),
    "Error": _object(code=_TEXT, message=_TEXT, hint=_TEXT),
    "InferenceProblem": _object(error=_TEXT, code=_TEXT, hint=_TEXT),
    "Models": _object(models=_list(reference("Described"))),
    "Described": _object(
        name=_TEXT,
        version=_about(_TEXT, "The beginning of its sha256."),
        sha256=_about(_TEXT, "Of the model's file."),
        task=_about(_TEXT, "What it answers: one (class), several (labels) or number (values), or a task of your own."),
        classes=_about(_COUNT, "How many classes, labels or values it has; 0: it gives embeddings only."),
        image_size=_about(_PAIR, "Height and width of its input."),
        grid=_about(_or_null(_PAIR), "Rows and columns of patches."),
        depth=_or_null(_COUNT),
        heads=_or_null(_COUNT),
        runtime=_about(_TEXT, "The backend that computes."),
        precision=_TEXT,
        explains=_about({"type": "boolean"}, "Whether /v1/explain and /v1/attention take it."),
        methods=_about(_list(_TEXT), "The methods of /v1/explain that it has."),
        temperature=_about(_or_null(_NUMBER), "Of the calibration of a model of one class per picture."),
        highest_coverage=_about(_or_null(_NUMBER), "The largest `coverage` that its calibration promises."),
    ),
    "Labels": _object(
        model=_TEXT,
        version=_TEXT,
        sha256=_TEXT,
        task=_TEXT,
        labels=_about(_list(_TEXT), "Of the classes, labels or values, in the order of the model's outputs."),
        thresholds=_about(
            _or_null(_list(_PROBABILITY)), "Of several labels: the probabilities from which each applies."
        ),
    ),
    "Answering": _object(name=_TEXT, version=_TEXT, sha256=_TEXT, runtime=_TEXT),
    "Milliseconds": _object(
        queue=_about(_NUMBER, "Of the picture that waited longest."),
        decode=_about(_NUMBER, "Of the slowest picture."),
        compute=_about(_NUMBER, "Of the slowest picture."),
        total=_about(_NUMBER, "Of the whole request."),
    ),
    "Label": _object(
        label=_TEXT,
        index=_about(_COUNT, "The number of the class."),
        score=_about({"type": "number", "minimum": 0, "maximum": 1.000001}, "Its probability."),
    ),
    "Target": _object(
        label=_TEXT,
        index=_about(_COUNT, "The number of the class, label or value."),
        score=_about(_NUMBER, "Its probability, or the value itself."),
    ),
    "Prediction": _object(
        picture=_NAME_OF_PICTURE,
        labels=_about(_list(_LABEL), "The most likely first: the likeliest classes, or all labels that apply."),
        label_set=_about(_or_null(_list(_TEXT)), "With `coverage`: labels that contain the right one this often."),
        values=_about(_list(_NUMBER), "Of a model that measures, in the order of /v1/labels; empty for others."),
        intervals=_about(
            _or_null(_list(_list(_NUMBER, 2))), "With `coverage`: what holds the true value this often, for each value."
        ),
        familiarity=_about(_or_null(_PROBABILITY), "The share of validation pictures that are less familiar."),
        familiar=_about(_or_null({"type": "boolean"}), "Whether it is like the pictures seen in training."),
        error=_FAILED,
    ),
    "Predictions": _object(**_HEADING, predictions=_list(reference("Prediction")), **_TIMES),
    "Embedding": _object(picture=_NAME_OF_PICTURE, vector=_or_null(_list(_NUMBER)), error=_FAILED),
    "Embeddings": _object(**_HEADING, embeddings=_list(reference("Embedding")), **_TIMES),
    "Explained": _object(
        **_HEADING,
        method=_about(_TEXT, "The one that was used."),
        target=_about(_or_null(reference("Target")), "What is explained, if the model has classes, labels or values."),
        labels=_about(_list(_LABEL), "The most likely classes, or the labels that apply."),
        values=_about(_list(_NUMBER), "Of a model that measures."),
        **_GEOMETRY,
        map=_about(_list(_list(_PROBABILITY)), "How much each patch counts, row by row; the largest is 1."),
        **_TIMES,
    ),
    "Attention": _object(
        **_HEADING,
        **_GEOMETRY,
        layers=_about(_COUNT, "Of the model."),
        heads=_about(_COUNT, "Of each layer."),
        layer=_about(_COUNT, "The one that is shown."),
        head=_about(_or_null(_COUNT), "The one that is shown; null: the mean of all."),
        data=_about(_BASE64, "A byte for each two patches, row by row; each row is scaled to its own largest value."),
        cls=_about(_or_null(_BASE64), "What [cls] attends to: a byte for each patch."),
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
        _object(
            *("id", "parameters", "outputs"),
            id={"type": "string", "maxLength": 200},
            parameters=_PARAMETERS,
            inputs={"type": "array", "minItems": 1, "maxItems": 1, "items": _closed(_INPUT)},
            outputs={"type": "array", "maxItems": 3, "items": _closed(_OUTPUT)},
        )
    ),
    "Inferred": _object(
        "id",
        id=_TEXT,
        model_name=_TEXT,
        model_version=_TEXT,
        parameters=_object(sha256=_TEXT),
        outputs=_list(_object("data", "parameters", **_TENSOR, data=_VALUES, parameters=_PARAMETERS)),
    ),
}

PICTURE_TYPES = ("image/jpeg", "image/png", "image/webp", "application/octet-stream")
BINARY: Schema = {"type": "string", "format": "binary"}
_EVERYWHERE = ("invalid_request", "forbidden", "request_timeout", "headers_too_large", "internal_error")
_GUARDED = ("unauthorized", "rate_limited", "invalid_argument")  # where a token may be required, and requests limited
_BODY = ("unreadable_body", "unreadable_picture", "too_large", "unsupported_format")
_COMPUTED = ("model_failed", "queue_full", "not_ready", "timeout", "too_many_connections")


def describe_api(settings: ServeSettings, models: Sequence[str], endpoints: Sequence[Endpoint]) -> Schema:
    """The whole description, for these models and limits."""
    paths: dict[str, Schema] = {}
    for endpoint in endpoints:
        if endpoint.summary:
            paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint, settings, models)
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
        "paths": paths,
        "components": {"schemas": SCHEMAS},
    }
    if settings.token:
        description["components"] = {
            "schemas": SCHEMAS,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        }
        description["security"] = [{"token": []}]
    return description


def json_of(schema: str) -> Schema:
    """The content of an answer or a request in JSON."""
    return {"application/json": {"schema": reference(schema)}}


def pictures_of(settings: ServeSettings, most: int | None = None, fields: Sequence[Schema] = ()) -> Schema:
    """The content of a request with pictures, in the forms that they come in; `fields` are what JSON may hold too."""
    most = settings.max_pictures if most is None else most
    text: Schema = {"type": "string", "contentEncoding": "base64", "maxLength": settings.max_body}
    listed: Schema = {"pictures": {"type": "array", "items": text, "minItems": 1, "maxItems": most}}
    for field in fields:
        listed[field["name"]] = {name: value for name, value in field["schema"].items() if name != "default"}
    parts: Schema = {"type": "object", "additionalProperties": BINARY, "minProperties": 1, "maxProperties": most}
    return {
        **{kind: {"schema": BINARY} for kind in PICTURE_TYPES},
        "multipart/form-data": {"schema": parts},
        "application/json": {"schema": _closed(_object(*tuple(listed)[1:], **listed))},
    }


def _operation(endpoint: Endpoint, settings: ServeSettings, models: Sequence[str]) -> Schema:
    success: Schema = {"description": "Done."}
    if endpoint.answer:
        success["content"] = json_of(endpoint.answer) if isinstance(endpoint.answer, str) else endpoint.answer
    if endpoint.headers:
        success["headers"] = endpoint.headers
    codes = [*_EVERYWHERE, *(() if endpoint.is_open else _GUARDED)]
    codes += (*_BODY, *_COMPUTED, "unknown_model", *endpoint.codes) if endpoint.body else endpoint.codes
    form = "InferenceProblem" if endpoint.path.startswith("/v2") else "Problem"
    operation: Schema = {
        "summary": endpoint.summary,
        "parameters": [_with_models(each, models) for each in endpoint.parameters],
        "responses": {
            "200": success,
            **{
                str(status): _failure([code for code in codes if CODES[code][0] == status], form)
                for status in sorted({CODES[code][0] for code in codes})
            },
        },
    }
    if endpoint.body:
        operation["requestBody"] = {"required": True, "content": endpoint.body(settings)}
    if endpoint.is_open and settings.token:
        operation["security"] = []
    return operation


def _with_models(parameter: Schema, models: Sequence[str]) -> Schema:
    if parameter["name"] != "model":
        return parameter
    return {**parameter, "schema": {"type": "string", "enum": list(models)}}


def _failure(codes: Sequence[str], form: str) -> Schema:
    response: Schema = {"description": f"{', '.join(dict.fromkeys(codes))}.", "content": json_of(form)}
    if CODES[codes[0]][0] in (429, 503):
        wait = {"schema": {"type": "integer", "minimum": 1}, "description": "Seconds to wait."}
        response["headers"] = {"Retry-After": wait}
    return response
