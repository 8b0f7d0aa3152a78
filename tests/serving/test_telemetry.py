"""Spans for OpenTelemetry: what is in them, and that there are none where nobody asked for them."""

import subprocess
import sys
from itertools import pairwise
from typing import Any

import pytest
from opentelemetry import trace

from serving.conftest import InProcess, encode
from serving.test_gate import ask
from vitrail.serving import telemetry

PARENT = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"
WITHOUT = """
import sys
sys.modules["opentelemetry"] = None
from vitrail.serving import server, telemetry
assert telemetry.open_tracing() is None
"""


class Span(trace.NonRecordingSpan):
    def __init__(self, facts: dict[str, Any]) -> None:
        super().__init__(trace.SpanContext(facts["trace"], 7, is_remote=False))
        self.facts = facts

    def set_status(self, status: Any, description: str | None = None) -> None:
        self.facts["status"] = status

    def end(self, end_time: int | None = None) -> None:
        self.facts["end"] = end_time


class Recorder(trace.TracerProvider, trace.Tracer):
    """Keeps what it is told, as an exporter would get it."""

    def __init__(self) -> None:
        self.spans: list[dict[str, Any]] = []

    def get_tracer(self, *_: Any, **__: Any) -> trace.Tracer:
        return self

    def start_span(self, name: str, context: Any = None, *arguments: Any, **facts: Any) -> Span:
        parent = trace.get_current_span(context).get_span_context()
        self.spans.append({"name": name, "trace": parent.trace_id, "parent": parent.span_id, **facts})
        return Span(self.spans[-1])

    def start_as_current_span(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    recorder = Recorder()
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: recorder)
    monkeypatch.setattr(trace, "get_tracer", lambda *_: recorder)
    return recorder


def test_a_request_has_spans_for_what_it_waited_for(recorder: Recorder) -> None:
    headers = {"traceparent": PARENT, "x-request-id": "r1"}
    ask(InProcess(), lambda client: client.post("/v1/predict?top_k=1", content=encode(), headers=headers))
    request, *stages = recorder.spans
    assert request["name"] == "POST /v1/predict"
    assert (request["trace"], request["parent"]) == (0x0123456789ABCDEF0123456789ABCDEF, 0x0123456789ABCDEF)
    assert request["attributes"]["http.response.status_code"] == 200
    assert request["attributes"]["vitrail.request_id"] == "r1"
    assert request["attributes"]["vitrail.pictures"] == 1
    assert "status" not in request
    assert [stage["name"] for stage in stages] == ["queue", "decode", "compute"]
    assert {(stage["trace"], stage["parent"]) for stage in stages} == {(request["trace"], 7)}
    took = [round((stage["end"] - stage["start_time"]) / 1e6) for stage in stages]
    assert took == [1, 2, 3]  # milliseconds, as the stand-in says
    for one, other in pairwise(stages):
        assert abs(one["end"] - other["start_time"]) < 1000
    assert request["start_time"] <= stages[0]["start_time"]
    assert "top_k" not in str(recorder.spans)


def test_failures_are_marked(recorder: Recorder) -> None:
    app = InProcess()
    app.service.hosts["first"].facts = {}
    ask(app, lambda client: client.post("/v1/predict", content=encode()))
    ask(app, lambda client: client.get("/nothing"))
    failed, unknown = recorder.spans
    assert failed["status"] == trace.StatusCode.ERROR
    assert (unknown["name"], "status" in unknown) == ("GET unmatched", False)


def test_nothing_is_recorded_where_it_is_not_installed_or_not_set_up() -> None:
    assert subprocess.run([sys.executable, "-c", WITHOUT]).returncode == 0
    assert telemetry.open_tracing() is None  # the API is installed here, and nobody has set it up
