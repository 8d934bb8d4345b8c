"""Laws of redistribution, on integer data: the steps are executed, not trusted."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from planner.ir import DeviceMesh, Layout, Reduction
from planner.kernels.shards import assemble, shard
from planner.redistribute import Redistributions, StepKind, scattered
from planner.verify.collectives import apply


class LinearPrices:
    """α + β·bytes with the ring factors; axes have different speeds."""

    def __init__(self, mesh: DeviceMesh, alpha: int, beta: float) -> None:
        self.mesh, self.alpha, self.beta = mesh, alpha, beta

    def collective(
        self, kind: str, axes: tuple[str, ...], group_bytes: NDArray[np.float64], share: object = 1.0
    ) -> NDArray[np.int64]:
        n = self.mesh.size(axes)
        factor = {"all_reduce": 2 * (n - 1) / n, "all_to_all": (n - 1) / n**2, "permute": 1.0}.get(kind, (n - 1) / n)
        slow = 3 if self.mesh.names[0] in axes else 1
        return np.ceil(self.alpha * slow + self.beta * slow * factor * group_bytes).astype(np.int64)


MESHES = [DeviceMesh.of(4), DeviceMesh.of(2, 3), DeviceMesh.of(4, 2), DeviceMesh.of(2, 2, 2), DeviceMesh.of(7)]
cases = st.tuples(
    st.sampled_from(MESHES),
    st.lists(st.sampled_from([1, 2, 6, 8, 12]), min_size=1, max_size=3).map(tuple),
    st.integers(0, 10_000),
    st.sampled_from([0.001, 1.0, 100.0]),
    st.randoms(use_true_random=False),
)


@settings(max_examples=150, deadline=None)
@given(cases)
def test_steps_reach_exactly_the_target(case: tuple) -> None:
    mesh, shape, alpha, beta, random = case
    table = Redistributions(shape, 8 * int(np.prod(shape)), mesh, LinearPrices(mesh, alpha, beta))
    source, target = random.choice(table.layouts), random.choice(table.layouts)
    whole = np.arange(int(np.prod(shape)), dtype=np.int64).reshape(shape)
    shards = shard(whole, source, mesh, np.random.default_rng(0))
    layout = source
    for step in table.path(source, target):
        assert step.source == layout
        shards, layout = apply(step, shards, mesh), step.target
    assert layout == target
    np.testing.assert_array_equal(assemble(shards, target, shape, mesh), whole)


@settings(max_examples=150, deadline=None)
@given(cases)
def test_what_is_scattered_reaches_the_target_and_sums_last(case: tuple) -> None:
    mesh, shape, alpha, beta, random = case
    table = Redistributions(shape, 8 * int(np.prod(shape)), mesh, LinearPrices(mesh, alpha, beta))
    source, target = (random.choice(table.layouts) for _ in range(2))
    target = Layout(target.dims)
    steps = scattered(table.path(source, target))
    shards, layout = (
        shard(np.arange(int(np.prod(shape))).reshape(shape), source, mesh, np.random.default_rng(0)),
        source,
    )
    for step in steps:
        assert step.source == layout
        shards, layout = apply(step, shards, mesh), step.target
    assert layout == target
    np.testing.assert_array_equal(assemble(shards, target, shape, mesh), np.arange(int(np.prod(shape))).reshape(shape))
    behind = all(b[: len(a)] == a for a, b in zip(source.dims, target.dims, strict=True))
    if source.partial and behind:
        kinds = [s.kind for s in steps]
        assert set(kinds) <= {StepKind.REDUCE_SCATTER, StepKind.SLICE, StepKind.ALL_REDUCE}
        assert StepKind.ALL_REDUCE not in kinds[:-1]
        received = {a for s in steps if s.kind is StepKind.REDUCE_SCATTER for a in s.axes}
        assert received == {*source.partial_axes} & {*target.split_axes}


def in_parts(shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Every dimension may be split in two, three or four parts where it divides."""
    return tuple(tuple(n for n in (2, 3, 4) if size % n == 0 and size > n) for size in shape)


@settings(max_examples=150, deadline=None)
@given(cases)
def test_steps_between_layouts_in_parts_reach_exactly_the_target(case: tuple) -> None:
    mesh, shape, alpha, beta, random = case
    shape = shape[:2]
    table = Redistributions(
        shape, 8 * int(np.prod(shape)), mesh, LinearPrices(mesh, alpha, beta), parts=in_parts(shape)
    )
    divided = [x for x in table.layouts if x.parts] or table.layouts
    source, target = random.choice(divided), random.choice(table.layouts)
    whole = np.arange(int(np.prod(shape)), dtype=np.int64).reshape(shape)
    for a, b in ((source, target), (target, source)):
        shards, layout = shard(whole, a, mesh, np.random.default_rng(0)), a
        for step in table.path(a, b):
            assert step.source == layout
            shards, layout = apply(step, shards, mesh), step.target
        assert layout == b
        np.testing.assert_array_equal(assemble(shards, b, shape, mesh), whole)


