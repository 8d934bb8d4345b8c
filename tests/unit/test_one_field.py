"""An option of a search is one field of its request: everything else that knows it follows."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

import httpx
import pytest
from pydantic import ValidationError

from planner.api.client import Client, ConnectionFailed
from planner.api.options import plan_query
from planner.errors import UsageError
from planner.planning.searched import RequestDocument
from planner.requests.key import request_key
from planner.requests.options import add_options, option
from planner.requests.recorded import arguments_of, recorded, request_of
from planner.requests.search import SearchRequest

MODEL = Path(__file__).resolve().parents[2] / "sample_graphs" / "mlp.onnx"


@dataclass
class More(SearchRequest):
    """A request with three options more."""

    colour: Literal["red", "blue"] | None = option(choices=("red", "blue"), help="which colour")
    rounds: int = option(2, sent={"le": 9}, type=int, metavar="N", help="how often")
    here: bool = option(False, sent=False, keyed=False, recorded=False, action="store_true", help="known here alone")


def asking(**options: object) -> More:
    return More(MODEL, "4", **options)  # type: ignore[arg-type]


def test_the_command_line_has_it() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--devices")
    add_options(parser, More)
    request = asking(colour="red", rounds=3, here=True)
    assert More.of(parser.parse_args(arguments_of(request))) == request
    assert "which colour" in parser.format_help()
    assert "{red,blue}" in parser.format_help()


def test_the_service_takes_it() -> None:
    query = plan_query(More)
    assert query(devices=4, colour="red", rounds=3).model_dump(exclude_defaults=True) == {  # type: ignore[call-arg]
        "devices": 4, "colour": "red", "rounds": 3,
    }  # fmt: skip
    with pytest.raises(ValidationError, match="'red' or 'blue'"):
        query(devices=4, colour="green")  # type: ignore[call-arg]
    assert More.sent(MODEL, {"devices": 4, "colour": "red", "rounds": 3}) == asking(colour="red", rounds=3)
    assert query.model_json_schema()["properties"]["colour"]["description"] == "Which colour."
    assert query.model_json_schema()["properties"]["rounds"]["default"] == 2


def test_the_service_is_not_asked_for_what_concerns_this_machine() -> None:
    assert "here" not in plan_query(More).model_fields
    with pytest.raises(UsageError, match="here: no such option"):
        More.sent(MODEL, {"devices": 4, "here": True})


def test_the_key_depends_on_it() -> None:
    plain = request_key(asking())
    assert plain != request_key(asking(colour="red")) != request_key(asking(colour="blue"))
    assert plain == request_key(asking(here=True))


def test_the_record_says_it_and_asks_again() -> None:
    request = asking(colour="red", rounds=3, here=True, solver="dp")
    text = recorded(request).model_dump_json()
    document = RequestDocument.model_validate_json(text)
    assert document.options == {"colour": "red", "rounds": 3}
    assert request_of(document, MODEL, More) == asking(colour="red", rounds=3, solver="dp")
    with pytest.raises(UsageError, match="no such option"):
        request_of(document, MODEL)


def test_a_record_without_it_is_as_it_was() -> None:
    assert "options" not in recorded(asking(risk="upper", top_k=2)).model_dump()


def test_a_record_says_every_option_but_these() -> None:
    unsaid = {f.name for f in fields(SearchRequest) if f.metadata.get("recorded") is False}
    assert unsaid == {"risk", "top_k", "front", "warm_start", "save_problem", "save_all_meshes"}


def test_the_client_sends_it() -> None:
    given = asking(colour="red", reproducible=True, here=True, bind=["a=1", "b=2"]).service_options
    asked: list[httpx.QueryParams] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.params)
        return httpx.Response(404)

    client = Client(http=httpx.Client(transport=httpx.MockTransport(answer)))
    with pytest.raises(ConnectionFailed):
        client.submit(b"", devices=4, strip=False, **given)
    assert asked[0].multi_items() == [
        ("devices", "4"), ("bind", "a=1"), ("bind", "b=2"), ("reproducible", "true"), ("colour", "red"),
    ]  # fmt: skip
