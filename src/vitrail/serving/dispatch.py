"""What the routes work with: their declarations, the arguments of a request, the models, and how long to wait."""

import asyncio
import math
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, cast
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import Response

from vitrail.errors import suggest
from vitrail.serving.batching import Answer, Item, Kind
from vitrail.serving.exchange import Buffer, ClientGoneError, Exchange, Problem, exchange_of, invalid
from vitrail.serving.frames import LARGE
from vitrail.serving.settings import ServeSettings
from vitrail.serving.supervisor import START_RETRY, Host, Say, restarting
from vitrail.serving.telemetry import Metrics
from vitrail.wording import counted

MOST_ARGUMENTS = 20
LONGEST_ARGUMENT = 200  # characters
MOST = 2**31 - 1  # of what has no limit of its own
BODY = "the body"  # its name in messages
_WHOLE = re.compile(r"-?[0-9]{1,9}")
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")
Schema = dict[str, Any]
ModelFacts = Mapping[str, Any]  # what a worker tells about its model
Query = tuple[dict[str, Any], bytes, int]  # what is asked about a picture, the picture, its pixels


class Service:
    """The models of one front process."""

    def __init__(self, models: Mapping[str, str], settings: ServeSettings, say: Say = lambda _: None) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.buffer = Buffer(settings.max_buffer)
        self.hosts = {name: Host(name, source, settings, self.metrics, say) for name, source in models.items()}
        self.pixels = 0  # of the large pictures that wait or are computed
        self.draining = False

    @property
    def ready(self) -> bool:
        return not self.draining and all(host.ready for host in self.hosts.values())

    async def start(self) -> None:
        """Load all models, one after the other: each measures what suits it."""
        for host in self.hosts.values():
            await host.start()

    async def stop(self) -> None:
        await asyncio.gather(*(host.stop() for host in self.hosts.values()))

    def find(self, name: str | None) -> Host:
        """The model of a request; the first one by default."""
        host = next(iter(self.hosts.values())) if name is None else self.hosts.get(name)
        if host is None:
            known = ", ".join(self.hosts)
            raise Problem("unknown_model", f"there is no model {str(name)[:64]!r}; this service has {known}.")
        if not host.facts:
            raise Problem("not_ready", f"the model {host.name} is being loaded.", retry_after=START_RETRY)
        return host

    async def ask(self, request: Request, host: Host, kind: Kind, queries: Sequence[Query]) -> list[Answer]:
        """The answers of one model, unless the client leaves or the time is up."""
        pixels = sum(each for _, _, each in queries if each > LARGE)
        if pixels and self.pixels + pixels > self.settings.max_queue_pixels:
            raise Problem(
                "queue_full",
                f"large pictures with {self.pixels:,} pixels are waiting already, and {pixels:,} more would exceed the "
                f"limit of {self.settings.max_queue_pixels:,}.",
                retry_after=host.batcher.retry_after(),
            )
        self.pixels += pixels
        try:
            answers = await self._ask_once(request, host, kind, queries)
            while len({answer.model.get("version") for answer in answers}) > 1:  # it was exchanged in between
                answers = await self._ask_once(request, host, kind, queries)
        finally:
            self.pixels -= pixels
        return answers

    async def _ask_once(self, request: Request, host: Host, kind: Kind, queries: Sequence[Query]) -> list[Answer]:
        if host.hopeless:
            raise restarting(host.name)
        loop, exchange = asyncio.get_running_loop(), exchange_of(request)
        waiting = [Item(facts, blob, loop.create_future(), pixels, exchange.client) for facts, blob, pixels in queries]
        host.batcher.submit(kind, waiting)
        futures = [item.future for item in waiting]
        answered = futures[0] if len(futures) == 1 else asyncio.gather(*futures)  # which takes a while for only one
        left = asyncio.ensure_future(_until_left(request))
        try:
            await asyncio.wait((answered, left), timeout=self.settings.timeout, return_when=asyncio.FIRST_COMPLETED)
            if answered.done():
                answered.result()  # raises what one of them raised
                answers = [future.result() for future in futures]
                exchange.computed = max(zip(waiting, answers, strict=True), key=lambda pair: pair[1].seconds)
                return answers
            if left.done():
                raise ClientGoneError
            raise Problem("timeout", f"there was no answer within {self.settings.timeout:g} seconds.")
        finally:
            left.cancel()
            answered.cancel()
            host.batcher.withdraw(kind, waiting)


