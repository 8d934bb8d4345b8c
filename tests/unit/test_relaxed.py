"""What no plan takes less than that fits in memory, by prices on it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from planner.builder import build
from planner.clock import play
from planner.cost_models import load_profile
from planner.errors import NotFasterError
from planner.frontends import import_bytes, load_model
from planner.ir import DeviceMesh
from planner.planning import Request, make_plan
from planner.planning.fit import fit, program_of_choice
from planner.planning.options import Option
from planner.planning.relaxed import least_step, least_step_that_fits
from planner.pricing import Machine, PricedProblem, Settings, active_tensors, bind_rules, price
from planner.search.control import Control
from planner.search.evaluate import evaluate
from planner.search.prices.repriced import Repriced
from planner.search.problem import Problem
from planner.search.reduction.reduced import Reduced
from planner.search.state import State

SAMPLES = Path(__file__).parents[2] / "sample_graphs"
FREE = Control(None)


def priced(model: str, shape: tuple[int, ...], machine: str, room: int, *, recompute: bool = False) -> PricedProblem:
    graph = load_model(SAMPLES / f"{model}.onnx", batch=16)
    rules, _ = bind_rules(graph)
    active = active_tensors(graph, rules)
    return price(
        graph,
        Machine(load_profile(machine), DeviceMesh.of(*shape), Settings(training=True, recompute=recompute)),
        rules,
        active,
        room,
    )


def choices(p: PricedProblem, count: int) -> Iterator[tuple[int, ...]]:
    """Some that hold little, at prices on memory from none to much, and what lies between them."""
    dual = Repriced(p.problem)
    least = evaluate(dual.free, dual.evaluate({}).choice) or 1
    row, most = int(dual.cuts[0].usage.argmax()), dual.cuts[0].usage.max()
    for factor in (0.01, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0):
        dual.evaluate({row: factor * least / most})
    pool = [c.choice for c in dual.cuts]
    yield from pool
    draw = random.Random(0)
    for _ in range(count):
        a, b = draw.choice(pool), draw.choice(pool)
        at = draw.randrange(len(a))
        mixed = (*a[:at], *b[at:])
        if evaluate(dual.free, mixed) is not None:
            yield mixed


@pytest.mark.parametrize(
    ("model", "machine", "recompute"),
    [
        (model, machine, again)
        for model in ("gpt_tiny", "mlp")
        for machine in ("a100-80", "ascend-910b")
        for again in (False, True)
    ]
    + [("moe_tiny", "a100-80", True)],
)
def test_no_plan_that_fits_is_faster_than_prices_on_memory_say(model: str, machine: str, recompute: bool) -> None:
    for shape in ((4,), (2, 2)) if model != "moe_tiny" else ((2, 2),):  # to which messages are passed
        whole = priced(model, shape, machine, 2**50, recompute=recompute)
        simulated = [
            (found.held, play(whole, found.choice, program_of_choice(whole, found.choice)).end)
            for choice in choices(whole, 20)
            if (found := fit(whole, choice)) is not None
        ]
        sizes = sorted(held for held, _ in simulated)
        for room in {sizes[0], sizes[len(sizes) // 4], sizes[len(sizes) // 2]}:
            option = Option(whole.machine.mesh, recompute, priced(model, shape, machine, room, recompute=recompute))
            least = least_step_that_fits(option, FREE, float("inf"))
            assert least <= min(end for held, end in simulated if held <= room)
            assert least > 0


@pytest.mark.parametrize("model", ["gpt_tiny", "mlp"])
def test_a_problem_is_not_made_smaller_where_messages_on_it_are_enough(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pruned: list[bool] = []
    presolve = State.__init__.__globals__["presolve"]

    def counted(problem: Problem, *, like: Reduced | None, prune: bool) -> Reduced:
        pruned.append(prune)
        return presolve(problem, like=like, prune=prune)

    monkeypatch.setitem(State.__init__.__globals__, "presolve", counted)
    option = Option(DeviceMesh.of(2, 2), False, priced(model, (2, 2), "a100-80", 2**50))
    assert option.priced is not None
    ends = [play(option.priced, c, program_of_choice(option.priced, c)).end for c in choices(option.priced, 10)]
    closest, narrow = least_step(option, FREE, float("inf"), narrow=False)
    assert 0 < closest <= min(ends)
    assert not narrow
    assert pruned == [False, True]
    enough, _ = least_step(option, FREE, 0.5 * closest, narrow=False)
    assert 0.5 * closest <= enough <= min(ends)
    assert pruned == [False, True, False]


def test_memory_raises_the_bound_where_it_binds() -> None:
    sizes = {"layers": 4, "hidden": 1024, "heads": 8, "vocab": 512, "seq": 512, "batch": 16, "attention": "fused"}
    graph = import_bytes(build("gpt", sizes).SerializeToString(), name="gpt")
    rules, _ = bind_rules(graph)
    machine = Machine(load_profile("a100-80"), DeviceMesh.of(2, 4), Settings(training=True))
    whole = price(graph, machine, rules, active_tensors(graph, rules), 2**50)
    free = fit(whole, Repriced(whole.problem).evaluate({}).choice)
    assert free is not None
    option = Option(machine.mesh, False, price(graph, machine, rules, active_tensors(graph, rules), free.held // 2))
    without, _ = least_step(option, FREE, float("inf"), narrow=True)
    assert least_step_that_fits(option, FREE, float("inf")) > 1.01 * without


def test_a_mesh_is_left_alone_where_nothing_that_fits_is_faster_than_what_is_known() -> None:
    sizes = {"layers": 4, "hidden": 4096, "heads": 32, "vocab": 32000, "seq": 2048, "batch": 16, "attention": "fused"}
    graph, profile = import_bytes(build("gpt", sizes).SerializeToString(), name="gpt"), load_profile("a100-80")
    free = make_plan(graph, Request(8, profile, Settings(True)))
    lines: list[str] = []
    limit, known = int(0.6 * free.peak_memory_bytes), 1.02 * free.step_time_s
    with pytest.raises(NotFasterError) as e:
        make_plan(graph, Request(8, profile, Settings(True), memory_limit=limit, known_step_s=known), lines.append)
    assert any("a step that fits takes at least" in line for line in lines)
    assert not any("prices on memory" in line for line in lines)
    assert e.value.bound_s == known  # of all meshes, with recomputation and without
