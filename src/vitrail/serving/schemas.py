"""The shapes of what the service sends and takes, as JSON schemas."""

from typing import Any

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


_PAIR = _list(_COUNT, 2)
_LABEL = reference("Label")
_HEADING: Schema = {"model": reference("Answering"), "request_id": _TEXT}
_TIMES = {"milliseconds": reference("Milliseconds")}
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
        version=_TEXT,
        sha256=_TEXT,
        classes=_COUNT,
        image_size=_PAIR,
        grid=_or_null(_PAIR),
        depth=_or_null(_COUNT),
        heads=_or_null(_COUNT),
        runtime=_TEXT,
        precision=_TEXT,
        explains={"type": "boolean"},
        methods=_list(_TEXT),
        temperature=_or_null(_NUMBER),
    ),
    "Labels": _object(model=_TEXT, version=_TEXT, sha256=_TEXT, labels=_list(_TEXT)),
    "Answering": _object(name=_TEXT, version=_TEXT, sha256=_TEXT, runtime=_TEXT),
    "Milliseconds": _object(queue=_NUMBER, decode=_NUMBER, compute=_NUMBER, total=_NUMBER),
    "Label": _object(label=_TEXT, index=_COUNT, score={"type": "number", "minimum": 0, "maximum": 1.000001}),
    "Prediction": _object(
        picture=_TEXT,
        labels=_list(_LABEL),
        label_set=_or_null(_list(_TEXT)),
        familiarity=_or_null({"type": "number", "minimum": 0, "maximum": 1}),
        familiar=_or_null({"type": "boolean"}),
        error=_or_null(reference("Error")),
    ),
    "Predictions": _object(**_HEADING, predictions=_list(reference("Prediction")), **_TIMES),
    "Embedding": _object(picture=_TEXT, vector=_or_null(_list(_NUMBER)), error=_or_null(reference("Error"))),
    "Embeddings": _object(**_HEADING, embeddings=_list(reference("Embedding")), **_TIMES),
    "Explained": _object(
        **_HEADING,
        method=_TEXT,
        target=_or_null(_LABEL),
        labels=_list(_LABEL),
        grid=_PAIR,
        box=_list(_NUMBER, 4),
        picture_size=_PAIR,
        map=_list(_list({"type": "number", "minimum": 0, "maximum": 1})),
        **_TIMES,
    ),
    "Attention": _object(
        **_HEADING,
        grid=_PAIR,
        box=_list(_NUMBER, 4),
        layers=_COUNT,
        heads=_COUNT,
        layer=_COUNT,
        head=_or_null(_COUNT),
        data={"type": "string", "contentEncoding": "base64"},
        cls=_or_null({"type": "string", "contentEncoding": "base64"}),
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
