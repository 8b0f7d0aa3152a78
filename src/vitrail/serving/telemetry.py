"""What is told about requests: metrics for Prometheus, one line of JSON in the log, spans for OpenTelemetry."""

import json
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from threading import Event, Thread
from typing import TYPE_CHECKING, NamedTuple, TextIO

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from vitrail import __version__
from vitrail.serving.exchange import Exchange

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer


METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


class Metrics:
    """Of all models of one service, in a registry of its own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry(auto_describe=True)
        self._requests = Counter(
            "vitrail_requests", "Requests that were answered.", ("route", "method", "status"), registry=self._registry
        )
        self._latency = Histogram(
            "vitrail_request_seconds", "Seconds per request.", ("route",), buckets=_SECONDS, registry=self._registry
        )
        self._queue = self._histogram("vitrail_queue_seconds", "Seconds that a picture waits.")
        self._decode = self._histogram("vitrail_decode_seconds", "Seconds to decode a batch.")
        self._compute = self._histogram("vitrail_compute_seconds", "Seconds to compute a batch.")
        self._size = self._histogram("vitrail_batch_size", "Pictures per batch.", _SIZES)
        self.ready = Gauge("vitrail_ready", "Whether the worker is ready (1).", ("model",), registry=self._registry)
        self.waiting = Gauge("vitrail_waiting", "Pictures that wait.", ("model",), registry=self._registry)
        self.restarts = Counter(
            "vitrail_worker_restarts", "Workers that were started again.", ("model",), registry=self._registry
        )

    def _histogram(self, name: str, help_text: str, buckets: Sequence[float] = _SECONDS) -> Histogram:
        return Histogram(name, help_text, ("model", "kind"), buckets=buckets, registry=self._registry)

    def request(self, route: str, method: str, status: int, seconds: float) -> None:
        """One request that has ended."""
        self._requests.labels(route, method, str(status)).inc()
        self._latency.labels(route).observe(seconds)

    def batch(self, model: str, kind: str, size: int, decode: float, compute: float, queued: Sequence[float]) -> None:
        """One batch that was computed."""
        for seconds in queued:
            self._queue.labels(model, kind).observe(seconds)
        self._compute.labels(model, kind).observe(compute)
        self._size.labels(model, kind).observe(size)
        if decode:
            self._decode.labels(model, kind).observe(decode)

    def text(self) -> bytes:
        """As Prometheus reads it."""
        return generate_latest(self._registry)


PAUSE = 0.2  # seconds between two looks at what is to be written
MOST_LINES = 10_000  # that wait while nobody reads the log; then the oldest are dropped


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
            try:
                self._stream.write("".join(lines))
                self._stream.flush()
            except (OSError, ValueError):  # nobody reads it any more
                return


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
