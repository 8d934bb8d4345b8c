"""What a child makes of two plans: the messages between devices."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import planner
from planner.api.jobs.blobs import Blobs
from planner.api.jobs.execute import execute
from planner.api.jobs.handover import lay_in
from planner.api.jobs.limits import Limits
from planner.api.jobs.sandbox import Confinement
from planner.api.jobs.work import JobInput
from planner.errors import UsageError
from planner.requests.watch import Silent


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobInput:
    model = planner.build("mlp", batch=16)
    blobs = Blobs(tmp_path / "store/blobs")
    inputs = {}
    for name, devices in (("a", 8), ("b", 4)):
        plan = planner.search(model, devices=devices, strategy="fsdp")
        inputs[name] = blobs.put(plan.text.encode())
    folder = tmp_path / "child"
    lay_in(blobs, inputs, folder)
    monkeypatch.chdir(folder / "work")
    confinement = Confinement.of("off", [tmp_path / "store"])
    return JobInput("transfer", inputs, {"lost": [], "optimizer": "adam"}, folder, Limits(), confinement)


def test_plans_become_messages(work: JobInput) -> None:
    content, kind = execute(work, Silent()).files["transfer.json"]
    found = json.loads(content)
    assert kind == "application/json"
    assert found["moved_bytes"] + found["kept_bytes"] == found["held_bytes"]
    assert len(found["placement"]) == 4
    assert found["lost"] == {}


def test_ranks_that_are_gone_have_to_be_there_before(work: JobInput) -> None:
    work.options["lost"] = [8]  # type: ignore[index]
    with pytest.raises(UsageError, match="ranks 0 to 7"):
        execute(work, Silent())
    work.options["lost"] = [1]  # type: ignore[index]
    assert json.loads(execute(work, Silent()).files["transfer.json"][0])["lost"]
