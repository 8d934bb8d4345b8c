"""A request of a search is one value, on which command line, service, cache and plan.json agree."""

from __future__ import annotations

import argparse
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

import planner
from planner.api.options import PlanQuery
from planner.builder import build
from planner.cli.commands.search import configure
from planner.errors import UsageError
from planner.planning.searched import RequestDocument
from planner.requests.evaluation import EvaluationRequest
from planner.requests.key import request_key
from planner.requests.recorded import arguments_of, recorded, request_of
from planner.requests.search import SENT, SearchRequest

MODEL = Path(__file__).resolve().parents[2] / "sample_graphs" / "mlp.onnx"
# A value of every option that is not its default.
OTHER: dict[str, Any] = {
    "bind": ["n=3"], "batch": 8, "hardware": "h100", "nodes": 2, "mesh": "2x2", "mode": "training",
    "memory_limit": 1 << 30, "optimizer": "sgd", "precision": "fp32", "recompute": "blocks", "stages": 2,
    "micro_batches": 4, "constraints": MODEL, "pin": ["*.w stored=[x,_]"], "strategy": "ddp", "risk": "upper",
    "space": "whole", "solver": "dp", "time_limit": 3.0, "target": "megatron", "reproducible": True, "top_k": 3,
    "front": True, "warm_start": MODEL, "save_problem": Path("p"), "save_all_meshes": True,
}  # fmt: skip


def parsed(arguments: list[str]) -> SearchRequest:
    parser = argparse.ArgumentParser()
    configure(parser)
    options = parser.parse_args(arguments)
    if options.target is None:
        options.target = "any"
    return SearchRequest.of(options)


def test_every_option_has_another_value_here() -> None:
    plain = SearchRequest(MODEL, "4")
    assert OTHER.keys() == {f.name for f in fields(SearchRequest)} - {"model", "devices"}
    assert all(getattr(plain, name) != value for name, value in OTHER.items())


@pytest.mark.parametrize("name", OTHER)
def test_the_command_line_says_what_the_value_says(name: str) -> None:
    request = replace(SearchRequest(MODEL, "4"), **{name: OTHER[name]})
    assert parsed(arguments_of(request)) == request


@pytest.mark.parametrize("name", sorted(SENT))
def test_a_service_is_asked_for_the_same(name: str) -> None:
    assert SearchRequest.sent(MODEL, {"devices": 4, name: OTHER[name]}) == replace(
        SearchRequest(MODEL, "4"), **{name: OTHER[name]}
    )


def test_the_service_takes_what_is_sent() -> None:
    assert set(PlanQuery.model_fields) == {*SENT, "devices", "name", "webhook"}
    plain = SearchRequest(MODEL, "4")
    given = {name: PlanQuery.model_fields[name].get_default() for name in SENT}
    assert given == {name: getattr(plain, name) for name in SENT}


@pytest.mark.parametrize("name", OTHER)
def test_answers_that_may_differ_have_keys_that_differ(name: str) -> None:
    """A limit in seconds aside: only answers are kept that none has touched."""
    plain, other = SearchRequest(MODEL, "4"), replace(SearchRequest(MODEL, "4"), **{name: OTHER[name]})
    differs = name not in ("time_limit", "reproducible", "save_problem", "save_all_meshes")
    assert (request_key(plain) != request_key(other)) == differs


def test_a_record_asks_for_the_same_again() -> None:
    document = recorded(SearchRequest(MODEL, "4", bind=["a=2"], pin=["mesh=2x2"], batch=8, target="torch"))
    again = request_of(document, MODEL)
    assert recorded(again) == document
    assert again.bind == ["a=2"]
    assert again.target == "torch"


def test_what_a_record_says_is_an_option() -> None:
    names = {f.name for f in fields(SearchRequest)}
    assert set(RequestDocument.model_fields) - names == {"profile", "pins", "options"}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "--devices"),
        ({"devices": 2, "optimizer": "lion"}, "invalid choice: 'lion'"),
        ({"devices": 2, "memory_limit": "much"}, "expected a size such as 64GiB"),
        ({"devices": 2, "front": True}, "no such option"),
        ({"devices": 2, "mesh": ["2x2", "4"]}, "expected one value"),
        ({"devices": 2, "stages": 0}, "argument --stages: expected a positive integer"),
        ({"devices": 2, "micro_batches": 2.5}, "expected a positive integer"),
        ({"devices": 2, "time_limit": True}, "expected one value"),
        ({"devices": 2, "time_limit": "soon"}, "expected a positive number of seconds, such as 300, found 'soon'"),
        ({"devices": 2, "reproducible": "false"}, "expected true or false"),
    ],
)
def test_what_no_request_can_say_is_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        SearchRequest.sent(MODEL, options)


def test_one_text_is_a_list_of_one() -> None:
    assert SearchRequest.sent(MODEL, {"devices": 2, "bind": "n=3", "pin": "mesh=2"}).bind == ["n=3"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "--strategy --plan is required"),
        ({"strategy": "ddp", "precision": "fp64"}, "invalid choice: 'fp64'"),
        ({"strategy": "ddp", "batch": -3}, "expected a positive integer"),
        ({"strategy": "ddp", "devices": 0}, "expected a positive integer"),
        ({"strategy": "ddp", "mesh": "2x2"}, "no such option"),
    ],
)
def test_what_no_evaluation_can_say_is_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        EvaluationRequest.sent(MODEL, options)


def test_an_evaluation_reads_numbers_in_texts() -> None:
    found = EvaluationRequest.sent(MODEL, {"strategy": "ddp", "devices": "8", "bind": "n=3", "memory_limit": "1GiB"})
    assert (found.devices, found.bind, found.memory_limit) == (8, ["n=3"], 1 << 30)


def test_a_configuration_that_was_found_in_time_gets_its_plan_whatever_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pricing its pins took longer than the limit on Llama 405B, and the search ended with no plan."""
    for module, name in (("outer", "PLAIN_SECONDS"), ("interrupt", "GRACE"), ("interrupt", "STUCK")):
        monkeypatch.setattr(f"planner.planning.{module}.{name}", 0.0)
    sizes = {"layers": 24, "hidden": 1024, "heads": 16, "ffn": 4096, "vocab": 32000, "seq": 1024, "batch": 64}
    machine = planner.Machine("a100-80", devices=64)
    plan = planner.search(build("llama", sizes), machine=machine, target="megatron", time_limit=0.05)
    assert plan.document.cost.step_time_s > 0
