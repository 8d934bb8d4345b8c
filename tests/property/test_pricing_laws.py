"""Laws of pricing: arrays over all strategies agree with the strategies one by one, and what is shared between meshes
and between tensors changes no price."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.builder import build
from planner.cost_models import load_profile
from planner.frontends import import_bytes
from planner.ir import DeviceMesh, Graph, Reduction
from planner.pricing import Machine, PricedProblem, PriceTables, Settings, active_tensors, bind_rules, price
from planner.redistribute import Redistributions, StepKind
from planner.redistribute.steps import FREE, steps_from
from planner.rules import Rule, strategies
from planner.rules.expansion import Expansion, Layouts
from planner.search.problem import Edge, Node
from tests.property.test_strategy_laws import bound, rules
from tests.unit.fused_models import FUSED, fused_model

SHAPES = [(8,), (2, 4), (4, 2), (3, 4), (1, 4), (2, 2, 2), (2, 1, 3)]
PLANE = [s for s in SHAPES if len(s) < 3]
PROFILE = load_profile("a100-80")


# Modes, collectives inside, and pending values other than sums: few of the random rules have them.
PARTICULAR = [
    bound("Attention", [(4, 8, 12, 4)] * 3, (4, 8, 12, 4)),
    bound("Softmax", [(4, 12)], (4, 12), axis=-1),
    bound("ReduceMax", [(4, 12, 8)], (1, 1, 1)),
    bound("LayerNormalization", [(4, 12), (12,), (12,)], (4, 12)),
]
FUSED_GRAPHS = [import_bytes(fused_model(name)) for name in FUSED]
IN_PARTS = [rule for graph in FUSED_GRAPHS for rule in bind_rules(graph)[0].values() if rule.parts]


@settings(deadline=None, max_examples=30)
@given(rules().map(lambda found: found[0]), st.permutations(SHAPES), st.booleans())
def test_expansions_hold_the_strategies_of_every_mesh(
    rule: Rule, shapes: list[tuple[int, ...]], training: bool
) -> None:
    assert_expands(rule, shapes, training)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("rule", [*PARTICULAR, *IN_PARTS], ids=lambda r: r.text if r.parts else r.cost.kind)
def test_expansions_hold_particular_strategies(rule: Rule, training: bool) -> None:
    assert_expands(rule, SHAPES, training)


def assert_expands(rule: Rule, shapes: list[tuple[int, ...]], training: bool) -> None:
    """One expansion serves all meshes of the same names; layouts and shards are those of the bound strategies."""
    layouts = Layouts()
    expansions: dict[object, Expansion] = {}
    for mesh in (DeviceMesh.of(*s) for s in shapes):
        busy = tuple(a.size > 1 for a in mesh.axes)
        if busy not in expansions:
            expansions[busy] = Expansion(rule, mesh.names, busy, layouts, training=training)
        expansion = expansions[busy]
        choices, expected = expansion.on(mesh), strategies(rule, mesh, training=training)
        assert choices.strategies == expected
        assert choices.inner() == [s.inner for s in expected]
        assert choices.parallelism.tolist() == [s.parallelism for s in expected]
        assert choices.plays("linear").tolist() == [any(r.kind == "linear" for r in s.roles) for s in expected]
        for name in ("operands", "results", "operand_gradients", "result_gradients"):
            for i, side in enumerate(getattr(expansion, name)):
                placed = [getattr(s, name)[i] for s in expected]
                numbers = choices.layouts(side, -1).tolist()
                assert [None if n < 0 else layouts.known[n] for n in numbers] == placed
                assert choices.shards(side).tolist() == [1 if x is None else x.shards(mesh) for x in placed]


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.lists(st.sampled_from([0, 1, 2, 3, 4, 12]), min_size=1, max_size=3).map(tuple), min_size=1, max_size=4),
    st.sampled_from(SHAPES),
    st.sampled_from(list(Reduction)),
    st.sampled_from([(), (2,), (3,), (2, 3)]),
    st.sampled_from([1.0, 0.5, 1e-3]),
)
def test_tables_made_together_hold_the_price_of_every_step(
    shapes: list[tuple[int, ...]], sizes: tuple[int, ...], reduction: Reduction, counts: tuple[int, ...], share: float
) -> None:
    """What one table for all says of neighbouring layouts is what each step costs, priced alone, or less."""
    mesh = DeviceMesh.of(*sizes)
    machine = Machine(PROFILE, mesh, Settings(training=True))
    parts = [(counts,) if counts and len(s) == 1 else () for s in shapes]
    cases = [(s, 2 * int(np.prod(s)), reduction, p, None, share) for s, p in zip(shapes, parts, strict=True)]
    for (shape, size, _, ways, *_), table in zip(cases, Redistributions.of_all(cases, mesh, machine), strict=True):
        alone = Redistributions(shape, size, mesh, machine, reduction, ways, share=share)
        assert alone.layouts == table.layouts
        np.testing.assert_array_equal(alone.costs, table.costs)
        for layout in table.layouts:
            steps = [s for s in steps_from(layout, shape, mesh, reduction, ways) if s.target in table.index]
            for s in steps:
                cost = 0
                if s.kind not in FREE:
                    cost = int(machine.collective(str(s.kind), s.axes, s.group_bytes(size, mesh), share))
                assert table.cost(layout, s.target) <= cost
                path = table.path(layout, s.target)
                if path == (s,):
                    assert table.cost(layout, s.target) == cost
            local = [mesh.size(d) for d in layout.dims]
            for other in table.layouts:
                alike = other.partial == layout.partial and other.parts == layout.parts
                if other != layout and alike and [mesh.size(d) for d in other.dims] == local:
                    kinds = {p.kind for p in table.path(layout, other)}
                    assert table.cost(layout, other) < 1 << 55, f"a permute joins them at the most: {kinds}"
                    assert len(table.path(layout, other)) > 1 or kinds == {StepKind.PERMUTE}


@pytest.mark.parametrize("share", [1.0, 0.25])
def test_what_lies_inside_a_kernel_is_written_and_read_besides(share: float) -> None:
    mesh = DeviceMesh.of(2, 2)
    machine = Machine(PROFILE, mesh, Settings(training=True))
    shape, size = (8, 8), 1 << 20
    outside, inside = (
        Redistributions(shape, size, mesh, machine, copied=copied, share=share) for copied in (None, machine.copied)
    )
    for a in outside.layouts:
        for b in outside.layouts:
            steps = outside.cost(a, b)
            moved = sum(int(machine.copied(size / x.shards(mesh))) for x in (a, b))
            assert inside.cost(a, b) == (steps + moved if steps else 0)
            assert inside.out_and_back(a, b) == moved
            assert inside.path(a, b) == outside.path(a, b)


def test_shares_of_a_bucket_add_up_to_one_collective() -> None:
    machine = Machine(PROFILE, DeviceMesh.of(8), Settings(training=True))
    sizes = np.array([1e3, 5e5, 3e7])
    shares = sizes / sizes.sum()
    apart = machine.collective("all_reduce", ("x",), sizes, shares).sum()
    assert apart == pytest.approx(int(machine.collective("all_reduce", ("x",), sizes.sum())), abs=3)


def model(layers: int = 2) -> tuple[Graph, dict[str, Rule], frozenset[str]]:
    sizes = {"layers": layers, "batch": 8, "hidden": 16, "heads": 4, "seq": 8, "vocab": 32}
    graph = import_bytes(build("gpt", sizes).SerializeToString())
    found, _ = bind_rules(graph)
    return graph, found, active_tensors(graph, found)


def parts(priced: PricedProblem) -> list[Node | Edge]:
    return [*priced.problem.nodes, *priced.problem.edges]


def assert_same(a: PricedProblem, b: PricedProblem) -> None:
    assert [(n.name, n.interval) for n in a.problem.nodes] == [(n.name, n.interval) for n in b.problem.nodes]
    assert [(e.u, e.v, e.interval) for e in a.problem.edges] == [(e.u, e.v, e.interval) for e in b.problem.edges]
    for mine, other in zip(parts(a), parts(b), strict=True):
        np.testing.assert_array_equal(mine.costs, other.costs)
        assert (mine.usage is None) == (other.usage is None)
        if mine.usage is not None and other.usage is not None:
            np.testing.assert_array_equal(mine.usage, other.usage)


@pytest.mark.parametrize("training", [True, False])
def test_what_meshes_share_changes_no_price(training: bool) -> None:
    """After other meshes, with tables of the other variant, and in a graph of its own: the same Problem."""
    graph, found, active = model()
    active = active if training else frozenset()
    meshes = [DeviceMesh.of(*s) for s in PLANE]
    tables = {mesh: PriceTables() for mesh in meshes}
    for recompute in (False, True):
        for mesh in (*meshes, *reversed(meshes)):
            machine = Machine(PROFILE, mesh, Settings(training, recompute=recompute))
            shared = price(graph, machine, found, active, None, tables[mesh])
            own_graph, own_rules, own_active = model()
            alone = price(own_graph, machine, own_rules, own_active if training else frozenset(), None)
            assert_same(shared, alone)


def test_layers_that_look_alike_share_their_arrays() -> None:
    machine = Machine(PROFILE, DeviceMesh.of(2, 4), Settings(training=True))
    few, many = (price(graph, machine, found, active, None) for graph, found, active in (model(3), model(6)))
    assert len({id(x.costs) for x in parts(few)}) == len({id(x.costs) for x in parts(many)})
    assert len(parts(few)) < len(parts(many))


def test_structures_do_not_keep_graphs_alive() -> None:
    graph, found, active = model()
    gone = weakref.ref(graph)
    price(graph, Machine(PROFILE, DeviceMesh.of(2, 2), Settings(training=True)), found, active, None)
    del graph
    gc.collect()
    assert gone() is None
