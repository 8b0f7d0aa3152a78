"""The table of routes, behind the gate, and the files of the page."""

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, Router

from vitrail.serving.dispatch import Service
from vitrail.serving.gate import Gate
from vitrail.serving.open_inference import OpenInference
from vitrail.serving.openapi import describe_api
from vitrail.serving.problems import Problem
from vitrail.serving.rest import Simple, read_arguments
from vitrail.serving.telemetry import CONTENT_TYPE, AccessLog

FOLDER = Path(__file__).parent
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


class File(NamedTuple):
    """What is sent for one name."""

    data: bytes
    kind: str


def read_files(folder: Path) -> dict[str, File]:
    """Name → file, for the files of a folder that have a known type."""
    if not folder.is_dir():
        return {}
    paths = sorted(path for path in folder.iterdir() if path.suffix in TYPES)
    return {path.name: File(path.read_bytes(), TYPES[path.suffix]) for path in paths}


class Page:
    """The handlers of the page."""

    def __init__(self) -> None:
        self._page = read_files(FOLDER / "page")
        self._examples = read_files(FOLDER / "examples")

    async def index(self, request: Request) -> Response:
        return _send(self._page, "index.html")

    async def static(self, request: Request) -> Response:
        return _send(self._page, request.path_params["name"])

    async def example(self, request: Request) -> Response:
        return _send(self._examples, request.path_params["name"])


def _send(files: Mapping[str, File], name: str) -> Response:
    file = files.get(name)
    if file is None:
        raise Problem("not_found", "there is no such file.")
    return Response(file.data, headers={"content-type": file.kind, "cache-control": "no-cache"})


Handler = Callable[[Request], Awaitable[Response]]


def build_app(service: Service, log: AccessLog) -> Gate:
    """Everything that the front process answers."""
    simple, open_inference, page = Simple(service), OpenInference(service), Page()
    description = describe_api(service.settings, list(service.hosts))

    async def metrics(request: Request) -> Response:
        read_arguments(request)
        return Response(service.metrics.text(), headers={"content-type": CONTENT_TYPE})

    async def openapi(request: Request) -> Response:
        read_arguments(request)
        return JSONResponse(description)

    gets: dict[str, Handler] = {
        "/": page.index,
        "/static/{name}": page.static,
        "/examples/{name}": page.example,
        "/v1/models": simple.models,
        "/v1/labels": simple.labels,
        "/metrics": metrics,
        "/openapi.json": openapi,
        "/v2": open_inference.server,
        "/v2/health/live": open_inference.live,
        "/v2/health/ready": open_inference.ready,
        "/v2/models/{model}": open_inference.model,
        "/v2/models/{model}/ready": open_inference.model_ready,
        "/v2/models/{model}/versions/{version}": open_inference.model,
        "/v2/models/{model}/versions/{version}/ready": open_inference.model_ready,
    }
    posts: dict[str, Handler] = {
        "/v1/predict": simple.predict,
        "/v1/embed": simple.embed,
        "/v1/explain": simple.explain,
        "/v1/attention": simple.attention,
        "/v2/models/{model}/infer": open_inference.infer,
        "/v2/models/{model}/versions/{version}/infer": open_inference.infer,
    }
    routes = [Route(path, handler, methods=["POST"]) for path, handler in posts.items()]  # the busy ones
    routes += [Route(path, handler, methods=["GET"]) for path, handler in gets.items()]
    return Gate(Router(routes, redirect_slashes=False), service, log)
