"""Spans for OpenTelemetry, where it is installed and has been set up; otherwise nothing. Needs no torch.

`opentelemetry-instrument vitrail serve …` sets it up from the environment. A request is one span, below that of the
client if it names one, and the picture in it that took longest adds spans for its stages. They are made when the
request has ended, from times that were taken anyway. No span holds a picture, a query or a token.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from vitrail import __version__
from vitrail.serving.exchange import Exchange

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

Trace = Callable[[Exchange, Mapping[bytes, bytes]], None]


class Stage(NamedTuple):
    """A part of a request, in seconds of `time.perf_counter`."""

    name: str
    began: float
    ended: float


def open_tracing() -> Trace | None:
    """What records a request that has ended, given its headers; None where nobody would see it."""
    try:
        from opentelemetry import trace
    except ImportError:
        return None
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):  # installed, but not set up
        return None
    tracer = trace.get_tracer("vitrail.serving", __version__)
    return lambda exchange, headers: record(tracer, exchange, headers)


def record(tracer: "Tracer", exchange: Exchange, headers: Mapping[bytes, bytes]) -> None:
    """The spans of one request."""
    from opentelemetry import propagate, trace

    now, clock = time.time_ns(), time.perf_counter()

    def wall(moment: float) -> int:
        return now - int(1e9 * (clock - moment))

    carrier = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers.items()}
    span = tracer.start_span(
        f"{exchange.method} {exchange.route}",
        propagate.extract(carrier),
        trace.SpanKind.SERVER,
        start_time=wall(exchange.began),
        attributes={
            "http.request.method": exchange.method,
            "http.route": exchange.route,
            "http.response.status_code": exchange.status,
            "http.request.body.size": exchange.received,
            "client.address": exchange.client,
            "vitrail.request_id": exchange.id,
            "vitrail.pictures": exchange.pictures,
        },
    )
    if exchange.status >= 500:
        span.set_status(trace.StatusCode.ERROR)
    context = trace.set_span_in_context(span)
    for stage in stages_of(exchange):
        tracer.start_span(stage.name, context, start_time=wall(stage.began)).end(wall(stage.ended))
    span.end(now)


def stages_of(exchange: Exchange) -> Iterator[Stage]:
    """What became of the picture that took longest."""
    if exchange.computed is None:
        return
    item, answer = exchange.computed
    began = item.added
    for name, seconds in (("queue", answer.queue), ("decode", answer.decode), ("compute", answer.compute)):
        if seconds:
            yield Stage(name, began, began + seconds)
        began += seconds
