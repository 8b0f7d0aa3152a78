"""What every request passes on its way in and out: who may ask, how often, the headers of the answer, the log."""

import hmac
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable, Mapping, Set

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.routing import Match, Route, Router
from starlette.types import Message, Receive, Scope, Send

from vitrail.serving.dispatch import Service
from vitrail.serving.exchange import UNMATCHED, ClientGoneError, Exchange, Problem, begin
from vitrail.serving.settings import is_local_name
from vitrail.serving.telemetry import AccessLog, open_tracing

LEFT = 499  # in the log: the client left before the answer
MOST_CLIENTS = 10_000  # that are remembered
SECURITY_HEADERS: tuple[tuple[str, str], ...] = (
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
        "frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    ),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-embedder-policy", "require-corp"),
    ("cross-origin-resource-policy", "same-origin"),
)
_HEADERS = [(name.encode(), value.encode()) for name, value in SECURITY_HEADERS]
_OWN_PAGES = (b"none", b"same-origin")  # what a browser says of the service's own page; other programs say nothing
_ICON = "/favicon.ico"  # which browsers ask for by themselves


class Gate:
    """Wraps the routes."""

    def __init__(self, routes: Router, open_paths: Set[str], service: Service, log: AccessLog) -> None:
        self._routes, self._open, self._service, self._log = routes, open_paths, service, log
        self._paths = [route for route in routes.routes if isinstance(route, Route)]
        settings = service.settings
        self._token = settings.token.encode() if settings.token else None
        self._hosts = settings.host if settings.is_local else None
        self._trace = open_tracing()
        self._limit = RateLimiter(settings.rate_limit) if settings.rate_limit else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = dict(reversed(scope["headers"]))
        exchange = begin(scope, headers.get(b"x-request-id", b"").decode("latin-1"), self._service.buffer)
        exchange.route = next((route.path for route in self._paths if route.matches(scope)[0] != Match.NONE), UNMATCHED)
        scope["app"] = self  # routes raise instead of answering in plain text

        async def send_on(message: Message) -> None:
            if message["type"] == "http.response.start":
                exchange.status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", exchange.id.encode()), *_HEADERS]
                if self._service.draining:
                    message["headers"].append((b"connection", b"close"))
            await send(message)

        try:
            self._admit(scope, headers, exchange)
            await self._routes(scope, receive, send_on)
        except ClientGoneError:
            exchange.status = LEFT
        except Exception as error:
            if exchange.status:  # too late for another answer
                raise
            await _answer(_problem_of(error), scope, receive, send_on)
        finally:
            exchange.release()
            self.report(exchange)
            if self._trace is not None:
                self._trace(exchange, headers)

    def report(self, exchange: Exchange) -> None:
        """Count and log an exchange that has ended."""
        exchange.status = exchange.status or LEFT
        self._service.metrics.request(exchange)
        self._log.write(exchange)

    def _admit(self, scope: Scope, headers: Mapping[bytes, bytes], exchange: Exchange) -> None:
        if self._hosts is not None:
            self._check_host(headers.get(b"host", b"").decode("latin-1"))
        if headers.get(b"sec-fetch-site", b"none") not in _OWN_PAGES and scope["method"] not in ("GET", "HEAD"):
            raise Problem("forbidden", "other websites may not send requests here.")
        if exchange.route in self._open or scope["path"] == _ICON:
            return
        if self._limit is not None:  # before the token: guessing one is limited, too
            self._limit.check(exchange.client)
        if self._token is not None:
            scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
            if scheme.lower() != b"bearer" or not hmac.compare_digest(given.strip(), self._token):
                raise Problem(
                    "unauthorized", "this service requires a token.", headers=(("www-authenticate", "Bearer"),)
                )

    def _check_host(self, host: str) -> None:
        """A name that some other site's address server gave to this machine must not open it to that site's pages."""
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
        if not is_local_name(name) and name.lower() != str(self._hosts).lower():
            raise Problem("forbidden", "this service answers to localhost only, not to the host name in the request.")


class RateLimiter:
    """How often each client may ask: a token bucket that fills at a steady rate."""

    def __init__(self, rate: float, now: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._now = rate, now
        self._burst = max(1.0, 2 * rate)
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # client → requests left, and since when

    def check(self, client: str) -> None:
        """Count a request, or refuse it."""
        now = self._now()
        left, since = self._left.pop(client, (self._burst, now))
        left = min(self._burst, left + (now - since) * self._rate)
        allowed = left >= 1
        self._left[client] = (left - 1 if allowed else left, now)
        if len(self._left) > MOST_CLIENTS:
            self._left.popitem(last=False)
        if not allowed:
            wait = max(1, round((1 - left) / self._rate + 0.5))
            raise Problem(
                "rate_limited", f"a client may send at most {self._rate:g} requests per second.", retry_after=wait
            )


def _problem_of(error: Exception) -> Problem:
    if isinstance(error, Problem):
        return error
    if isinstance(error, HTTPException) and error.status_code == 404:
        return Problem("not_found", "there is nothing at this address.")
    if isinstance(error, HTTPException) and error.status_code == 405:
        allowed = tuple((error.headers or {}).items())
        return Problem("method_not_allowed", "this address does not accept this method.", headers=allowed)
    traceback.print_exception(error)
    return Problem("internal_error", "something went wrong in the service.")


async def _answer(problem: Problem, scope: Scope, receive: Receive, send: Send) -> None:
    entry = problem.entry()
    if scope["path"].startswith("/v2"):  # the Open Inference Protocol's own form, which its clients rely on
        content = {"error": entry["message"], "code": entry["code"], "hint": entry["hint"]}
    else:
        content = {"error": entry}
    await JSONResponse(content, problem.status, dict(problem.extra_headers()))(scope, receive, send)
