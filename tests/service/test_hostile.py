"""A few of the hostile files and requests against the running service; all: `python -m tests.service.hostile_run`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hostile import large
from tests.hostile.opened import Opened
from tests.hostile.outside import watched
from tests.hostile.parts import serialized
from tests.hostile.requests import REQUESTS, Asked
from tests.service.children_seen import gone
from tests.service.hostile_run import Asking, left_behind, look, posted, ready
from tests.service.looked_at import defects_of, raw_controls
from tests.service.process import Served, served

HOSTILE = Path(__file__).parents[1] / "hostile"
LIMITS = ("--child-memory", "2GiB", "--child-cpu", "20", "--child-wall", "60", "--rate", "0", "--workers", "1")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("hostile")
    with served(folder / "data", *LIMITS, log=folder / "log") as s:
        ready(Asking(s.url))
        yield s
        assert not gone(s.process.pid)
        assert not left_behind(folder / "data")
    assert not raw_controls((folder / "log").read_text())


@pytest.mark.parametrize(
    ("name", "problem", "told"),
    [
        ("concat_bomb.onnx", None, ""),
        ("deeper_nesting.onnx", "input-invalid", "not an ONNX model"),
        ("doubling_functions_21.onnx", "input-invalid", "more than 200000 nodes"),
        ("recursive_functions.onnx", "input-invalid", "calls itself"),
        ("terminal.onnx", "input-invalid", "which no name may have"),
        ("strange_missing.onnx", "input-invalid", "which no name may have"),
        ("truncated.onnx", "input-invalid", "truncated"),
        ("large/input_flood.onnx.gz", "input-invalid", "1000000 operands"),
    ],
)
def test_a_file_gets_a_plan_or_a_problem_that_names_what_is_wrong(
    service: Served, name: str, problem: str | None, told: str
) -> None:
    path = HOSTILE / name
    found = posted(Asking(service.url), Asked(large.unpacked(path) if path.suffix == ".gz" else path.read_bytes()))
    assert not found["defects"]
    assert found.get("problem") == problem
    assert told in found.get("detail", "")
    assert not raw_controls(found.get("detail", ""))


@pytest.mark.parametrize(
    "name",
    [
        "yaml_laughs",
        "yaml_object",
        "glob_of_stars_between",
        "time_nan",
        "mesh_huge",
        "gzip_encoded",
        "form_many_headers",
    ],
)
def test_a_request_gets_a_plan_or_a_problem(service: Served, name: str) -> None:
    found = posted(Asking(service.url), REQUESTS[name])
    assert not found["defects"]
    assert "problem" in found


def test_what_is_made_of_names_that_are_markup_is_harmless(service: Served) -> None:
    ask = Asking(service.url)
    found = posted(ask, Asked((HOSTILE / "markup.onnx").read_bytes()))
    assert not found["defects"]
    assert not look(ask, found, lambda line: None)


def test_what_a_model_says_lies_outside_is_never_opened(service: Served, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    canary.write_bytes(bytes(1000))
    ask = Asking(service.url)
    with Opened(canary) as opened:
        found = posted(ask, Asked(serialized(watched(str(canary)))))
        assert not found["defects"]
        assert "plan" in found
        for name in ("model.onnx", "torch.zip", "onnx.zip", "onnx-ranks.zip"):
            answer = ask("GET", f"/v1/plans/{found['plan']}/artifacts/{name}", headers={"prefer": "wait=60"})
            assert not defects_of(name, answer.status, answer.headers, answer.body)
    assert opened.works()
    assert not opened.seen
