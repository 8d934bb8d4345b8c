"""A sibling runs the plan's own strategies and redistributions for the blocks it keeps, and says which blocks these
stand for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from planner.errors import VerificationError
from planner.frontends.resized.siblings import cut_blocks, removable_runs
from planner.lowering import Program
from planner.planning.programs import assignment_of, program_of
from planner.verify import verification
from planner.verify.blocks import cuts, represented
from planner.verify.check import verify_program
from planner.verify.sibling import Siblings, make_sibling
from planner.verify.work import Budget, ExecutionCost, work_of
from tests.mutation.plans import Case, Made, gpt, make

LAYERS = 10


def deep() -> object:
    return gpt(LAYERS)


def plan(folder: Path, *options: str) -> Made:
    return make(Case("deep", deep, ("--devices", "4", *options)), folder)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def uniform(tmp_path_factory: pytest.TempPathFactory) -> Made:
    pins = ("*.c_attn.matmul b0=x n=y", "*.attn.c_proj.matmul b0=x k=y", "*.c_fc.matmul b0=x n=y",
            "*.mlp.c_proj.matmul b0=x k=y")  # fmt: skip
    return plan(tmp_path_factory.mktemp("uniform"), "--mesh", "2x2", *(o for p in pins for o in ("--pin", p)))


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """The third and the fifth block are split otherwise than the others."""
    odd = ("*.h.2.mlp.c_fc.matmul n=x", "*.h.4.mlp.c_fc.matmul k=x", "*.h.2.ln_1.layernormalization d1=x")
    pins = ("rest=data_parallel", *odd)
    return plan(tmp_path_factory.mktemp("mixed"), "--mesh", "4", *(o for p in pins for o in ("--pin", p)))


def small(made: Made) -> Budget:
    whole = sum(t.elements * 4 for t in made.graph.parameters)
    return Budget(flops=1e12, parameter_bytes=whole - 1)


def travels(program: Program) -> set[tuple[object, ...]]:
    return {(c.tensor, c.gradient, c.source, c.target, c.steps, c.reader) for c in program.redistributions()}


@pytest.mark.parametrize("which", ["uniform", "mixed"])
def test_what_is_kept_travels_as_the_plan_says(which: str, request: pytest.FixtureRequest) -> None:
    made: Made = request.getfixturevalue(which)
    program = program_of(made.plan, made.graph)
    sibling = make_sibling(made.plan, made.graph, program, small(made))
    assert len(sibling.graph.ops) < len(made.graph.ops)
    for op in sibling.graph.ops:
        assert sibling.program.strategies[op.name].roles == program.strategies[op.name].roles
    known = {way[1:-1] for way in travels(program)}
    new = [way for way in travels(sibling.program) if way[1:-1] not in known]
    assert not new or "conversions between blocks" in sibling.description
    kept = {t for op in sibling.graph.ops for t in op.outputs}
    own = {w for w in travels(program) if w[0] in kept and (not w[5] or w[5] in kept)}
    missing = own - travels(sibling.program)
    ends = {w[0] for w in missing}
    assert ends <= _at_cuts(made, sibling.program), "only at the ends of what was cut may travels differ"
    assert verify_program(sibling.program).ok


def _at_cuts(made: Made, program: Program) -> set[object]:
    """Tensors that other operators read in the sibling than in the model."""
    now, before = program.graph.consumers, made.graph.consumers
    return {
        t
        for t in program.graph.tensors
        if {o.name for o, _ in now.get(t, ())} != {o.name for o, _ in before.get(t, ())}
    }


def test_blocks_that_are_treated_alike_stand_for_each_other(uniform: Made) -> None:
    program = program_of(uniform.plan, uniform.graph)
    lines = make_sibling(uniform.plan, uniform.graph, program, small(uniform)).stands_for
    assert any("the same layouts and redistributions" in line for line in lines)
    assert not any("NOT" in line for line in lines)


def test_blocks_that_are_treated_otherwise_are_kept(mixed: Made) -> None:
    assignment = assignment_of(mixed.plan, mixed.graph)
    (run,) = removable_runs(mixed.graph)
    (cut,) = cuts(mixed.graph, [run], assignment, 0)
    assert {2, 4} <= set(cut.remaining)
    # Where only the first may stay, what it does not stand for is said.
    (first,) = cuts(mixed.graph, [run], assignment, 2)
    assert first.remaining == (0,)
    assert any("NOT executed" in line for line in represented(mixed.graph, first, assignment))


def test_a_wrong_redistribution_of_a_kept_block_is_noticed(uniform: Made) -> None:
    """It was not, while siblings found their redistributions anew."""
    plan = uniform.plan
    moves = [r for r in plan.redistributions if "h.1." in r.tensor and r.direction == "gradient"]
    assert moves
    gone = plan.model_copy(update={"redistributions": [r for r in plan.redistributions if r is not moves[0]]})
    program = program_of(gone, uniform.graph)
    with pytest.raises(Exception, match="sibling of"):
        make_sibling(gone, uniform.graph, program, small(uniform))


def test_a_budget_after_others_takes_what_it_would_take_alone(uniform: Made) -> None:
    """Budgets share what was cut and shrunk."""
    program = program_of(uniform.plan, uniform.graph)
    whole = work_of(uniform.graph)
    shared = Siblings(uniform.plan, uniform.graph, program)
    for part in (0.5, 0.06, 0.2, 0.5):
        budget = Budget(flops=whole.flops * part)
        alone = make_sibling(uniform.plan, uniform.graph, program, budget)
        found = shared.within(budget)
        assert (found.description, found.stands_for) == (alone.description, alone.stands_for)
        assert found.program.instructions == alone.program.instructions
        assert budget.holds(work_of(found.graph))
    with pytest.raises(VerificationError, match="more than is executed here"):
        shared.within(Budget(flops=1.0))


def test_what_comes_and_goes_may_be_more_than_what_is_there_at_once() -> None:
    """Inference lets a result go after its last reader."""
    work = ExecutionCost(flops=1.0, parameter_bytes=1, activation_bytes=10 << 30, held_bytes=1 << 30)
    assert not Budget(flops=1.0).holds(work)
    assert Budget(flops=1.0, activation_bytes=20 << 30).holds(work)
    assert not Budget(flops=1.0, activation_bytes=20 << 30).holds(replace(work, held_bytes=3 << 30))


def test_cutting_nothing_is_the_graph_itself(uniform: Made) -> None:
    assert cut_blocks(uniform.graph, [])[0] is uniform.graph


def test_a_sibling_may_take_as_much_as_a_whole_graph(uniform: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was no verdict where only the whole was too large, and siblings had a lower limit."""
    whole = work_of(uniform.graph)
    monkeypatch.setattr(verification, "TRAINING", Budget(flops=whole.flops * 0.9))
    monkeypatch.setattr(verification, "SIBLINGS", (Budget(flops=1.0),))
    found = verification.verify(uniform.plan, uniform.graph)
    assert found.sibling
    assert found.verdict == "ok"
