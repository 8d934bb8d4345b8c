"""Searches under a memory limit that binds: known configurations, prices on memory, what is in hand when."""

from __future__ import annotations

import itertools
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from planner.cost_models import load_profile
from planner.errors import InfeasibleError
from planner.frontends import load_model
from planner.ir import DeviceMesh, Graph
from planner.planning import Planned, Request, make_plan
from planner.planning.fit import Fitted, fit
from planner.planning.schemes import parse_strategy
from planner.planning.schemes.pins import constraints_of_configuration
from planner.planning.shapes import shapes
from planner.planning.walk import walk
from planner.pricing import Machine, PricedProblem, Settings, active_tensors, bind_rules, price
from planner.search.control import Control
from planner.search.evaluate import evaluate
from planner.search.prices.repriced import Repriced
from planner.search.problem import Edge, Node, Problem

MODELS = Path(__file__).parents[2] / "sample_graphs"
PROFILE = load_profile("a100-80")
SETTINGS = Settings(training=True)
DEVICES = 4


@pytest.fixture(scope="module")
def graph() -> Graph:
    return load_model(MODELS / "gpt_tiny.onnx", batch=8)


@pytest.fixture(scope="module")
def free(graph: Graph) -> Planned:
    return make_plan(graph, Request(DEVICES, PROFILE, SETTINGS, recompute="none"))


def priced(graph: Graph, mesh: DeviceMesh, limit: int | None) -> PricedProblem:
    rules, _ = bind_rules(graph)
    return price(graph, Machine(PROFILE, mesh, SETTINGS), rules, active_tensors(graph, rules), limit)


def pinned(graph: Graph, scheme: str) -> Planned:
    c = parse_strategy(scheme, devices=DEVICES, batch=8, precision="bf16", optimizer="adam")
    pins = constraints_of_configuration(graph, c, scheme)
    return make_plan(graph, Request(DEVICES, PROFILE, SETTINGS, recompute="none", constraints=pins))


@pytest.mark.parametrize("scheme", ["ddp", "fsdp", "hsdp:shard=2"])
def test_no_plan_under_a_limit_is_worse_than_a_known_configuration_that_fits(graph: Graph, scheme: str) -> None:
    known = pinned(graph, scheme)
    limit, cost = known.peak_memory_bytes, known.solution.cost
    assert cost is not None
    problem = priced(graph, known.mesh, limit)
    walked = walk(problem, Control(), weighed_shapes(problem))
    assert walked.fitted is not None
    assert walked.fitted.held <= limit
    assert walked.bound <= walked.fitted.cost <= cost


def weighed_shapes(problem: PricedProblem) -> list[Fitted]:
    unlimited = replace(problem, problem=replace(problem.problem, limit=None))
    return [f for c in shapes(unlimited) if (f := fit(unlimited, c)) is not None]


