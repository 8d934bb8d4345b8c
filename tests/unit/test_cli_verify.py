"""`planner verify` as its users meet it: verdicts, exit statuses, the JSON document, progress, and what it says of
plans and models that are not as they should be."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from planner.cli.main import main
from planner.errors import InputError, VerificationError
from planner.requests import verification as proof
from planner.verify import verification
from planner.verify.work import Budget
from tests.unit.semantics_model import transformer

KEYS = {
    "ok", "verdict", "max_error", "worst", "devices", "checked", "scope", "executed", "stands_for", "operators",
    "values", "gradients", "redistributions", "parameters", "fields", "import", "failures", "unproved",
}  # fmt: skip


def planned(folder: Path, model: bytes, *options: str) -> Path:
    """A plan on four devices, whose links are so fast that operators are split."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "given.onnx"
    path.write_bytes(model)
    search = ["search", str(path), "--devices", "4", "--hardware", "alpha-beta", "--out", str(folder)]
    assert main([*search, *options]) == 0
    return folder / "plan.json"


def forward(*nodes: onnx.NodeProto, domain: str = "") -> bytes:
    """A model from x to y, both (8, 16), with a weight w."""
    weight = numpy_helper.from_array(np.random.default_rng(3).normal(size=(16, 16)).astype(np.float32), "w")
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [8, 16]) for n in "xy")
    opsets = [helper.make_opsetid("", 20), *([helper.make_opsetid(domain, 1)] if domain else [])]
    graph = helper.make_graph([*nodes], "forward", [x], [y], [weight])
    data: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()
    return data


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return planned(tmp_path_factory.mktemp("plan"), transformer(), "--mesh", "2x2")


def edited(plan: Path, folder: Path, edit: Callable[[dict[str, Any]], object]) -> Path:
    document = json.loads(plan.read_text())
    edit(document)
    path = folder / "plan.json"
    path.write_text(json.dumps(document))
    (folder / "model.onnx").write_bytes((plan.parent / "model.onnx").read_bytes())
    return path


