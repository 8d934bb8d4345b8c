"""A route is one file: mounted, described, counted and limited by what it says of itself."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.routing import APIRoute

import planner.api.routes
from planner.api import descriptions
from planner.api.edge import SMALL_BODY
from planner.api.routes import routers
from tests.service.http import ONNX, Service, serving

ROUTES = Path(planner.api.routes.__file__).parent

ECHO = """
from typing import Annotated
from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel
from planner.api.auth import Tenant
from planner.api.descriptions import json_body, model_body, problems, text

router = APIRouter(tags=["echo"])


class EchoRequest(BaseModel):
    word: str


@router.get("/v1/echo", operation_id="getEcho", responses={200: text("text/plain", "It"), **problems("validation")})
async def get_echo(tenant: Tenant, word: Annotated[str, Query(max_length=9)]) -> Response:
    return Response(f"{tenant}: {word}")


@router.post(
    "/v1/echo/models",
    operation_id="createEchoModel",
    responses={200: text("text/plain", "Bytes"), **problems("too-large")},
    openapi_extra={"requestBody": model_body(required=True, constraints=False)},
)
async def create(tenant: Tenant, request: Request) -> Response:
    return Response(str(len(await request.body())))


@router.put(
    "/v1/echo",
    operation_id="putEcho",
    responses={200: text("text/plain", "It"), **problems("too-large")},
    openapi_extra={"requestBody": json_body(EchoRequest)},
)
async def put(tenant: Tenant, request: Request) -> Response:
    return Response(str(len(await request.body())))
"""


@pytest.fixture
def echoing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    """A service with one file more among its routes."""
    folder = tmp_path / "further"
    folder.mkdir()
    (folder / "echo.py").write_text(ECHO, encoding="utf-8")
    monkeypatch.setattr(planner.api.routes, "__path__", [*planner.api.routes.__path__, str(folder)])
    monkeypatch.setattr(descriptions, "_BODIES", list(descriptions._BODIES))  # later tests describe what there is
    with serving(tmp_path / "data") as service:
        yield service
    sys.modules.pop("planner.api.routes.echo", None)


def test_every_module_of_the_package_is_mounted(service: Service) -> None:
    assert len(routers()) == len([p for p in ROUTES.glob("*.py") if p.stem != "__init__"])
    for route in (r for router in routers() for r in router.routes if isinstance(r, APIRoute)):
        answer = service.client.patch(re.sub(r"\{.*?\}", "a", route.path))
        assert answer.status_code == 405, route.path
        assert route.methods <= set(answer.headers["allow"].split(", "))


def test_a_file_more_is_a_route_more(echoing: Service) -> None:
    c = echoing.client
    assert c.get("/v1/echo?word=hello").text == "local: hello"
    assert c.get("/v1/echo?word=muchtoolong").json()["type"] == "urn:planner:problem:validation"
    assert c.delete("/v1/echo").headers["allow"] == "GET, HEAD, PUT"


def test_it_is_described(echoing: Service) -> None:
    document = echoing.client.get("/openapi.json").json()
    told = document["paths"]["/v1/echo"]["get"]
    assert told["security"] == [{"key": []}]
    assert "422" in told["responses"]
    assert "EchoRequest" in document["components"]["schemas"]


def test_it_is_counted(echoing: Service) -> None:
    echoing.client.get("/v1/echo?word=hello")
    assert (
        'planner_requests_total{method="GET",route="/v1/echo",status="200"} 1.0' in echoing.client.get("/metrics").text
    )


def test_it_may_be_sent_as_much_as_it_says(echoing: Service) -> None:
    large = b"x" * (SMALL_BODY + 1)
    assert echoing.client.post("/v1/echo/models", content=large, headers=ONNX).text == str(len(large))
    assert echoing.client.put("/v1/echo", content=large).json()["type"] == "urn:planner:problem:too-large"


def test_a_module_without_a_router_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nothing.py").write_text("", encoding="utf-8")
    monkeypatch.setattr(planner.api.routes, "__path__", [str(tmp_path)])
    with pytest.raises(TypeError, match=r"planner\.api\.routes\.nothing: expected an APIRouter"):
        routers()
    sys.modules.pop("planner.api.routes.nothing", None)
