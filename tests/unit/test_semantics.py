"""docs/semantics.md, executed: its tables by hand, its space by brute force, its optimum by every solver."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from cost_models import load_profile
from planner.frontends import import_bytes
from planner.ir import DeviceMesh, Graph, Layout
from planner.lowering import Convert, Program, Run, lower
from planner.pricing import Machine, PricedProblem, Settings, active_tensors, bind_rules, price
from planner.pricing.hubs import SetHub, StarHub
from planner.redistribute import Redistributions
from planner.redistribute.steps import FREE
from planner.search.brute import brute_force
from planner.search.evaluate import peak_memory
from planner.search.memory import minimum_memory
from planner.search.problem import FORBIDDEN, Edge, Node, Problem
from planner.search.solve import solve
from planner.verify.check import verify_program
from tests.unit.semantics_model import (
    Array,
    Distances,
    Pair,
    Place,
    Sizes,
    all_roles,
    chain,
    fan,
    mlp,
    pairs_of,
    places,
    transformer,
)

PAGE = Path(__file__).parents[2] / "docs" / "semantics.md"


def table(title: str) -> list[list[str]]:
    """Cells of the table that follows the marker `<!-- table: title -->` in the page."""
    lines = PAGE.read_text(encoding="utf-8").split(f"<!-- table: {title} -->\n")[1].splitlines()
    rows = itertools.takewhile(lambda line: line.startswith("|"), lines)
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in itertools.islice(rows, 2, None)]


def priced(model: bytes, profile: str, *mesh: int) -> PricedProblem:
    graph = import_bytes(model, name="semantics", bind={}, batch=None)
    rules, without_rule = bind_rules(graph)
    assert not without_rule
    machine = Machine(load_profile(profile), DeviceMesh.of(*mesh), Settings(training=True))
    return price(graph, machine, rules, active_tensors(graph, rules), None)


def restricted(problem: Problem, keep: dict[int, Sequence[int]]) -> Problem:
    """The problem in which node n has the states `keep[n]` alone; nodes not named keep all."""
    states = [np.asarray(keep.get(n, range(len(node.costs)))) for n, node in enumerate(problem.nodes)]

    def of_node(n: int, node: Node) -> Node:
        return replace(node, costs=node.costs[states[n]], usage=None if node.usage is None else node.usage[states[n]])

    def of_edge(e: Edge) -> Edge:
        rows = np.ix_(states[e.u], states[e.v])
        return replace(e, costs=e.costs[rows], usage=None if e.usage is None else e.usage[rows])

    return replace(
        problem, nodes=[of_node(*x) for x in enumerate(problem.nodes)], edges=list(map(of_edge, problem.edges))
    )


# The strategy by hand


@dataclass(frozen=True)
class ByHand:
    """Megatron with data parallelism, pinned, solved, decoded and lowered."""

    priced: PricedProblem
    rows: dict[str, list[str]]
    program: Program
    cost: int


@pytest.fixture(scope="module")
def by_hand() -> ByHand:
    p = priced(transformer(), "a100-80", 2, 2)
    rows = {row[0]: row[1:] for row in table("ends")}
    rows |= {f"l{i}.{row[0]}": row[1:] for i in (0, 1) for row in table("layer")}
    assert set(rows) == set(p.op_nodes)
    nodes = list(p.problem.nodes)

    def keep(node: int, allowed: list[bool]) -> None:
        assert allowed.count(True) == 1, nodes[node].name
        nodes[node] = replace(nodes[node], costs=np.where(allowed, nodes[node].costs, FORBIDDEN))

    for name, node in p.op_nodes.items():
        keep(node, [[str(r) for r in s.roles] == rows[name][:2] for s in p.tables[name].strategies])
    for name, node in p.parameter_nodes.items():
        ((reader, slot),) = p.graph.consumers[name]
        stored = rows[reader.name][2].split()[slot]
        keep(node, [str(layout) == stored for layout in p.stored_layouts[name]])
    solution = solve(replace(p.problem, nodes=nodes))
    assert solution.status == "optimal" and solution.cost is not None
    program = lower(p.graph, p.machine.mesh, p.rules, p.active, p.decode(solution.choice))
    return ByHand(p, rows, program, solution.cost)


def test_layouts_are_those_written_by_hand(by_hand: ByHand) -> None:
    def text(layouts: Sequence[Layout | None], names: Sequence[str], shown: Callable[[str], bool]) -> str:
        pairs = zip(layouts, names, strict=True)
        return " ".join("-" if x is None or not shown(n) else str(x) for x, n in pairs)

    active = by_hand.priced.active.__contains__
    for op in by_hand.priced.graph.ops:
        s = by_hand.program.strategies[op.name]
        found = [
            text(s.operands, op.inputs, lambda _: True),
            text(s.operand_gradients, op.inputs, active),
            text(s.results, op.outputs, lambda _: True),
            text(s.result_gradients, op.outputs, active),
        ]
        assert found == by_hand.rows[op.name][2:], op.name


def test_redistributions_are_those_written_by_hand(by_hand: ByHand) -> None:
    expected = [tuple(row) for row in table("other travels")]
    expected += [(f"l{i}.{row[0]}", *row[1:]) for i in (0, 1) for row in table("layer travels")]
    for name in by_hand.priced.parameter_nodes:
        ((reader, slot),) = by_hand.priced.graph.consumers[name]
        stored = by_hand.rows[reader.name][2].split()[slot]
        expected.append((name, "gradient", f"{stored}+x", stored, "all_reduce(x)"))
    found = [
        (c.tensor, "gradient" if c.gradient else "value", str(c.source), str(c.target), " ".join(map(str, c.steps)))
        for c in by_hand.program.converts()
    ]
    assert sorted(found) == sorted(expected)


def test_collectives_are_counted_by_hand(by_hand: ByHand) -> None:
    found: Counter[tuple[str, str, str]] = Counter()
    for i in by_hand.program.instructions:
        if isinstance(i, Convert):
            way = "backward" if i.gradient else "forward"
            found.update((str(s.kind), ".".join(s.axes), way) for s in i.steps if s.kind not in FREE)
        elif isinstance(i, Run):
            way = "backward" if i.backward else "forward"
            inner = [c for c in by_hand.program.strategies[i.op].inner if c.backward == i.backward]
            found.update((c.kind, ".".join(c.axes), way) for c in inner for _ in range(c.count))
    assert found == {(kind, axes, way): int(count) for kind, axes, way, count, _ in table("counts")}
    tensors = by_hand.priced.graph.tensors.values()
    traffic = by_hand.program.traffic({t.name: by_hand.priced.machine.settings.tensor_bytes(t) for t in tensors})
    assert {kind: t.bytes for kind, t in traffic.items()} == {"all_reduce": 3372, "all_gather": 256}


def test_the_program_by_hand_computes_the_model_and_its_gradients(by_hand: ByHand) -> None:
    verdict = verify_program(by_hand.program)
    assert verdict.ok, verdict.failures
    assert verdict.checked == ("forward", "gradients")
    assert verdict.parameters == 30 and verdict.max_error < 1e-4


def test_the_optimum_is_no_dearer_than_the_strategy_by_hand(by_hand: ByHand) -> None:
    solution = solve(by_hand.priced.problem, solver="dp")
    assert solution.status == "optimal" and solution.cost is not None
    assert solution.cost <= by_hand.cost
