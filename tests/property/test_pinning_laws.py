"""Laws of pins on small random graphs: the pinned optimum is the optimum over the choices that hold the pins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest

from planner.cost_models import load_profile
from planner.errors import InputError
from planner.frontends import import_bytes
from planner.ir import DeviceMesh, Graph, Layout
from planner.planning.constraints import Constraints, Unfit, apply, contradiction, parse_constraints, resolve
from planner.planning.constraints.values import OperatorPin, ParameterPin, TensorPin
from planner.pricing import Machine, PricedProblem, Settings, active_tensors, bind_rules, price
from planner.rules.strategy import Strategy
from planner.search.brute import brute_force
from planner.search.problem import Edge, Node, Problem
from planner.search.solve import solve
from tests.unit.semantics_model import chain

PROFILE = replace(load_profile("alpha-beta"), heavy_operators_must_split=False)
ROUNDS = 100
Pin = OperatorPin | TensorPin | ParameterPin


@dataclass(frozen=True)
class Case:
    """A pin in the file's notation with what it means, written a second time: of an operator's strategy, or of a
    parameter's stored layout."""

    line: str
    section: str
    name: str
    holds: Callable[[Strategy], bool] = lambda _: True
    stored: str = ""


def priced_problem(mesh: DeviceMesh, products: int, training: bool) -> PricedProblem:
    graph = import_bytes(chain(4, 4, products=products))
    rules, _ = bind_rules(graph)
    active = active_tensors(graph, rules) if training else frozenset[str]()
    return price(graph, Machine(PROFILE, mesh, Settings(training, "fp32")), rules, active, None)


def split_counts(layouts: tuple[Layout | None, ...], mesh: DeviceMesh) -> list[list[int]]:
    return [[mesh.size(d) for d in x.dims] for x in layouts if x is not None]


def roles(s: Strategy, mesh: DeviceMesh) -> dict[str, str]:
    return {a: r.factor for a, r in zip(mesh.names, s.roles, strict=True) if r.kind == "split"}


def random_pin(priced: PricedProblem, rng: np.random.Generator) -> Case:
    """Mostly what some state offers; sometimes what none does."""
    mesh = priced.machine.mesh
    if rng.random() < 0.3:
        name = str(rng.choice(list(priced.parameter_nodes)))
        layouts = priced.stored_layouts[name]
        text = str(layouts[int(rng.integers(len(layouts)))])
        return Case(f"{{match: {name}, stored: '{text}'}}", "parameters", name, stored=text)
    name = str(rng.choice(list(priced.op_nodes)))
    offered = priced.tables[name].strategies
    example = offered[int(rng.integers(len(offered)))]
    kind = rng.choice(["strategy", "roles", "shard", "result"])
    if kind == "strategy":
        wanted = roles(example, mesh)
        factors: dict[str, list[str]] = {}
        for axis, factor in wanted.items():
            factors.setdefault(factor, []).append(axis)
        text = ", ".join(f"{f}: [{', '.join(a)}]" for f, a in factors.items())
        return Case(f"{{match: {name}, strategy: {{{text}}}}}", "operators", name, lambda s: roles(s, mesh) == wanted)
    if kind == "roles":
        i = int(rng.integers(len(mesh.names)))
        role = example.roles[i]
        text = {"split": f"split:{role.factor}", "linear": f"linear:{role.group}"}.get(role.kind, role.kind)
        line = f"{{match: {name}, roles: {{{mesh.names[i]}: '{text}'}}}}"
        return Case(line, "operators", name, lambda s: s.roles[i] == role)
    if kind == "shard" or example.results[0] is None:
        counts = split_counts(example.operands, mesh)
        if any(x is None for x in example.operands):
            return Case(f"{{match: {name}, strategy: replicated}}", "operators", name, lambda s: not roles(s, mesh))
        line = f"{{match: {name}, shard: {counts}}}"
        return Case(line, "operators", name, lambda s: split_counts(s.operands, mesh) == counts)
    produced = str(example.results[0])
    line = f"{{match: {name}, produced: '{produced}'}}"
    return Case(line, "tensors", name, lambda s: str(s.results[0]) == produced)


