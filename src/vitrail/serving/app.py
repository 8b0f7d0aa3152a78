"""The table of routes, behind the gate."""

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, Router

from vitrail.serving.access_log import AccessLog
from vitrail.serving.arguments import read_arguments
from vitrail.serving.gate import Gate
from vitrail.serving.metrics import CONTENT_TYPE
from vitrail.serving.open_inference import OpenInference
from vitrail.serving.openapi import describe_api
from vitrail.serving.page import Page
from vitrail.serving.service import Service
from vitrail.serving.simple import Simple

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