async def _until_left(request: Request) -> None:
    """Until the client has closed the connection; its body has been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def model_of(host: Host, answers: Sequence[Answer]) -> ModelFacts:
    """The facts of the model that has answered; the host may have another one by now."""
    return next((answer.model for answer in answers if answer.model), host.facts)


@dataclass(frozen=True)
class Call:
    """A request that has reached its route: its arguments are read, its body is not."""

    service: Service
    request: Request
    endpoint: "Endpoint"
    arguments: dict[str, Any]

    @property
    def settings(self) -> ServeSettings:
        return self.service.settings

    @property
    def exchange(self) -> Exchange:
        return exchange_of(self.request)

    @property
    def host(self) -> Host:
        """The model that the request is about."""
        return self.service.find(self.arguments.get("model"))


Handler = Callable[[Call], Awaitable[Response]]


@dataclass(frozen=True)
class Endpoint:
    """One route, declared once: by it, arguments are read and /openapi.json is written. It decorates its handler."""

    method: Literal["GET", "POST"]
    path: str
    summary: str = ""  # none: it belongs to the page, and is not described
    parameters: Sequence[Schema] = ()
    answer: str | Schema = ""  # the name of its schema, or its content by media type
    codes: Sequence[str] = ()  # of errors, beside the usual ones
    headers: Schema | None = None  # of the answer
    body: Callable[[ServeSettings], Schema] | None = None  # the content of the request
    is_open: bool = False  # it requires no token, and has no rate limit
    handle: Handler | None = None

    def __call__(self, handle: Handler) -> "Endpoint":
        return replace(self, handle=handle)

    async def respond(self, service: Service, request: Request) -> Response:
        """Read the arguments, and let the handler answer."""
        assert self.handle is not None
        arguments = request.path_params if self.is_open else read_arguments(request, self.known, self.defaults)
        return await self.handle(Call(service, request, self, arguments))

    @cached_property
    def known(self) -> dict[str, Schema]:
        """Argument in the address → its schema."""
        return {each["name"]: each["schema"] for each in self.parameters if each["in"] == "query"}

    @cached_property
    def defaults(self) -> dict[str, Any]:
        return {name: schema["default"] for name, schema in self.known.items() if "default" in schema}


def parameter(name: str, schema: Schema, description: str, place: str = "query") -> Schema:
    """The declaration of what a route takes beside a body, as OpenAPI has it."""
    required = {"required": True} if place == "path" else {}
    return {"name": name, "in": place, **required, "schema": schema, "description": description}


def read_arguments(request: Request, known: Mapping[str, Schema], defaults: dict[str, Any]) -> dict[str, Any]:
    """Name → value, of the path and of the query: known names only, each once, each as its declaration says."""
    if not request.scope["query_string"]:
        return {**defaults, **request.path_params}
    try:
        text = request.scope["query_string"].decode("ascii")
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=MOST_ARGUMENTS, errors="strict")
    except ValueError:
        raise invalid("the arguments in the address cannot be read.") from None
    values: dict[str, Any] = {}
    for name, value in pairs:
        if name not in known:
            hint = suggest(name[:50], tuple(known)) if known else "this address takes none."
            raise invalid(f"unknown argument {name[:50]!r}; {hint}")
        if name in values:
            raise invalid(f"{name} is given twice.")
        if len(value) > LONGEST_ARGUMENT:
            raise invalid(f"{name} must have at most {LONGEST_ARGUMENT} characters.")
        schema = known[name]
        if value or schema["type"] != "integer" or "default" in schema:  # `layer=` is as good as none
            values[name] = read_value(name, schema, value)
    return {**defaults, **values, **request.path_params}


def read_value(name: str, schema: Schema, value: Any) -> Any:
    """A text of the address, or a value of JSON with all that is in it, as its schema says."""
    kind, read, got = schema.get("type"), value, repr(value)[:50]
    if "enum" in schema:
        expected, is_valid = f"one of {', '.join(schema['enum'])}", value in schema["enum"]
    elif kind == "integer":
        least, most = schema["minimum"], schema.get("maximum", MOST)
        read = int(value) if isinstance(value, str) and _WHOLE.fullmatch(value) else value
        expected, is_valid = f"a whole number from {least:,} to {most:,}", type(read) is int and least <= read <= most
    elif kind == "number":
        least, most = schema["exclusiveMinimum"], schema["exclusiveMaximum"]
        read = float(value) if _DECIMAL.fullmatch(value) else math.nan
        expected, is_valid = f"between {least} and {most}", least < read < most
    elif kind == "string":
        most = schema.get("maxLength", MOST)
        expected, is_valid = f"a text of up to {most:,} characters", isinstance(value, str) and len(value) <= most
    elif kind == "array":
        least, most = schema.get("minItems", 0), schema.get("maxItems", MOST)
        length = len(cast("list[Any]", value)) if isinstance(value, list) else -1
        got = got if length < 0 else counted(length, "value")
        expected = f"a list of {f'{least:,} to ' if least < most else ''}{counted(most, 'value')}"
        is_valid = least <= length <= most
    else:
        expected, is_valid = "an object", isinstance(value, dict)
    if not is_valid:
        raise invalid(f"{name} must be {expected}; got {got}.")
    if kind == "array" and "items" in schema:
        return [read_value(f"{name}[{index}]", schema["items"], each) for index, each in enumerate(value)]
    return _read_fields(name, schema, cast("dict[str, Any]", value)) if "properties" in schema else read


def _read_fields(name: str, schema: Schema, value: dict[str, Any]) -> dict[str, Any]:
    """The fields of an object: known ones only, and all that are required."""
    properties, required = schema["properties"], schema["required"]
    if unknown := sorted(value.keys() - properties.keys()):
        known = ", ".join(properties)
        raise invalid(f"unknown field {unknown[0][:50]!r} in {name}; known: {known}.")
    if missing := [field for field in required if field not in value]:
        raise invalid(f"{name} must have {' and '.join(missing)}.")
    where = "" if name == BODY else f"{name}."
    given = {field: each for field, each in value.items() if each is not None or field in required}
    return {field: read_value(f"{where}{field}", properties[field], each) for field, each in given.items()}
