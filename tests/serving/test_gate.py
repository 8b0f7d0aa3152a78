"""What every request passes: hosts, tokens, pace, headers, the log."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from serving.conftest import InProcess, Skipping, encode
from vitrail.serving.exchange import Problem
from vitrail.serving.gate import SECURITY_HEADERS, RateLimiter
from vitrail.serving.telemetry import Metrics

TOKEN = "correct-horse"


def ask(app: InProcess, work: Callable[[httpx.AsyncClient], Awaitable[Any]], **options: Any) -> Any:
    async def run() -> Any:
        async with app.client(**options) as client:
            return await work(client)

    with asyncio.Runner(loop_factory=Skipping) as runner:
        return runner.run(run())


@pytest.mark.parametrize("path", ["/", "/nothing", "/v2/health/live", "/v1/models", "/v1/predict", "/metrics"])
def test_every_answer_has_the_headers(path: str) -> None:
    answer = ask(
        InProcess(), lambda client: client.get(path, headers={"x-request-id": "abc-1", "origin": "http://evil"})
    )
    assert all(answer.headers[name] == value for name, value in SECURITY_HEADERS)
    assert answer.headers["x-request-id"] == "abc-1"
    assert "server" not in answer.headers
    assert not any(name.startswith("access-control") for name in answer.headers)
    if answer.status_code >= 400:
        assert set(answer.json()["error"]) == {"code", "message", "hint"}


@pytest.mark.parametrize("given", ["", "a b", "x" * 65, 'a"b', "ä"])
def test_other_request_ids_are_replaced(given: str) -> None:
    headers = {"x-request-id": given.encode("latin-1")}
    answer = ask(InProcess(), lambda client: client.get("/v2/health/live", headers=headers))
    assert len(answer.headers["x-request-id"]) == 32


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("localhost", True),
        ("LOCALHOST:8000", True),
        ("127.0.0.1:1", True),
        ("[::1]:8000", True),
        ("127.8.8.8", True),
        ("evil.example", False),
        ("localhost.evil.example:8000", False),
        ("127.0.0.1.evil.example", False),
        ("", False),
    ],
)
def test_a_local_service_answers_to_local_names_only(host: str, allowed: bool) -> None:
    answer = ask(InProcess(), lambda client: client.get("/v2/health/live", headers={"host": host}))
    assert answer.status_code == (200 if allowed else 403)
    public = InProcess(host="0.0.0.0", token=TOKEN)
    assert ask(public, lambda client: client.get("/v2/health/live", headers={"host": host})).status_code == 200


@pytest.mark.parametrize(
    ("site", "status"), [("cross-site", 403), ("same-site", 403), ("same-origin", 200), ("none", 200)]
)
def test_other_sites_pages_may_not_post(site: str, status: int) -> None:
    """Another port of this machine is the same site to a browser, but not the same page."""
    answer = ask(
        InProcess(),
        lambda client: client.post("/v1/predict", content=encode(), headers={"sec-fetch-site": site}),
    )
    assert answer.status_code == status


def test_a_token_opens_what_is_not_public() -> None:
    app = InProcess(token=TOKEN)

    async def work(client: httpx.AsyncClient) -> None:
        for path in ("/", "/v2/health/live", "/v2/health/ready"):
            assert (await client.get(path)).status_code == 200
        for given in (None, TOKEN, f"Basic {TOKEN}", "Bearer wrong-token", "Bearer ", "Bearer \xff\xff"):
            headers = {} if given is None else {"authorization": given.encode("latin-1")}
            for path in ("/v1/models", "/v1/labels", "/metrics", "/openapi.json", "/v2", "/nothing"):
                answer = await client.get(path, headers=headers)
                assert answer.status_code == 401
                assert answer.headers["www-authenticate"] == "Bearer"
        assert (await client.get("/v1/models", headers={"authorization": f"bearer {TOKEN}"})).status_code == 200

    ask(app, work)
    assert TOKEN not in str(app.logged())


def test_clients_have_a_pace() -> None:
    now = 0.0
    pace = RateLimiter(2.0, lambda: now)
    for _ in range(4):
        pace.check("a")
    with pytest.raises(Problem) as caught:
        pace.check("a")
    assert caught.value.status == 429
    assert caught.value.retry_after == 1
    pace.check("b")
    now = 0.6
    pace.check("a")
    with pytest.raises(Problem):
        pace.check("a")
    for number in range(20_000):
        pace.check(str(number))
    assert len(pace._left) == 10_000


def test_a_pace_is_kept_over_http() -> None:
    async def work(client: httpx.AsyncClient) -> None:
        statuses = [(await client.get("/v1/models")).status_code for _ in range(4)]
        assert statuses == [200, 200, 429, 429]
        assert (await client.get("/v2/health/ready")).status_code == 200

    ask(InProcess(rate_limit=1.0), work)


def test_guessing_tokens_is_limited_too() -> None:
    async def work(client: httpx.AsyncClient) -> None:
        for status in (401, 401, 429):
            answer = await client.get("/v1/models", headers={"authorization": "Bearer a-guess-of-mine"})
            assert answer.status_code == status

    ask(InProcess(rate_limit=1.0, token=TOKEN), work)


def test_mistakes_of_ours_are_told_without_details(capsys: pytest.CaptureFixture[str]) -> None:
    app = InProcess()

    def fail() -> bytes:
        raise RuntimeError("a secret of ours")

    app.service.metrics.text = fail  # type: ignore[method-assign]
    answer = ask(app, lambda client: client.get("/metrics"))
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "internal_error"
    assert "secret" not in answer.text
    assert "secret" in capsys.readouterr().err


def test_the_log_has_one_line_for_each_request() -> None:
    app = InProcess()
    data = encode()
    ask(
        app,
        lambda client: client.post("/v1/predict?model=second&top_k=1", content=data, headers={"x-request-id": "r1"}),
    )
    ask(app, lambda client: client.get("/nothing%0a%1b%5b31m"))
    first, second = app.logged()
    assert set(first) == {"time", "id", "method", "path", "status", "ms", "pictures", "bytes", "client"}
    assert (first["id"], first["method"], first["path"], first["status"]) == ("r1", "POST", "/v1/predict", 200)
    assert (first["pictures"], first["bytes"], first["client"]) == (1, len(data), "127.0.0.1")
    assert second["status"] == 404


def test_requests_are_counted_by_route_and_status() -> None:
    app = InProcess()
    ask(app, lambda client: client.get("/v2/models/first"))
    ask(app, lambda client: client.get("/v2/models/nobody"))
    ask(app, lambda client: client.get("/guessed/1"))
    ask(app, lambda client: client.get("/guessed/2"))
    text = app.service.metrics.text().decode()
    assert 'vitrail_requests_total{method="GET",route="/v2/models/{model}",status="200"} 1.0' in text
    assert 'vitrail_requests_total{method="GET",route="/v2/models/{model}",status="404"} 1.0' in text
    assert 'vitrail_requests_total{method="GET",route="unmatched",status="404"} 2.0' in text
    assert 'vitrail_ready{model="first"} 1.0' in text


def test_refused_requests_are_counted_under_the_address_that_they_asked_for() -> None:
    app = InProcess(token=TOKEN)
    ask(app, lambda client: client.get("/v1/labels"))
    ask(app, lambda client: client.delete("/v2/models/first", headers={"authorization": f"Bearer {TOKEN}"}))
    text = app.service.metrics.text().decode()
    assert 'vitrail_requests_total{method="GET",route="/v1/labels",status="401"} 1.0' in text
    assert 'vitrail_requests_total{method="DELETE",route="/v2/models/{model}",status="405"} 1.0' in text
    assert "unmatched" not in text


def test_batches_are_counted_by_model() -> None:
    metrics = Metrics()
    metrics.batch("first", "logits", 0.002, 0.003, [0.001] * 3)
    metrics.batch("second", "features", 0.0, 0.003, [0.001])
    text = metrics.text().decode()
    for name, model, kind, count in (
        ("queue_seconds", "first", "logits", 3.0),
        ("decode_seconds", "first", "logits", 1.0),
        ("compute_seconds", "second", "features", 1.0),
        ("batch_size", "second", "features", 1.0),
    ):
        assert f'vitrail_{name}_count{{kind="{kind}",model="{model}"}} {count}' in text
    assert 'vitrail_batch_size_sum{kind="logits",model="first"} 3.0' in text
    assert 'decode_seconds_count{kind="features"' not in text  # nothing was decoded
