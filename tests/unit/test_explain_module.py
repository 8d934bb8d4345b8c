"""`planner explain PLAN MODULE`: its operators together, and its products split otherwise, all of them."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from planner.builder import build
from planner.cli.main import main
from planner.errors import InputError
from planner.explain import ExplanationDocument, explanation_text
from planner.explain.find import find_module
from planner.planning import PlanDocument, read_plan
from planner.report.figures import figures
from planner.report.held import held_of_parameters
from planner.report.wire import sent_bytes
from planner.requests.explanation import explanation

SIZES = {"layers": 2, "batch": 8, "seq": 32, "hidden": 64, "heads": 2, "vocab": 128}
MLP = "transformer.h.1.mlp"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("module")
    (out / "gpt.onnx").write_bytes(build("gpt", SIZES).SerializeToString())
    for name, more in (("free", ()), ("known", ("--strategy", "ddp"))):
        asked = ["search", str(out / "gpt.onnx"), "--devices", "2", "--no-cache", *more]
        assert main([*asked, "--out", str(out / name)]) == 0
    return out


@pytest.fixture(scope="module")
def explained(folder: Path) -> ExplanationDocument:
    return explanation(folder / "free" / "plan.json", "h.1.mlp", most=1)


def own(plan: PlanDocument, names: tuple[str, ...]) -> float:
    account = figures(plan).of_operators()
    return sum(sum(account[n].values()) for n in names) * plan.cost.price_resolution_s


def test_a_module_is_found_by_its_path_or_its_end(folder: Path) -> None:
    plan = read_plan(folder / "free" / "plan.json")
    for text in (MLP, "h.1.mlp", "/transformer/h.1/mlp"):
        found = find_module(plan, text)
        assert found is not None
        assert found.path == MLP
        assert len(found.alike) == SIZES["layers"]
        assert set(found.operators) == {n for n, o in plan.operators.items() if f"{o.module}.".startswith(f"{MLP}.")}
    first = find_module(plan, "mlp")
    assert first is not None
    assert first.path == "transformer.h.0.mlp"
    assert find_module(plan, "no such") is None
    with pytest.raises(InputError, match="modules of 2 kinds go by it"):
        find_module(plan, "c_proj")


def test_what_a_module_costs_is_what_its_operators_do(explained: ExplanationDocument, folder: Path) -> None:
    plan = read_plan(folder / "free" / "plan.json")
    m, found = explained.module, find_module(plan, MLP)
    assert m is not None
    assert found is not None
    assert (m.module, m.operators, m.alike) == (MLP, len(found.operators), 2)
    assert m.own_s == pytest.approx(own(plan, found.operators))
    assert m.alike_s == pytest.approx(sum(own(plan, names) for names in found.alike))
    assert sum(m.parts_s.values()) == pytest.approx(m.own_s)
    assert sum(s.own_s for s in m.splits) == pytest.approx(m.own_s)
    assert sorted(n for s in m.splits for n in s.operators) == sorted(found.operators)
    everything = sum(sent_bytes(plan).values())
    of_each = [sum(sent_bytes(plan, frozenset([n])).values()) for n in plan.operators]
    assert sum(of_each) == pytest.approx(everything, abs=len(of_each))
    weights = sum(4 * SIZES["hidden"] * SIZES["hidden"] for _ in m.products) + 5 * SIZES["hidden"]
    assert m.trained
    held = held_of_parameters(plan)
    assert m.parameter_bytes == round(sum(size for t, size in held.items() if t.startswith(MLP)))
    held = held_of_parameters(read_plan(folder / "known" / "plan.json"))
    # DDP keeps everything whole, and sums gradients in single precision.
    assert sum(size for t, size in held.items() if t.startswith(MLP)) == (2 + 4 + 12) * weights


@pytest.mark.parametrize(
    ("options", "precision"),
    [
        ("free", "bf16"), ("known", "bf16"), ("megatron:zero=1,micro_batch=4", "bf16"), ("fsdp", "bf16"),
        ("megatron:zero=2,micro_batch=4", "bf16"), ("megatron:zero=1,micro_batch=4", "fp32"),
        ("megatron:frozen=true,micro_batch=4", "bf16"),
    ],
)  # fmt: skip
def test_what_parameters_hold_is_what_the_plan_holds(
    folder: Path, tmp_path: Path, options: str, precision: str
) -> None:
    """Copies to compute with included, and gradients in the width in which they are summed."""
    at = folder / options
    if not at.exists():
        at = tmp_path
        asked = ["search", str(folder / "gpt.onnx"), "--devices", "2", "--no-cache", "--precision", precision]
        assert main([*asked, "--strategy", options, "--out", str(at)]) == 0
    plan = read_plan(at / "plan.json")
    kinds = plan.cost.memory_bytes
    assert kinds
    said = sum(kinds[k] for k in ("weights", "gradients", "optimizer"))
    assert sum(held_of_parameters(plan).values()) == pytest.approx(said, abs=3)


def test_a_module_s_alternative_splits_all_of_its_products_otherwise(
    explained: ExplanationDocument, tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the command that is printed finds it."""
    m = explained.module
    assert m is not None
    (best,) = m.alternatives
    plan = read_plan(folder / "free" / "plan.json")
    assert list(best.splits) == m.products == [f"{MLP}.c_fc.matmul", f"{MLP}.c_proj.matmul"]
    for name, split in best.splits.items():
        roles = [r.removeprefix("split:") for r in plan.operators[name].strategy.values() if r.startswith("split:")]
        assert set(split) != set(roles)
    assert best.difference_s >= 0
    program, *words = shlex.split(best.command)
    assert program == "planner"
    capsys.readouterr()
    assert main([*words, "--no-cache", "--json", "--out", str(tmp_path / "again")]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["step_time_s"] == pytest.approx(best.step_time_s, rel=1e-12)


def test_a_known_configuration_leaves_a_module_free_to_be_compared(folder: Path) -> None:
    """It pins every operator: without that no alternative would exist."""
    found = explanation(folder / "known" / "plan.json", "h.1.mlp", most=1)
    m = found.module
    assert m is not None
    assert m.freed == "--strategy ddp"
    assert m.alternatives
    assert not m.alternatives[0].command
    assert [s.text for s in m.splits] == ["DP 2"]
    text = explanation_text(found)
    assert "freed from --strategy ddp" in text
    assert "one of 2 equal modules" in text


def test_explanations_say_what_is_done_per_second(
    explained: ExplanationDocument, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(["evaluate", "--plan", str(folder / "free"), "--json"]) == 0
    priced = json.loads(capsys.readouterr().out)
    for key in ("samples_per_s", "tokens_per_s", "flops_per_s_per_device", "mfu"):
        assert getattr(explained.plan, key) == pytest.approx(priced[key], rel=1e-12)
    assert "tokens/s" in explanation_text(explained)


def test_a_sentence_is_shown_whole_and_one_stage_is_one(explained: ExplanationDocument) -> None:
    m = explained.module
    assert m is not None
    long = m.alternatives[0].model_copy(update={"why": "loses by " + "much more of everything, " * 30})
    of_one = explained.plan.model_copy(update={"stages": 1, "micro_batches": 2})
    changed = {"plan": of_one, "module": m.model_copy(update={"alternatives": [long]})}
    text = explanation_text(explained.model_copy(update=changed))
    assert f"    it {long.why}\n" in text
    assert ", 1 stage, 2 micro-batches\n" in text


def test_a_module_without_products_says_that_nothing_could_be_split(folder: Path) -> None:
    with pytest.raises(InputError, match="has none of this name"):
        explanation(folder / "free" / "plan.json", "h.7.mlp")
    found = explanation(folder / "free" / "plan.json", "transformer.h", most=1).module
    assert found is not None
    assert found.alike == 1
    assert len(found.products) == 2 * 6
