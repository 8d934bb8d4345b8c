"""The harnesses of this folder notice what they are there to notice."""

from __future__ import annotations

import os
import random
import signal
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import pytest
from onnx import helper

from planner.errors import InputError, LimitError
from tests.fault import pool, soak
from tests.fault.entrances import ENTRANCES, Case, Entrance
from tests.fault.mutating import changed_bytes, changed_json, changed_message, changed_text
from tests.service.promises import broken_promise


def refuse(path: Path, rng: random.Random) -> str:
    raise InputError("the file: expected this, found that; do so")


def mute(path: Path, rng: random.Random) -> str:
    raise InputError("")


def limit(path: Path, rng: random.Random) -> str:
    raise LimitError("too much", limit="memory")


def fault(path: Path, rng: random.Random) -> str:
    return str({}["nothing"])


def kill(path: Path, rng: random.Random) -> str:
    os.kill(os.getpid(), signal.SIGSEGV)
    return ""


def leave(path: Path, rng: random.Random) -> str:
    os._exit(3)


def spin(path: Path, rng: random.Random) -> str:
    while True:
        pass


def good(path: Path, rng: random.Random) -> str:
    return path.read_text()


KINDS = (refuse, kill, good, fault, leave, mute, limit, spin, good)


def test_the_pool_tells_what_became_of_each_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "CPU_S", 0.3)
    monkeypatch.setattr(pool, "LOOK_S", 0.05)
    for kind in KINDS:
        monkeypatch.setitem(ENTRANCES, kind.__name__, Entrance(1, lambda rng: (b"", ""), kind))  # type: ignore[arg-type]
    found = list(pool.in_pool(lambda k: Case(KINDS[k].__name__, b"content", ".txt", k, 0), 0, len(KINDS), 2))
    by_number = {f.number: f for f in found}
    assert len(found) == len(by_number) == len(KINDS)
    assert [by_number[k].end for k in (0, 2, 6, 8)] == ["InputError", "content", "LimitError memory", "content"]
    faults = {by_number[k].entrance: by_number[k].where for k in range(len(KINDS)) if by_number[k].end == "fault"}
    assert set(faults) == {"kill", "fault", "leave", "mute", "spin"}
    assert faults["kill"] == "its process ended by SIGSEGV"
    assert faults["leave"] == "its process ended with status 3"
    assert faults["spin"] == "it hangs"
    assert faults["mute"] == "InputError without a message"
    assert faults["fault"].startswith("KeyError at tests/fault/test_harnesses.py:")


def test_changes_are_the_same_each_time_and_leave_what_they_change_from() -> None:
    model = helper.make_model(helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [], []))
    document = {"a": [1, 2.5, "text", None, {"b": True}]}
    seen = set()
    for seed in range(60):
        for change, given in ((changed_bytes, b"bytes"), (changed_text, "a text\nof words"), (changed_json, document)):
            one, other = (change(given, random.Random(seed)) for _ in range(2))  # type: ignore[operator]
            assert repr(one) == repr(other)
            seen.add((change.__name__, repr(one)))
        copy = onnx.ModelProto.FromString(model.SerializeToString())
        changed_message(copy, random.Random(seed), ("x", "y"))
        seen.add(("model", repr(copy.SerializeToString())))
    assert document == {"a": [1, 2.5, "text", None, {"b": True}]}
    assert len(seen) > 150


def test_what_grows_is_told_from_what_goes_up_and_down() -> None:
    series: Any = defaultdict(list)
    rng = random.Random(1)
    for k in range(200):
        series["server MiB"].append((k, 80 + k + rng.random()))
        series["worker 0 MiB"].append((k, 80 + 40 * rng.random()))
        series["server descriptors"].append((k, 20 + (k > 20) * 30))  # which is over before the time that counts
    assert set(soak.leaks(series)) == {"server MiB"}
    assert soak.growth(series["server MiB"]) == pytest.approx(199, abs=3)


@pytest.mark.parametrize(
    ("status", "media", "body", "says"),
    [
        (500, "application/problem+json", "{}", "500"),
        (418, "application/json", "{}", "not promised"),
        (200, "text/html", "{}", "is none of"),
        (404, "application/json", "{}", "no problem document"),
        (204, "", "x", "content where none is promised"),
        (200, "application/json", '{"id": 1}', "no Job"),
        (204, "", "", None),
    ],
)
def test_answers_that_are_not_as_promised_are_told(status: int, media: str, body: str, says: str | None) -> None:
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Job"}}}
    promised = {"200": {"content": content}, "204": {}, "404": {"content": content}, "500": {"content": content}}
    answer = SimpleNamespace(status_code=status, headers={"content-type": media}, content=body.encode(), text=body)
    found = broken_promise(answer, {"responses": promised})
    assert found is None if says is None else found is not None and says in found
