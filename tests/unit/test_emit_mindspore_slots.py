"""What MindSpore's checkpoint tools need of strategy files: slots, names, and every stage."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from planner.cli.main import main
from planner.emit.mindspore import check_parameter_names, emit_mindspore
from planner.emit.mindspore.slots import PREFIXES, with_slots
from planner.emit.mindspore.strategy import strategies_of_plan
from planner.emit.mindspore.strategy_map import StrategyMap, from_bytes
from planner.emit.names import Name
from planner.errors import InputError
from planner.planning import PlanDocument, read_plan, write_plan
from tests.unit.emit_golden import FOLDER


def plan_of(case: str) -> PlanDocument:
    return read_plan(FOLDER / "plans" / f"{case}.json")


def own_names(plan: PlanDocument) -> dict[str, Name]:
    return {n: Name(n) for n in plan.parameters}


def with_schedule(plan: PlanDocument, **changes: object) -> PlanDocument:
    return plan.model_copy(update={"schedule": plan.schedule.model_copy(update=changes)})


@pytest.mark.parametrize("form", ["ckpt", "json"])
@pytest.mark.parametrize(
    ("optimizer", "prefixes"),
    [("adam", ["moment1", "moment2", "adam_m", "adam_v"]), ("momentum", ["moments"]), ("sgd", ["accum", "stat"])],
)
def test_slots_lie_as_their_parameters(optimizer: str, prefixes: Sequence[str], form: str) -> None:
    plan = with_schedule(plan_of("mlp-zero"), optimizer=optimizer)
    found = from_bytes(emit_mindspore(plan, own_names(plan)).files[f"strategy.{form}"], "x").parameters
    assert set(found) == {*plan.parameters, *(f"{p}.{n}" for p in prefixes for n in plan.parameters)}
    for n in plan.parameters:
        assert found[n].arrangement.optimizer_shards == 8
        assert all(found[f"{p}.{n}"] == found[n] for p in prefixes)


def test_of_a_pipeline_every_stage_has_its_own_slots() -> None:
    plan = plan_of("mlp-pipeline")
    files = emit_mindspore(plan, own_names(plan)).files
    merged = from_bytes(files["strategy_merged.ckpt"], "x").parameters
    for stage in range(2):
        own = from_bytes(files[f"strategy_stage{stage}.ckpt"], "x").parameters
        assert {n for n in merged if n.startswith(f"{stage}-")} == {f"{stage}-{n}" for n in own}
        weights = [n for n in own if n in plan.parameters]
        assert weights
        assert all(f"{p}.{n}" in own for n in weights for p in PREFIXES["adam"])


def test_only_what_is_trained_has_slots() -> None:
    plan = plan_of("mlp-data")
    first = next(iter(plan.parameters))
    frozen = plan.parameters[first].model_copy(update={"optimizer": None, "gradient": None})
    plan = plan.model_copy(update={"parameters": {**plan.parameters, first: frozen}})
    found = from_bytes(emit_mindspore(plan, own_names(plan)).files["strategy.ckpt"], "x").parameters
    assert first in found
    assert not any(n.endswith(f".{first}") for n in found)


def test_a_parameter_that_is_called_like_a_slot_stays_what_it_is() -> None:
    plan = plan_of("mlp-zero")
    a, b = list(plan.parameters)[:2]
    names = own_names(plan) | {a: Name("w"), b: Name("moment1.w")}
    own = strategies_of_plan(plan, names).map
    found = with_slots(own, plan, names).parameters
    assert found["moment1.w"] is own.parameters["moment1.w"]
    assert found["moment1.moment1.w"] is own.parameters["moment1.w"]


def test_slots_are_no_parameters_of_the_network() -> None:
    plan = plan_of("gpt-recompute")
    text = emit_mindspore(plan, own_names(plan)).files["parallel.py"].decode()
    assert "moment1" not in text


def test_a_name_that_mindspore_takes_for_a_stage_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = plan_of("mlp-data")
    first = next(iter(plan.parameters))
    check_parameter_names(own_names(plan))
    with pytest.raises(InputError, match=f"parameter {first} is called 'layer-0.weight' in the network"):
        check_parameter_names(own_names(plan) | {first: Name("layer-0.weight")})
    write_plan(plan, tmp_path / "plan.json")
    names = tmp_path / "names.json"
    names.write_text(f'{{"parameters": {{"{first}": "layer-0.weight"}}}}', encoding="utf-8")
    arguments = ["emit", str(tmp_path / "plan.json"), "--target", "mindspore", "--out", str(tmp_path / "o")]
    assert main([*arguments, "--names", str(names)]) == 3
    assert "layer-0.weight" in capsys.readouterr().err
    assert main(arguments) == 0


def test_a_stage_without_parameters_is_refused() -> None:
    """Its strategy file would be empty, and half of the ranks would be left out of a transform, without an error."""
    plan = plan_of("mlp-pipeline")
    operators = {n: o.model_copy(update={"stage": 0}) for n, o in plan.operators.items()}
    last = next(reversed(operators))
    operators[last] = operators[last].model_copy(update={"stage": 1})
    with pytest.raises(InputError, match="stage 1 of 2 reads no parameter"):
        emit_mindspore(plan.model_copy(update={"operators": operators}), own_names(plan))


def test_slots_of_no_parameters_are_none() -> None:
    plan = plan_of("mlp-data")
    assert with_slots(StrategyMap(), plan, own_names(plan)) == StrategyMap()