@settings(max_examples=60, deadline=None)
@given(cases)
def test_prices_form_a_metric_below_gather_then_slice(case: tuple) -> None:
    mesh, shape, alpha, beta, random = case
    parts = in_parts(shape) if len(shape) < 3 and random.random() < 0.5 else ()
    table = Redistributions(shape, 8 * int(np.prod(shape)), mesh, LinearPrices(mesh, alpha, beta), parts=parts)
    costs = table.costs
    assert (costs >= 0).all()
    assert (np.diag(costs) == 0).all()
    assert all(table.path(a, a) == () for a in table.layouts)
    through = np.min(costs[:, :, None] + costs[None, :, :], axis=1)
    assert (costs <= through).all(), "triangle inequality"
    whole = table.index[Layout.replicated(len(shape))]
    assert (costs <= costs[:, [whole]]).all(), "from a replica every layout is free, so gather-then-slice bounds"


@settings(max_examples=60, deadline=None)
@given(cases)
def test_few_layouts_cost_what_they_cost_among_all(case: tuple) -> None:
    mesh, shape, alpha, beta, random = case
    prices = LinearPrices(mesh, alpha, beta)
    few, whole = (Redistributions(shape, 8 * int(np.prod(shape)), mesh, prices) for _ in range(2))
    numbers = np.arange(len(few.layouts))
    for _ in range(4):
        some, others = (np.array(random.choices(numbers.tolist(), k=2)) for _ in range(2))
        np.testing.assert_array_equal(few.costs_from(some), whole.costs[some])
        np.testing.assert_array_equal(few.costs_to(some), whole.costs[:, some])
        np.testing.assert_array_equal(few.costs_between(some, others), whole.costs[np.ix_(some, others)])
        source, target = few.layouts[some[0]], few.layouts[others[0]]
        assert few.path(source, target) == whole.path(source, target)


@settings(max_examples=60, deadline=None)
@given(cases)
def test_price_of_a_path_is_the_sum_of_its_steps(case: tuple) -> None:
    mesh, shape, alpha, beta, random = case
    prices = LinearPrices(mesh, alpha, beta)
    table = Redistributions(shape, 8 * int(np.prod(shape)), mesh, prices)
    source, target = random.choice(table.layouts), random.choice(table.layouts)
    total = 0
    for step in table.path(source, target):
        if step.kind not in (StepKind.SLICE, StepKind.TO_PARTIAL):
            total += int(prices.collective(step.kind, step.axes, np.array([step.group_bytes(table.bytes, mesh)]))[0])
    assert total == table.cost(source, target)


def test_pending_maxima_are_reduced_and_scattered_but_never_made_from_replicas() -> None:
    mesh = DeviceMesh.of(2, 2)
    table = Redistributions((4, 4), 128, mesh, LinearPrices(mesh, 10, 1.0), Reduction.MAX)
    whole = np.arange(16, dtype=np.int64).reshape(4, 4)
    pending = [layout for layout in table.layouts if layout.partial]
    assert pending
    for source in pending:
        for target in (layout for layout in table.layouts if not layout.partial):
            shards = shard(whole, source, mesh, np.random.default_rng(0))
            for step in table.path(source, target):
                shards = apply(step, shards, mesh)
            np.testing.assert_array_equal(assemble(shards, target, (4, 4), mesh), whole)
            assert table.cost(target, source) >= 1 << 55


@pytest.mark.parametrize(
    ("source", "target", "kinds"),
    [
        ("[x,_]", "[_,x]", ["all_to_all"]),
        ("[x,_]", "[_,_]", ["all_gather"]),
        ("[_,_]", "[_,x]", ["slice"]),
        ("[_,_]+x", "[x,_]", ["reduce_scatter"]),
        ("[_,_]+x", "[_,_]", ["all_reduce"]),
        ("[_,_]", "[_,_]+x", ["to_partial"]),
        ("[_,_]+x", "[_,_]+x", []),
    ],
)
def test_textbook_pairs(source: str, target: str, kinds: list[str]) -> None:
    mesh = DeviceMesh.of(4)
    table = Redistributions((8, 8), 256, mesh, LinearPrices(mesh, 10, 1.0))
    by_text = {str(layout): layout for layout in table.layouts}
    assert [s.kind for s in table.path(by_text[source], by_text[target])] == kinds


def test_absurd_prices_do_not_overflow() -> None:
    """A profile with a latency of days is silly, not a crash."""
    mesh = DeviceMesh.of(4, 2)
    table = Redistributions((8, 8), 512, mesh, LinearPrices(mesh, 10**17, 1.0))
    whole = Layout.replicated(2)
    assert (table.costs >= 0).all()
    for target in table.layouts:
        if not target.partial:
            assert table.path(whole, target) == () if target == whole else len(table.path(whole, target)) >= 1
