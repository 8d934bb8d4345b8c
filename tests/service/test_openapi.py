"""The OpenAPI document is the golden one: what it promises is not taken back, and what is added is added on purpose."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from planner.api.reference import reference
from tests.service.openapi import GOLDEN, WRITE, broken, document


@pytest.fixture(scope="module")
def golden() -> Any:
    return json.loads(GOLDEN.read_text(encoding="utf-8"))


def test_the_document_is_the_golden_one(golden: Any, tmp_path: Path) -> None:
    found = document(tmp_path)
    lines = list(broken(golden, found))
    assert not lines, "clients rely on what was removed or changed; put it back:\n" + "\n".join(lines)
    assert found == golden, f"something was added; if that is meant, run `{WRITE}` and commit {GOLDEN.name}"


def _remove_route(d: Any) -> None:
    del d["paths"]["/v1/jobs"]


def _remove_method(d: Any) -> None:
    del d["paths"]["/v1/plans"]["post"]


def _remove_parameter(d: Any) -> None:
    d["paths"]["/v1/jobs"]["get"]["parameters"].pop()


def _require_parameter(d: Any) -> None:
    new = {"in": "query", "name": "new", "required": True, "schema": {"type": "string"}}
    d["paths"]["/v1/jobs"]["get"]["parameters"].append(new)


def _narrow_choice(d: Any) -> None:
    (status,) = [p for p in d["paths"]["/v1/jobs"]["get"]["parameters"] if p["name"] == "status"]
    status["schema"]["anyOf"][0]["enum"].remove("failed")


def _change_type(d: Any) -> None:
    d["components"]["schemas"]["Job"]["properties"]["attempts"]["type"] = "string"


def _answer_less(d: Any) -> None:
    d["components"]["schemas"]["Job"]["required"].remove("links")


def _drop_status(d: Any) -> None:
    del d["paths"]["/v1/jobs"]["get"]["responses"]["401"]


def _rename_operation(d: Any) -> None:
    d["paths"]["/v1/jobs"]["get"]["operationId"] = "jobs"


@pytest.mark.parametrize(
    "change",
    [
        *(_remove_route, _remove_method, _remove_parameter, _require_parameter, _narrow_choice, _change_type),
        *(_answer_less, _drop_status, _rename_operation),
    ],
)
def test_what_breaks_clients_is_found(golden: Any, change: Callable[[Any], None]) -> None:
    changed = copy.deepcopy(golden)
    change(changed)
    assert list(broken(golden, changed))


def test_additions_break_nobody(golden: Any) -> None:
    changed = copy.deepcopy(golden)
    changed["paths"]["/v1/new"] = {}
    optional = {"in": "query", "name": "new", "required": False, "schema": {"type": "string"}}
    changed["paths"]["/v1/jobs"]["get"]["parameters"].insert(0, optional)
    changed["components"]["schemas"]["Job"]["properties"]["new"] = {"type": "string"}
    (status,) = [p for p in changed["paths"]["/v1/jobs"]["get"]["parameters"] if p["name"] == "status"]
    status["schema"]["anyOf"][0]["enum"].insert(0, "new")
    assert not list(broken(golden, changed))
    assert changed != golden


def test_the_page_for_people_is_that_of_the_document() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "http-api.md"
    assert page.read_text(encoding="utf-8") == reference(), "python -m planner.api.reference > docs/http-api.md"


def test_words_for_people_are_not_frozen(golden: Any) -> None:
    text = GOLDEN.read_text(encoding="utf-8")
    assert "ONNX" not in text
    assert {"title", "detail"} <= set(golden["components"]["schemas"]["ProblemDocument"]["properties"])
