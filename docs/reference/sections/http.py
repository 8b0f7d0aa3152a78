"""The HTTP API, from the description that the service itself serves at /openapi.json."""

from collections.abc import Iterator
from functools import cache
from typing import Any

from docs.reference.sections.markdown import code, joined, link, listed, sentence, table, wrapped

from vitrail.serving.app import describe_service
from vitrail.serving.settings import ServeSettings

Schema = dict[str, Any]
_NUMBERS = {"integer": "whole number", "number": "number"}


@cache
def description() -> Schema:
    """With the default limits; the names of the models are the service's own."""
    return describe_service(ServeSettings(), ["NAME"])


def routes() -> str:
    """What every route can answer, then each route."""
    operations = [
        (f"{method.upper()} {path}", operation)
        for path, methods in description()["paths"].items()
        for method, operation in methods.items()
    ]
    common = set.intersection(*(set(_codes(operation)) for _, operation in operations))
    everywhere = [_with_status(code_, status) for code_, status in _codes(operations[0][1]).items() if code_ in common]
    first = wrapped(f"Any request may also be refused with {listed(everywhere)}.")
    return joined([first], *(_route(name, operation, common) for name, operation in operations))


def _route(name: str, operation: Schema, common: set[str]) -> Iterator[str]:
    yield f"### {name}"
    yield sentence(operation["summary"])
    if operation["parameters"]:
        yield table(("parameter", "in", "type", ""), map(_parameter, operation["parameters"]))
    if "requestBody" in operation:
        yield _contents("Body", operation["requestBody"]["content"])
    yield _contents("Answer", operation["responses"]["200"].get("content", {}))
    if codes := [_with_status(code_, status) for code_, status in _codes(operation).items() if code_ not in common]:
        yield wrapped(f"Errors: {', '.join(codes)}.")


def _codes(operation: Schema) -> dict[str, str]:
    """Code → status of everything but success, in the order of the statuses."""
    return {
        code_: status
        for status, response in operation["responses"].items()
        if status != "200"
        for code_ in response["description"].removesuffix(".").split(", ")
    }


def _with_status(code_: str, status: str) -> str:
    return f"{status} {code(code_)}"


def _parameter(parameter: Schema) -> tuple[str, str, str, str]:
    named = parameter["schema"].get("enum") == ["NAME"]
    kind = "the name of a model" if named else _words(parameter["schema"])
    return code(parameter["name"]), parameter["in"], kind, parameter["description"]


def _contents(heading: str, content: Schema) -> str:
    """A line for each form of a body, with the media types that share it."""
    forms: dict[str, list[str]] = {}
    for media, form in content.items():
        forms.setdefault(_form(form["schema"]), []).append(code(media))
    return "\n".join([f"{heading}:", "", *(f"- {', '.join(media)}: {words}" for words, media in forms.items())])


def _form(schema: Schema) -> str:
    if "properties" not in schema:
        return _words(schema)
    fields = [f"{code(name)}: {_words(inner)}" for name, inner in schema["properties"].items()]
    return f"an object with {listed(fields, 'and')}"


def shapes() -> str:
    """A table for each schema."""
    return joined(*(_shape(name, schema) for name, schema in description()["components"]["schemas"].items()))


def _shape(name: str, schema: Schema) -> Iterator[str]:
    yield f"### {name}"
    yield table(("field", "type", ""), _fields(schema))
    if schema.get("additionalProperties") is False:
        yield "No other fields are accepted."


def _fields(schema: Schema, prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """The fields of an object, and below them those of an object without a name of its own."""
    for name, inner in schema["properties"].items():
        optional = "" if name in schema["required"] else "; optional"
        yield code(prefix + name), _words(inner) + optional, inner.get("description", "")
        items = inner.get("items", {})
        if "properties" in items:
            yield from _fields(items, f"{prefix}{name}[].")


def _words(schema: Schema) -> str:
    """What a JSON schema allows."""
    return listed(_choices(schema))


def _choices(schema: Schema) -> list[str]:
    if "$ref" in schema:
        return [link(schema["$ref"].rsplit("/", 1)[1])]
    if "anyOf" in schema:
        return [words for choice in schema["anyOf"] for words in _choices(choice)]
    if "const" in schema:
        return [str(schema["const"]).lower()]
    if "enum" in schema:
        return [*map(code, schema["enum"][:-1]), code(schema["enum"][-1]) + _default(schema)]
    if schema["type"] == "boolean":
        return ["true", "false"]
    return [_one(schema, "") + _default(schema)]


def _one(schema: Schema, plural: str) -> str:
    """The words for a schema of a single type; `plural` is what the noun ends in."""
    kind = schema["type"]
    if kind == "array":
        return _list(schema, plural)
    if kind == "string":
        return _text(schema, plural)
    if kind == "object":
        return f"a form with {_files(schema)}" if "maxProperties" in schema else f"object{plural}"
    return "null" if kind == "null" else f"{_NUMBERS[kind]}{plural}{_range(schema)}"


def _list(schema: Schema, plural: str) -> str:
    least, most = schema.get("minItems", 0), schema.get("maxItems")
    items = schema.get("items")
    if items is None:
        inner = "values"
    else:
        inner = _words(items) if "$ref" in items or "enum" in items else _one(items, "" if most == 1 else "s")
    if most is None:
        return f"list{plural} of {inner}"
    if least == most:
        return f"list of one {inner}" if most == 1 else f"{most} {inner}"
    return f"list of {least} to {most} {inner}"


def _text(schema: Schema, plural: str) -> str:
    if schema.get("format") == "binary":
        return "bytes"
    kind = f"text{plural} in base64" if schema.get("contentEncoding") == "base64" else f"text{plural}"
    return f"{kind} of up to {schema['maxLength']:,} characters" if "maxLength" in schema else kind


def _files(schema: Schema) -> str:
    least, most = schema["minProperties"], schema["maxProperties"]
    return "one file" if most == 1 else f"{least} to {most} files"


def _range(schema: Schema) -> str:
    least, most = schema.get("minimum"), schema.get("maximum")
    if "exclusiveMinimum" in schema:
        return f" between {schema['exclusiveMinimum']} and {schema['exclusiveMaximum']}"
    if most is not None:
        return f" from {least:,} to {most:,.0f}"
    return f", at least {least}" if least else ""


def _default(schema: Schema) -> str:
    return f" (default {code(str(schema['default']))})" if "default" in schema else ""