@pytest.mark.parametrize("wide", [True, False])
def test_no_configuration_below_the_cutoff_is_left_out(
    graph: Graph, wide: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`wide`: by message passing, as where elimination is too wide; what is left out costs no less than the cutoff."""
    if wide:
        monkeypatch.setattr(import_module("planner.search.prices.repriced"), "LIGHT", 0)
    problem = priced(graph, DeviceMesh.of(2, 2), None)

    def costs(cutoff: float) -> list[int]:
        return [c for s in shapes(problem, cutoff=lambda: cutoff) if (c := evaluate(problem.problem, s)) is not None]

    every = sorted(costs(float("inf")))
    for cutoff in (every[0], every[len(every) // 2], every[-1] + 1):
        found = costs(cutoff)
        assert sorted(c for c in found if c < cutoff) == [c for c in every if c < cutoff]
    assert wide <= (len(costs(every[0])) < len(every))


def test_shapes_hold_what_known_configurations_do(graph: Graph) -> None:
    found = weighed_shapes(priced(graph, DeviceMesh.of(DEVICES), None))
    for scheme in ("ddp", "fsdp"):
        known = pinned(graph, scheme)
        cost = known.solution.cost
        assert cost is not None
        assert any(f.cost <= cost and f.held <= known.peak_memory_bytes for f in found), scheme


def test_plans_are_handed_on_as_they_are_found_and_only_get_better(graph: Graph, free: Planned) -> None:
    problem = priced(graph, DeviceMesh.of(2, 2), free.peak_memory_bytes * 7 // 10)
    known = weighed_shapes(problem)
    handed: list[Fitted] = []
    walked = walk(problem, Control(), known, offer=handed.append)
    assert handed
    assert walked.fitted == handed[-1]
    assert walked.smallest is not None
    limit = problem.problem.limit
    assert limit is not None
    for before, after in itertools.pairwise(handed):
        assert (after.cost, after.held) < (before.cost, before.held)
    for f in handed:
        assert f.held <= limit
        assert f.cost >= walked.bound
        assert f.held >= walked.smallest.held
    assert all(walked.fitted.cost <= f.cost for f in known if f.held <= limit)


def test_a_walk_that_is_stopped_keeps_what_was_known(graph: Graph, free: Planned) -> None:
    problem = priced(graph, DeviceMesh.of(2, 2), free.peak_memory_bytes)
    known = weighed_shapes(problem)
    control = Control()
    control.cancel.set()
    walked = walk(problem, control, known)
    fits = [f for f in known if f.held <= free.peak_memory_bytes]
    assert walked.fitted == min(fits, key=lambda f: (f.cost, f.held), default=None)


def test_where_nothing_fits_the_least_that_was_found_is_told(graph: Graph, free: Planned) -> None:
    request = Request(DEVICES, PROFILE, SETTINGS, recompute="none", memory_limit=free.peak_memory_bytes // 50)
    with pytest.raises(InfeasibleError) as error:
        make_plan(graph, request)
    sufficient, least = error.value.sufficient_bytes, error.value.lower_bound_bytes
    assert sufficient is not None
    assert least is not None
    assert free.peak_memory_bytes // 50 < least <= sufficient


def layers(count: int) -> Problem:
    """Equal layers, each dear and lean or cheap and fat, in a chain on which changing over costs something."""
    nodes = [Node(np.array([0, 100]), np.array([10, 1]), (0, 9)) for _ in range(count)]
    change = np.array([[0, 5], [5, 0]])
    return Problem(nodes, [Edge(k, k + 1, change) for k in range(count - 1)], None)


def test_a_tilt_parts_equal_layers() -> None:
    problem = layers(10)
    dual = Repriced(problem)
    for price_of in (11.0, 11.2):
        assert len(set(dual.evaluate({0: price_of}).choice)) == 1, "one price treats them all alike"
    tilted = dual.tilted({0: 11.1}, np.where(np.arange(10) < 4, 2.0, 0.5))
    assert tilted.choice == (1,) * 4 + (0,) * 6
    assert len(dual.values) == 2, "a tilt bounds nothing"


def drawn(seed: int) -> Problem:
    rng = np.random.default_rng(seed)
    nodes = [Node(rng.integers(0, 99, 4), rng.integers(0, 50, 4), (0, 9)) for _ in range(8)]
    return Problem(nodes, [Edge(k, k + 1, rng.integers(0, 99, (4, 4))) for k in range(7)], 120)


@pytest.mark.parametrize("seed", range(6))
def test_messages_bound_from_below_and_never_choose_worse_than_a_start(seed: int) -> None:
    problem = drawn(seed)
    exact, other = Repriced(problem), Repriced(problem, starts=[(0,) * 8])
    other.light = False
    for price_of in (0.0, 0.5, 3.0):
        prices = {0: price_of}
        best, found = exact.evaluate(prices), other.evaluate(prices)
        least = best.cost + price_of * float(best.usage[0])
        assert other.values[-1][1] <= least + 1e-6
        start = evaluate(other.free, (0,) * 8)
        assert start is not None
        assert found.cost + price_of * float(found.usage[0]) <= start + price_of * float(other.usage((0,) * 8)[0]) + 8
