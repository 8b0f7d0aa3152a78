"""The table of routes, behind the gate, and the files of the page."""

from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path

from starlette.responses import JSONResponse, Response
from starlette.routing import Route, Router

from vitrail.serving import open_inference, rest
from vitrail.serving.dispatch import Call, Endpoint, Schema, Service
from vitrail.serving.exchange import Problem
from vitrail.serving.gate import Gate
from vitrail.serving.openapi import describe_api
from vitrail.serving.settings import ServeSettings
from vitrail.serving.telemetry import METRICS_TYPE, AccessLog

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".webp": "image/webp",
    ".json": "application/json",
}


@cache
def read_files(folder: str) -> dict[str, tuple[bytes, str]]:
    """Name → content and type of the files beside this one: no address in a request is ever a path."""
    paths = sorted(path for path in (Path(__file__).parent / folder).iterdir() if path.suffix in TYPES)
    return {path.name: (path.read_bytes(), TYPES[path.suffix]) for path in paths}


async def send_file(call: Call, folder: str) -> Response:
    data, kind = read_files(folder).get(call.arguments.get("name", "index.html"), (None, ""))
    if data is None:
        raise Problem("not_found", "there is no such file.")
    return Response(data, headers={"content-type": kind, "cache-control": "no-cache"})


@Endpoint("GET", "/metrics", "Metrics for Prometheus", (), {METRICS_TYPE: {"schema": {"type": "string"}}})
async def show_metrics(call: Call) -> Response:
    return Response(call.service.metrics.text(), headers={"content-type": METRICS_TYPE})


@Endpoint("GET", "/openapi.json", "This description", (), {"application/json": {"schema": {"type": "object"}}})
async def show_openapi(call: Call) -> Response:
    return JSONResponse(describe_service(call.settings, list(call.service.hosts)))


ENDPOINTS = (
    *rest.ENDPOINTS,
    *open_inference.ENDPOINTS,
    show_metrics,
    show_openapi,
    *(
        Endpoint("GET", path, is_open=True)(partial(send_file, folder=folder))
        for path, folder in (("/", "page"), ("/static/{name}", "page"), ("/examples/{name}", "examples"))
    ),
)


def describe_service(settings: ServeSettings, models: Sequence[str]) -> Schema:
    """What /openapi.json says."""
    return describe_api(settings, models, ENDPOINTS)


def build_app(service: Service, log: AccessLog) -> Gate:
    """Everything that the front process answers."""
    busiest_first = sorted(ENDPOINTS, key=lambda each: each.method == "GET")
    routes = [Route(each.path, partial(each.respond, service), methods=[each.method]) for each in busiest_first]
    open_paths = {each.path for each in ENDPOINTS if each.is_open}
    return Gate(Router(routes, redirect_slashes=False), open_paths, service, log)