def sliced(priced: PricedProblem, cases: list[Case]) -> Problem | None:
    """The problem with the states alone that hold the pins; None where a node has none."""
    kept = [np.arange(len(n.costs)) for n in priced.problem.nodes]
    for case in cases:
        if case.section == "parameters":
            node = priced.parameter_nodes[case.name]
            good = [str(x) == case.stored for x in priced.stored_layouts[case.name]]
        else:
            node = priced.op_nodes[case.name]
            good = [case.holds(s) for s in priced.tables[case.name].strategies]
        kept[node] = np.intersect1d(kept[node], np.flatnonzero(good))
    if any(not len(k) for k in kept):
        return None
    nodes = [Node(n.costs[k]) for n, k in zip(priced.problem.nodes, kept, strict=True)]
    return Problem(nodes, [Edge(e.u, e.v, e.costs[np.ix_(kept[e.u], kept[e.v])]) for e in priced.problem.edges])


def constraints(cases: list[Case]) -> Constraints:
    lines = ["schema: planner.constraints/1"]
    for section in ("operators", "tensors", "parameters"):
        own = [c.line for c in cases if c.section == section]
        lines += [f"{section}:", *(f"  - {line}" for line in own)] if own else []
    return parse_constraints("\n".join(lines), "pins.yaml")


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("shape", [(2,), (2, 2)])
def test_the_pinned_optimum_is_the_optimum_of_what_the_pins_leave(shape: tuple[int, ...], training: bool) -> None:
    rng = np.random.default_rng(len(shape) + 10 * training)
    mesh = DeviceMesh.of(*shape)
    priced = priced_problem(mesh, 1 if len(shape) > 1 else 2, training)
    graph: Graph = priced.graph
    seen = {"optimal": 0, "infeasible": 0}
    for _ in range(ROUNDS):
        cases = [random_pin(priced, rng) for _ in range(int(rng.integers(1, 4)))]
        pins = resolve(constraints(cases), graph, priced.rules)
        pinned = apply(priced, pins)
        left = sliced(priced, cases)
        reference = None if left is None else solve(left)
        if left is not None and np.prod([float(len(n.costs)) for n in left.nodes]) < 200_000:
            assert reference is not None
            assert brute_force(left).cost == reference.cost
        if isinstance(pinned, Unfit):
            assert reference is None or reference.status == "infeasible"
            seen["infeasible"] += 1
            continue
        assert left is not None
        assert reference is not None
        found = solve(pinned.problem)
        assert found.status == reference.status
        assert found.cost == reference.cost
        assert (contradiction(priced, pins) is None) == (found.status == "optimal")
        seen[found.status] += 1
        if found.status == "optimal":
            assignment = priced.decode(found.choice)
            for case in cases:
                if case.section == "parameters":
                    assert str(assignment.stored[case.name]) == case.stored
                else:
                    assert case.holds(assignment.strategies[case.name])
    assert min(seen.values()) > 2, seen


def test_every_pin_of_a_smallest_conflict_is_needed() -> None:
    """Dropping any pin that a message names leaves a plan; the others were not needed for the contradiction."""
    rng = np.random.default_rng(5)
    priced = priced_problem(DeviceMesh.of(2), 2, training=True)
    told = 0
    for _ in range(3 * ROUNDS):
        cases = [random_pin(priced, rng) for _ in range(6)]
        whole = constraints(cases)
        why = contradiction(priced, resolve(whole, priced.graph, priced.rules))
        if why is None:
            continue
        told += 1
        every: list[Pin] = [*whole.operators, *whole.tensors, *whole.parameters]
        named = [p for p in every if f"{p.where}:" in why.message]
        assert named

        def of(chosen: list[Pin], whole: Constraints = whole) -> Constraints:
            return Constraints(
                "pins.yaml",
                operators=tuple(p for p in whole.operators if p in chosen),
                tensors=tuple(p for p in whole.tensors if p in chosen),
                parameters=tuple(p for p in whole.parameters if p in chosen),
            )

        def contradicts(chosen: list[Pin], of: Callable[[list[Pin]], Constraints] = of) -> bool:
            try:
                return contradiction(priced, resolve(of(chosen), priced.graph, priced.rules)) is not None
            except InputError:
                return True

        assert contradicts(list(named))
        for p in named:
            assert not contradicts([q for q in named if q is not p])
    assert told > 10