def verify(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    capsys.readouterr()
    status = main(["verify", *(str(a) for a in arguments)])
    said = capsys.readouterr()
    return status, said.out, said.err


def test_the_json_document_has_these_fields(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = verify(capsys, plan, "--json")
    found = json.loads(out)
    assert status == 0
    assert found.keys() >= KEYS
    assert found["verdict"] == "ok"
    assert found["ok"] is True
    assert found["checked"] == ["forward", "gradients"]
    assert found["scope"] == "whole"
    assert found["executed"] == "the whole graph"
    assert min(found[k] for k in ("operators", "values", "gradients", "redistributions")) > 0
    assert found["parameters"] == len(json.loads(plan.read_text())["parameters"])
    assert found["max_error"] < 1e-9
    assert found["import"].keys() == {"ok", "max_error", "compared", "reason"}
    assert found["import"]["ok"] is True
    assert found["fields"] == found["failures"] == found["unproved"] == []


def test_every_field_is_documented(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "verify.md").read_text()
    table = page.split("| key | what it holds |")[1].split("## ")[0]
    named = {
        word
        for line in table.splitlines()
        for word in re.findall(r"`(\w+)`", line.split("|")[1] if "|" in line else "")
    }
    assert json.loads(verify(capsys, plan, "--json")[1]).keys() <= named


def test_text_of_what_is_right(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = verify(capsys, plan)
    lines = out.splitlines()
    assert status == 0
    assert lines[0].startswith("ok: forward and gradients of the whole graph on 4 virtual devices")
    assert "every field follows from the graph, the choice and the machine" in lines[1]
    assert re.search(r"finite differences confirm the gradients of \d+ operators, one of each kind$", lines[4])
    assert "equal to ONNX Runtime on the file, 1 output, error" in lines[5]


def test_the_folder_of_a_plan_stands_for_it(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify(capsys, plan.parent) == verify(capsys, plan)


def test_the_plan_gets_a_record_where_it_is_right(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = planned(tmp_path, transformer(layers=1))
    assert json.loads(made.read_text())["verification"] == "none"
    assert verify(capsys, made, "--seed", "4")[0] == 0
    found = json.loads(made.read_text())
    assert found["verification"] == "full"
    assert found["executed"]["seed"] == 4


def _proved(document: dict[str, Any]) -> None:
    """As if the plan had been verified before it was edited."""
    record = {"plan_digest": "0" * 64, "whole": True, "gradients": True, "stages": 1, "micro_batches": 1, "seed": 0}
    document |= {"verification": "full", "executed": record}


def test_a_plan_that_cannot_be_written_is_verified_all_the_same(
    plan: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise InputError("plan: cannot be written (Read-only file system)")

    monkeypatch.setattr("planner.planning.write_plan", refuse)
    status, out, err = verify(capsys, plan)
    assert status == 0
    assert out.startswith("ok: ")
    assert "record of this verification stays as it was: plan: cannot be written" in err


def wrong_bytes(document: dict[str, Any]) -> None:
    _proved(document)
    document["redistributions"][0]["steps"][0]["bytes"] += 1


def wrong_group(document: dict[str, Any]) -> None:
    groups = document["meshes"]["m0"]["groups"]
    groups[next(iter(groups))].reverse()


def wrong_operand(document: dict[str, Any]) -> None:
    """The first operand that is split somewhere is whole."""
    for operator in document["operators"].values():
        for operand in operator["operands"]:
            if operand is not None and any(operand["dims"]):
                operand["dims"] = [[] for _ in operand["dims"]]
                return


@pytest.mark.parametrize(
    ("edit", "path"),
    [
        (wrong_bytes, "redistributions[0].steps[0].bytes"),
        (wrong_group, "meshes.m0.groups."),
        (wrong_operand, "operands"),
    ],
)
def test_a_field_changed_by_hand_is_named(
    edit: Callable[[dict[str, Any]], object],
    path: str,
    plan: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    status, out, _ = verify(capsys, edited(plan, tmp_path, edit), "--json")
    found = json.loads(out)
    assert status == 1
    assert found["verdict"] == "failed"
    assert any(path in field["path"] for field in found["fields"])
    status, out, _ = verify(capsys, tmp_path / "plan.json")
    assert status == 1
    assert out.startswith("FAILED: ")
    assert "expected" in out
    left = json.loads((tmp_path / "plan.json").read_text())
    assert (left["verification"], left["executed"]) == ("none", None), "an earlier proof is withdrawn"


def test_a_redistribution_taken_out_is_told_once(
    plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, _ = verify(capsys, edited(plan, tmp_path, lambda d: d["redistributions"].pop(0)))
    wrong = [line for line in out.splitlines() if line.startswith("  wrong ")]
    assert status == 1
    assert out.startswith("FAILED: nothing was executed")
    assert wrong
    assert len(wrong) == len(set(wrong))
    assert not any("at plan" in line for line in wrong)


CASES = {
    "zero": (
        [
            helper.make_node("MatMul", ["x", "w"], ["m"]),
            helper.make_node("Abs", ["m"], ["a"]),
            helper.make_node("Neg", ["a"], ["n"]),
            helper.make_node("Relu", ["n"], ["r"]),
            helper.make_node("MatMul", ["r", "w"], ["y"]),
        ],
        "Relu r: it is zero everywhere",
    ),
    "not a number": (
        [
            helper.make_node("MatMul", ["x", "w"], ["m"]),
            helper.make_node("Abs", ["m"], ["a"]),
            helper.make_node("Neg", ["a"], ["n"]),
            helper.make_node("Sqrt", ["n"], ["y"]),
        ],
        "Sqrt y: the whole model's value is not a number",
    ),
    "no kernel": (
        [
            helper.make_node("MatMul", ["x", "w"], ["m"]),
            helper.make_node("Frobnicate", ["m"], ["y"], domain="acme"),
        ],
        "operator y (acme::Frobnicate, opset 1) has no kernel",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_proves_nothing_is_no_verdict(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes, why = CASES[case]
    made = planned(tmp_path, forward(*nodes, domain="acme" if case == "no kernel" else ""))
    status, out, _ = verify(capsys, made)
    assert status == 1
    assert out.startswith("NO VERDICT: ")
    assert any(line.startswith("  unproved ") and why in line for line in out.splitlines())
    status, out, _ = verify(capsys, made, "--json")
    found = json.loads(out)
    assert status == 1
    assert (found["ok"], found["verdict"], found["failures"]) == (False, "no verdict", [])
    assert json.loads(made.read_text())["verification"] == "none", "no record of what was not shown"


def test_a_gradient_that_nothing_can_compute_is_no_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Training through a product with weights of four bits."""
    rng = np.random.default_rng(5)
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["m"]),
            helper.make_node(
                "MatMulNBits", ["m", "b", "s"], ["q"], domain="com.microsoft", K=32, N=32, bits=4, block_size=32
            ),
            helper.make_node("ReduceMean", ["q"], ["loss"], keepdims=0),
        ],
        "quantised",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [8, 32])],
        [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])],
        [
            numpy_helper.from_array(rng.normal(size=(32, 32)).astype(np.float32), "w"),
            numpy_helper.from_array(rng.integers(0, 256, (32, 1, 16)).astype(np.uint8), "b"),
            numpy_helper.from_array(rng.random(32).astype(np.float32), "s"),
        ],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()
    status, out, _ = verify(capsys, planned(tmp_path, model, "--mode", "training"))
    assert status == 1
    assert out.startswith("NO VERDICT: ")
    assert "com.microsoft::MatMulNBits, opset 1) has no vector-Jacobian product; plan for inference" in out


def test_what_is_too_large_to_execute_is_checked_as_far_as_it_goes(
    plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(verification, "TRAINING", Budget(flops=1))
    monkeypatch.setattr(verification, "SIBLINGS", (Budget(flops=1),))
    status, out, _ = verify(capsys, edited(plan, tmp_path, wrong_group))
    assert status == 1
    assert out.startswith("FAILED: nothing was executed")
    assert "meshes.m0.groups" in out
    status, out, _ = verify(capsys, plan)
    assert status == 1
    assert out.startswith("NO VERDICT: nothing was executed")
    assert "equal to ONNX Runtime" in out
    assert "verify a smaller variant of the model" in out


def other_schema(document: dict[str, Any]) -> None:
    document["schema"] = "planner.plan/0"


def unknown_factor(document: dict[str, Any]) -> None:
    operator = next(o for o in document["operators"].values() if o["strategy"])
    operator["strategy"] = dict.fromkeys(operator["strategy"], "split:none_such")


@pytest.mark.parametrize(
    ("edit", "says"), [(other_schema, "search again with this version"), (unknown_factor, "split:none_such")]
)
def test_a_plan_that_cannot_be_understood_is_invalid_input(
    edit: Callable[[dict[str, Any]], object], says: str, plan: Path, tmp_path: Path
) -> None:
    """In a process of its own, where the work happens in a child: its errors keep their kind."""
    done = in_process(edited(plan, tmp_path, edit))
    assert done.returncode == 3
    assert says in done.stderr
    assert done.stdout == ""


def test_a_plan_that_ends_early_and_a_model_that_is_missing(
    plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plan.json"
    path.write_text(plan.read_text()[:2000])
    status, _, err = verify(capsys, path, plan.parent / "given.onnx")
    assert status == 3
    assert "is not JSON" in err
    path.write_text(plan.read_text())
    status, _, err = verify(capsys, path)
    assert status == 3
    assert "no model.onnx lies beside it; give the model that was planned with the argument MODEL" in err


def in_process(plan: Path, *options: object) -> subprocess.CompletedProcess[str]:
    code = [sys.executable, "-m", "planner.cli.main", "verify", str(plan), *(str(o) for o in options)]
    return subprocess.run(code, capture_output=True, text=True, timeout=120, check=False)


def test_another_model_is_invalid_input_in_a_process_of_its_own(plan: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.onnx"
    other.write_bytes(transformer(layers=1))
    done = in_process(plan, other)
    assert done.returncode == 3
    assert "the model given is another one" in done.stderr


def test_progress_comes_from_the_child(plan: Path) -> None:
    done = in_process(plan)
    assert done.returncode == 0
    assert "comparing the graph with ONNX Runtime on the file" in done.stderr.splitlines()
    assert done.stdout.startswith("ok: ")


def test_ctrl_c_ends_it_and_leaves_the_plan(plan: Path, tmp_path: Path) -> None:
    path = edited(plan, tmp_path, lambda d: None)
    before = path.read_bytes()
    code = [sys.executable, "-m", "planner.cli.main", "verify", str(path)]
    running = subprocess.Popen(
        code,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler) and None,
    )
    assert running.stderr is not None
    assert running.stderr.readline().startswith("comparing the graph"), "it is at work"
    os.kill(running.pid, signal.SIGINT)
    _, err = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "interrupted" in err
    assert path.read_bytes() == before


def test_time_left_is_that_of_the_run_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes before the first instruction (the import, calibration) says nothing about the pace."""
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    lines: list[str] = []
    tick = proof._meter(lines.append)
    now = 100.0
    tick(10, 1010)
    now = 110.0
    tick(110, 1010)  # 100 in 10 s, 900 are left
    now = 111.0
    tick(120, 1010)
    assert lines == ["executed 11% of the work on every device, about 90 s left"]


def test_a_child_that_dies_gives_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "onnxruntime", raising=False)
    with pytest.raises(VerificationError, match="no verdict"):
        proof._in_child(lambda: os._exit(7))

    def refuse() -> Any:
        raise InputError("plan: it is another one")

    with pytest.raises(InputError, match=r"^plan: it is another one$"):
        proof._in_child(refuse)
