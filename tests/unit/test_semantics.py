"""docs/semantics.md, executed: its tables by hand, its space by brute force, its optimum by every solver."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from planner.cost_models import load_profile
from planner.frontends import import_bytes
from planner.ir import DeviceMesh, Layout
from planner.lowering import Program, Redistribute, Run, lower
from planner.planning.breakdown import breakdown
from planner.pricing import Machine, PricedProblem, Settings, active_tensors, bind_rules, price
from planner.pricing.hubs import SetHub, StarHub
from planner.redistribute import Redistributions
from planner.redistribute.steps import FREE
from planner.search.brute import brute_force
from planner.search.evaluate import peak_memory
from planner.search.prices.memory import minimum_memory
from planner.search.problem import FORBIDDEN, Edge, Node, Problem
from planner.search.solve import solve
from planner.verify.check import verify_program
from tests.unit.semantics_model import chain, fan, mlp, transformer
from tests.unit.semantics_twice import Enumeration

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


def restricted(problem: Problem, keep: Mapping[int, Sequence[int]]) -> Problem:
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


def pinned(problem: Problem, keep: Mapping[int, int]) -> Problem:
    """The problem in which node n may only be in state `keep[n]`; states keep their numbers."""
    nodes = list(problem.nodes)
    for n, state in keep.items():
        only = np.arange(len(nodes[n].costs)) == state
        nodes[n] = replace(nodes[n], costs=np.where(only, nodes[n].costs, FORBIDDEN))
    return replace(problem, nodes=nodes)


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
    keep = {}
    for name, node in p.op_nodes.items():
        keep[node] = [[str(r) for r in s.roles] for s in p.tables[name].strategies].index(rows[name][:2])
    for name, node in p.parameter_nodes.items():
        ((reader, slot),) = p.graph.consumers[name]
        keep[node] = list(map(str, p.stored_layouts[name])).index(rows[reader.name][2].split()[slot])
    solution = solve(pinned(p.problem, keep))
    assert solution.status == "optimal"
    assert solution.cost is not None
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
        for c in by_hand.program.redistributions()
    ]
    assert sorted(found) == sorted(expected)


def test_collectives_are_counted_by_hand(by_hand: ByHand) -> None:
    found: Counter[tuple[str, str, str]] = Counter()
    for i in by_hand.program.instructions:
        if isinstance(i, Redistribute):
            way = "backward" if i.gradient else "forward"
            found.update((str(s.kind), ".".join(s.axes), way) for s in i.steps if s.kind not in FREE)
        elif isinstance(i, Run):
            way = "backward" if i.backward else "forward"
            inner = [c for c in by_hand.program.strategies[i.op].inner if c.backward == i.backward]
            found.update((c.kind, ".".join(c.axes), way) for c in inner for _ in range(c.count))
    assert found == {(kind, axes, way): int(count) for kind, axes, way, count, _ in table("counts")}
    traffic = by_hand.program.traffic(by_hand.priced.machine.settings)
    assert {kind: t.bytes for kind, t in traffic.items()} == {"all_reduce": 3368, "all_gather": 256}


def test_the_program_by_hand_computes_the_model_and_its_gradients(by_hand: ByHand) -> None:
    verdict = verify_program(by_hand.program)
    assert verdict.ok, verdict.failures
    assert verdict.checked == ("forward", "gradients")
    assert verdict.parameters == 30
    assert verdict.max_error < 1e-4


def test_the_optimum_is_no_dearer_than_the_strategy_by_hand(by_hand: ByHand) -> None:
    solution = solve(by_hand.priced.problem, solver="dp")
    assert solution.status == "optimal"
    assert solution.cost is not None
    assert solution.cost <= by_hand.cost


# Every solver, one optimum


def other_solutions(problem: Problem, count: int) -> list[tuple[int, ...]]:
    """Optima under randomly scaled prices of the nodes: reasonable choices, unlike each other."""
    random = np.random.default_rng(11)
    found = []
    for _ in range(count):
        factors = random.integers(0, 50, len(problem.nodes))
        noise = [
            random.integers(0, max(1, int(f) * 10**7), len(n.costs))
            for f, n in zip(factors, problem.nodes, strict=True)
        ]
        nodes = [
            replace(n, costs=np.minimum(n.costs + x, FORBIDDEN)) for n, x in zip(problem.nodes, noise, strict=True)
        ]
        found.append(solve(replace(problem, nodes=nodes), solver="dp").choice)
    return found


def mixture(problem: Problem, count: int) -> Problem:
    """What `count` solutions and the optimum choose among: every node keeps their states."""
    solutions = [solve(problem, solver="dp").choice, *other_solutions(problem, count)]
    return restricted(problem, {n: sorted(set(states)) for n, states in enumerate(zip(*solutions, strict=True))})


@pytest.mark.parametrize("mesh", [(2,), (2, 2)], ids=str)
@pytest.mark.parametrize("profile", ["alpha-beta", "a100-80"])
def test_an_mlp_block_has_the_same_optimum_by_enumeration_elimination_and_integer_program(
    profile: str, mesh: tuple[int, ...]
) -> None:
    problem = mixture(priced(mlp(), profile, *mesh).problem, 1)
    free = brute_force(problem)
    assert free.cost == solve(problem, solver="dp").cost == solve(problem, solver="ilp").cost
    least, most = minimum_memory(problem).lower_bound, peak_memory(problem, free.choice)
    for limit in sorted({least, (least + most) // 2, most}):
        tight = replace(problem, limit=limit)
        best = brute_force(tight)
        assert best.status == "optimal"
        assert best.cost == solve(tight, solver="dp").cost == solve(tight, solver="ilp").cost


@pytest.mark.parametrize("mesh", [(2,), (4,), (2, 2)], ids=str)
def test_the_transformer_has_the_same_optimum_by_elimination_and_integer_program(mesh: tuple[int, ...]) -> None:
    problem = priced(transformer(), "alpha-beta", *mesh).problem
    whole = solve(problem, solver="dp")
    assert whole.status == "optimal"
    if len(mesh) > 1:  # over all states the integer program is slow to prove what it finds
        problem = mixture(problem, 6)
    by_ilp = solve(problem, solver="ilp")
    assert by_ilp.status == "optimal"
    assert by_ilp.cost == solve(problem, solver="dp").cost == whole.cost


@pytest.mark.parametrize(("mesh", "tightness"), [((2,), 0.4), ((4,), 0.1)], ids=str)
def test_the_transformer_has_the_same_optimum_under_a_memory_limit_that_binds(
    mesh: tuple[int, ...], tightness: float
) -> None:
    problem = priced(transformer(), "alpha-beta", *mesh).problem
    free = solve(problem, solver="dp")
    least, most = minimum_memory(problem).lower_bound, peak_memory(problem, free.choice)
    tight = replace(problem, limit=round(most - tightness * (most - least)))
    by_dp, by_ilp = solve(tight, solver="dp"), solve(tight, solver="ilp")
    assert by_dp.status == by_ilp.status == "optimal"
    assert by_dp.cost == by_ilp.cost
    assert by_dp.cost is not None
    assert free.cost is not None
    assert by_dp.cost > free.cost
    assert solve(replace(problem, limit=least - 1)).status == "infeasible"


# The semantics implemented twice


CASES = {
    "two products": (chain(8, 4), (2,)),
    "two products, rows that four do not divide": (chain(6, 4), (4,)),
    "one product, two axes": (chain(8, 4, products=1), (2, 2)),
    "two readers": (fan(8, 4, 2), (4,)),
    "two readers, two axes": (fan(4, 8, 2), (2, 2)),
    "three readers": (fan(8, 4, 3), (2,)),
    "four readers": (fan(8, 4, 4), (2,)),
}


@pytest.mark.parametrize("profile", ["alpha-beta", "a100-80"])
@pytest.mark.parametrize("case", CASES)
def test_the_optimum_is_that_of_an_independent_enumeration(case: str, profile: str) -> None:
    model, mesh = CASES[case]
    p = priced(model, profile, *mesh)
    solution = solve(p.problem, solver="dp")
    assert solution.status == "optimal"
    assert solution.cost == int(Enumeration(p).costs().min())


@pytest.mark.parametrize("case", CASES)
def test_any_strategy_costs_what_the_independent_enumeration_says(case: str) -> None:
    """And its program computes the model and pays that price.

    Strategies are drawn at random: most are poor, so that every kind of conversion is met.
    """
    model, mesh = CASES[case]
    p = priced(model, "a100-80", *mesh)
    expected = Enumeration(p).costs()
    random = np.random.default_rng(5)
    for _ in range(40):
        choice = [int(random.integers(n)) for n in expected.shape]
        keep = {p.op_nodes[op.name]: state for op, state in zip(p.graph.ops, choice, strict=True)}
        solution = solve(pinned(p.problem, keep), solver="dp")
        cost = FORBIDDEN if solution.status == "infeasible" else solution.cost
        assert cost == int(expected[tuple(choice)]), choice
        if solution.choice:
            program = lower(p.graph, p.machine.mesh, p.rules, p.active, p.decode(solution.choice))
            assert breakdown(p, solution.choice, program).total == cost, choice
            verdict = verify_program(program)
            assert verdict.ok, (choice, verdict.failures)


def test_three_distinct_reads_are_outside_the_space_at_no_loss_here() -> None:
    enumeration = Enumeration(priced(CASES["three readers"][0], "alpha-beta", 2))
    two, three = enumeration.costs(), enumeration.costs(most_reads=3)
    assert (three <= two).all()
    assert (three < FORBIDDEN).sum() > (two < FORBIDDEN).sum()
    assert three.min() == two.min()


def test_a_hub_with_a_single_layout_would_be_dearer() -> None:
    """The example of the page: 128 bytes on two devices, produced in rows, read twice in columns and once in rows."""
    machine = Machine(load_profile("alpha-beta"), DeviceMesh.of(2), Settings(training=True))
    table = Redistributions((8, 8), 128, machine.mesh, machine)
    rows, columns = Layout((("x",), ())), Layout(((), ("x",)))
    exchange = table.cost(rows, columns)
    assert exchange * machine.unit_s == pytest.approx(33.001)
    readers = [(columns, columns), (columns, columns), (rows, rows)]
    reads = tuple(dict.fromkeys(readers))
    several = SetHub(table, reads)
    both = several.states.index((0, 1))
    assert several.producer_costs([(rows, rows)])[0, both] == 2 * exchange
    single = StarHub.of(table, reads)
    onward = sum(single.reader_costs([(read,)])[0] for read in readers)
    assert (single.producer_costs([(rows, rows)])[0] + onward).min() == 4 * exchange
    # Held in any layout, its gradient gathered in any other:
    at = [table.index[x] for x, _ in readers]
    d, home = table.costs, table.index[rows]
    value = min(d[home, m] + sum(d[m, i] for i in at) for m in range(len(d)))
    gradient = min(sum(d[i, m] for i in at) + d[m, home] for m in range(len(d)))
    assert (value + gradient) * machine.unit_s == pytest.approx(131.102)
