"""What is told about requests: metrics for Prometheus, one line of JSON in the log, spans for OpenTelemetry."""

import json
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics import MetricWrapperBase

from vitrail import __version__
from vitrail.serving.exchange import Exchange

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer


T = TypeVar("T", bound=MetricWrapperBase)
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
PAUSE = 0.2  # seconds between two looks at what is to be written to the log
MOST_LINES = 10_000  # of the log that wait while it is not read; then the oldest are dropped
Trace = Callable[[Exchange, Mapping[bytes, bytes]], None]


class Metrics:
    """Of all models of one service, in a registry of its own, and counted where it happens: a scrape asks nobody."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry(auto_describe=True)

        def make(kind: type[T], name: str, text: str, *labels: str, **options: Any) -> T:
            return kind(f"vitrail_{name}", text, labels, registry=self._registry, **options)

        timer = partial(make, Histogram, buckets=_SECONDS)
        self._requests = make(Counter, "requests", "Requests that were answered.", "route", "method", "status")
        self._latency = timer("request_seconds", "Seconds per request.", "route")
        self._queue = timer("queue_seconds", "Seconds that a picture waits.", "model", "kind")
        self._decode = timer("decode_seconds", "Seconds to decode a batch.", "model", "kind")
        self._compute = timer("compute_seconds", "Seconds to compute a batch.", "model", "kind")
        self._size = make(Histogram, "batch_size", "Pictures per batch.", "model", "kind", buckets=_SIZES)
        self.ready = make(Gauge, "ready", "Whether the worker is ready (1).", "model")
        self.waiting = make(Gauge, "waiting", "Pictures that wait.", "model")
        self.restarts = make(Counter, "worker_restarts", "Workers that were started again.", "model")

    def request(self, exchange: Exchange) -> None:
        """One request that has ended."""
        self._requests.labels(exchange.route, exchange.method, str(exchange.status)).inc()
        self._latency.labels(exchange.route).observe(exchange.seconds)

    def batch(self, model: str, kind: str, decode: float, compute: float, queued: Sequence[float]) -> None:
        """One batch that was computed, with the seconds that each of its pictures had waited."""
        for seconds in queued:
            self._queue.labels(model, kind).observe(seconds)
        self._compute.labels(model, kind).observe(compute)
        self._size.labels(model, kind).observe(len(queued))
        if decode:
            self._decode.labels(model, kind).observe(decode)

    def text(self) -> bytes:
        """As Prometheus reads it."""
        return generate_latest(self._registry)


class AccessLog:
    """Collects lines; a thread writes them, so that a reader who is slow slows nobody down."""

    def __init__(self, enabled: bool, stream: TextIO | None = None) -> None:
        self._stream = sys.stdout if stream is None else stream
        self._lines: deque[str] = deque(maxlen=MOST_LINES)
        self._ended = Event()
        self._thread = Thread(target=self._work, name="access log", daemon=True) if enabled else None
        if self._thread is not None:
            self._thread.start()

    def write(self, exchange: Exchange) -> None:
        """Note an exchange that has ended."""
        if self._thread is None:
            return
        facts = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "id": exchange.id,
            "method": exchange.method,
            "path": exchange.path[:200],
            "status": exchange.status,
            "ms": round(1000 * exchange.seconds, 2),
            "pictures": exchange.pictures,
            "bytes": exchange.received,
            "client": exchange.client,
        }
        self._lines.append(json.dumps(facts))

    def close(self) -> None:
        """Write what is left."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(timeout=2.0)

    def _work(self) -> None:
        while not self._ended.wait(PAUSE):
            self._flush()
        self._flush()

    def _flush(self) -> None:
        lines: list[str] = []
        while self._lines:
            lines.append(self._lines.popleft() + "\n")
        if lines:
            with suppress(OSError, ValueError):  # nobody reads it any more
                self._stream.write("".join(lines))
                self._stream.flush()


def open_tracing() -> Trace | None:
    """What records a request that has ended, given its headers, for OpenTelemetry; None where it is not set up.

    `opentelemetry-instrument vitrail serve …` sets it up from the environment. A request is one span, below that of the
    client if it names one, and the picture in it that took longest adds spans for its stages. They are made when the
    request has ended, from times that were taken anyway. No span holds a picture, a query or a token.
    """
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
    if exchange.computed is not None:
        item, answer = exchange.computed
        began = item.added
        for name, seconds in (("queue", answer.queue), ("decode", answer.decode), ("compute", answer.compute)):
            if seconds:
                tracer.start_span(name, context, start_time=wall(began)).end(wall(began + seconds))
            began += seconds
    span.end(now)
