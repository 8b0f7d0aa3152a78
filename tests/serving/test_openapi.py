"""The served description, tried out by schemathesis against the running service."""

from contextlib import suppress
from typing import Any, cast

import httpx
import pytest
import schemathesis
from hypothesis import given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)
from starlette.responses import JSONResponse, Response

from fuzzing import cases
from serving.conftest import InProcess, Running
from serving.test_gate import ask
from vitrail import explanation
from vitrail.serving import app
from vitrail.serving.dispatch import Call, Endpoint, parameter
from vitrail.serving.rest import METHODS

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
    unsupported_method,
]


@pytest.mark.fuzz
def test_the_service_keeps_what_it_describes(running: Running, client: httpx.Client) -> None:
    schema = schemathesis.openapi.from_url(f"{running.url}/openapi.json")
    operations = [cast("Any", result).ok() for result in schema.get_all_operations()]
    assert len(operations) == 16  # all but the description itself
    for operation in operations:
        for mode in GenerationMode:
            try_out(operation, mode)
    assert client.get("/v2/health/ready").status_code == 200


def try_out(operation: Any, mode: GenerationMode) -> None:
    try:
        strategy = operation.as_strategy(generation_mode=mode)
        strategy.validate()
    except Unsatisfiable:  # nothing can be wrong with a request that has no parts
        return

    @settings(max_examples=cases(3))
    @given(case=strategy)
    def check(case: Any) -> None:
        answer = case.call()
        if answer.status_code != 431:  # a long address is refused before anybody looks at what is wrong with it
            case.validate_response(answer, checks=CHECKS)

    with suppress(Unsatisfiable):
        check()


def test_the_methods_are_those_of_the_library() -> None:
    assert ("auto", *explanation.METHODS) == METHODS


def test_a_route_is_declared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its arguments are checked, it is described, and it requires the token, by its declaration."""
    size = {"type": "integer", "minimum": 1, "maximum": 3, "default": 2}

    @Endpoint("GET", "/v1/toy", "A toy", (parameter("size", size, "How large."),), "Labels")
    async def toy(call: Call) -> Response:
        return JSONResponse(call.arguments)

    monkeypatch.setattr(app, "ENDPOINTS", (*app.ENDPOINTS, toy))
    service = InProcess(token="correct-horse")
    headers = {"authorization": "Bearer correct-horse"}
    for query, status, told in (
        ("", 200, '{"size":2}'),
        ("?size=3", 200, '{"size":3}'),
        ("?size=4", 422, "size must be a whole number from 1 to 3; got '4'."),
        ("?sizes=1", 422, "unknown argument 'sizes'"),
    ):
        answer = ask(service, lambda client, query=query: client.get(f"/v1/toy{query}", headers=headers))
        assert answer.status_code == status
        assert told in answer.text
    assert ask(service, lambda client: client.get("/v1/toy")).status_code == 401
    described = ask(service, lambda client: client.get("/openapi.json", headers=headers)).json()["paths"]["/v1/toy"]
    assert described["get"]["parameters"][0]["schema"] == size


def test_tokens_are_described() -> None:
    answer = ask(
        InProcess(token="correct-horse"),
        lambda client: client.get("/openapi.json", headers={"authorization": "Bearer correct-horse"}),
    )
    description = answer.json()
    assert description["security"] == [{"token": []}]
    assert description["paths"]["/v2/health/live"]["get"]["security"] == []
