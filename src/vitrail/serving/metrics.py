"""What Prometheus is told. Everything is counted where it happens, so that a scrape asks nobody."""

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
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
