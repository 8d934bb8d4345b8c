"""`planner resume`: what is planned for the devices that are left, and where its state comes from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import planner
from planner.planning import read_plan
from planner.requests.resuming import counts_allowed, usable
from tests.cli.command import run


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("resume")
    model = planner.build("gpt", layers=2, hidden=64, heads=4, vocab=512, seq=32, batch=8)
    for name, hardware, devices, strategy in (
        ("copies", "a100-80", 8, "ddp"), ("shards", "a100-80", 8, "fsdp"),
        ("ascend", "ascend-910b", 16, "ddp:micro_batch=1"),
    ):  # fmt: skip
        batch = devices if hardware == "ascend-910b" else None
        found = planner.search(model, devices=devices, hardware=hardware, strategy=strategy, batch=batch)
        found.save(folder / name / "plan.json")
    return folder


def test_replicas_bring_all_state_without_a_checkpoint(
    plans: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lost = ("resume", "--plan", plans / "copies", "--lost", "3,7", "--out", tmp_path / "new")
    assert run(*lost, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["devices"] in (6, 4)  # all that are left, or the most that divide a batch of 8
    assert document["lost"] == []
    assert not {3, 7} & set(document["placement"])
    plan = read_plan(tmp_path / "new/plan.json")
    assert plan.cluster.devices == document["devices"]
    assert json.loads((tmp_path / "new/transfer.json").read_text())["placement"] == document["placement"]
    assert (tmp_path / "new/model.onnx").is_file()
    assert run(*lost) == 0
    assert "all state is on the devices that are left" in capsys.readouterr().out


def test_shards_that_are_gone_are_named(plans: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("resume", "--plan", plans / "shards", "--lost", "0", "--out", tmp_path / "new")
    assert run(*arguments, "--checkpoint", tmp_path) == 3
    assert "expected checkpoints of planner run --save" in capsys.readouterr().err
    (tmp_path / "saved/step-00000007").mkdir(parents=True)
    (tmp_path / "saved/step-00000007/.metadata").write_bytes(b"")
    assert run(*arguments, "--checkpoint", tmp_path / "saved") == 0
    said = capsys.readouterr().out
    assert "no device holds all of transformer.wte.weight" in said
    assert f"--load {tmp_path / 'saved/step-00000007'}" in said


@pytest.mark.parametrize(("lost", "message"), [("8", "ranks 0 to 7"), ("0,1,2,3,4,5,6,7", "no device is left")])
def test_what_cannot_be_is_said(plans: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], lost: str,
                                message: str) -> None:  # fmt: skip
    assert run("resume", "--plan", plans / "copies", "--lost", lost, "--out", tmp_path / "new") == 2
    assert message in capsys.readouterr().err


def test_a_plan_of_micro_batches_keeps_its_whole_batch(tmp_path: Path) -> None:
    model = planner.build("gpt", layers=2, hidden=64, heads=4, vocab=512, seq=32, batch=8)
    strategy = "megatron:pp=2,tp=1,zero=0,micro_batch=1"
    planner.search(model, devices=4, hardware="cpu", batch=8, strategy=strategy).save(tmp_path / "old" / "plan.json")
    old = read_plan(tmp_path / "old" / "plan.json")
    assert old.schedule.micro_batches == 4
    assert run("resume", "--plan", tmp_path / "old", "--lost", "3", "--out", tmp_path / "new") == 0
    new = read_plan(tmp_path / "new" / "plan.json")
    assert new.model.batch is not None
    assert new.model.batch * new.schedule.micro_batches == 8


def test_the_plan_that_was_run_is_not_written_over(plans: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (plans / "copies/plan.json").read_bytes()
    assert run("resume", "--plan", plans / "copies", "--lost", "1", "--out", plans / "copies") == 2
    assert "give another place" in capsys.readouterr().err
    assert (plans / "copies/plan.json").read_bytes() == before


def test_ascend_takes_whole_servers_and_what_hccl_allows(plans: Path) -> None:
    plan = read_plan(plans / "ascend/plan.json")
    assert usable(plan, [3]) == list(range(8, 16))
    assert counts_allowed(plan, 8) == [8]
    assert usable(plan, [3, 9, 10]) == [0, 1, 2, 4, 5, 6, 7]  # no server is whole: the fullest
    assert counts_allowed(plan, 7) == [4]
    one = read_plan(plans / "copies/plan.json")
    assert usable(one, [3]) == [0, 1, 2, 4, 5, 6, 7]
    assert counts_allowed(one, 7) == [7, 4]
    assert counts_allowed(one, 4) == [4]
