"""The protocol of operators that communicate: what ranks receive, what is accounted, and what is an error.

That the kernels compute what the whole operator does is proved with the rules: tests/rules/test_prover.py.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import VerificationError
from planner.ir import DeviceMesh, Op
from planner.kernels import NoKernelError, Performed, ShardContext, run_ranks, spmd_backward, spmd_forward
from planner.kernels.spmd import all_gather, all_reduce, exchange
from planner.kernels.transport import collect, give_back
from planner.rules import Cut, Rule

GRID = DeviceMesh.of(2, 2)
COLUMNS = {"n": ("x",)}

Kernel = Generator[Any, Any, list[Any]]


def test_groups_reduce_apart() -> None:
    def kernel(value: float) -> Kernel:
        return [(yield from all_reduce(np.array([value]), "max", "n"))]

    results = run_ranks([kernel(float(r)) for r in range(4)], GRID, COLUMNS)
    assert [float(r[0][0]) for r in results] == [2.0, 3.0, 2.0, 3.0]


def test_gathered_values_come_in_the_order_of_the_shards() -> None:
    def kernel(value: float) -> Kernel:
        return [np.concatenate((yield from all_gather(np.array([value]), "n")))]

    over_both = run_ranks([kernel(float(r)) for r in range(4)], GRID, {"n": ("y", "x")})
    assert [list(r[0]) for r in over_both] == [[0.0, 2.0, 1.0, 3.0]] * 4  # the first named axis is the slowest


def test_exchanged_pieces_reach_their_shard() -> None:
    def kernel(rank: int) -> Kernel:
        sent = [None if j == rank else np.array([10.0 * rank + j]) for j in range(3)]
        found = yield from exchange(sent, "n")
        return [np.array([-1.0 if p is None else p[0] for p in found])]

    results = run_ranks([kernel(r) for r in range(3)], DeviceMesh.of(3), COLUMNS)
    assert [list(r[0]) for r in results] == [[-1.0, 10.0, 20.0], [1.0, -1.0, 21.0], [2.0, 12.0, -1.0]]


def test_the_largest_payload_is_accounted() -> None:
    def kernel(rank: int) -> Kernel:
        yield from all_reduce(np.zeros(3, dtype=np.float32), "sum", "n")
        yield from exchange([np.zeros(rank), None], "n")
        return []

    performed: list[Performed] = []
    run_ranks([kernel(r) for r in range(2)], DeviceMesh.of(2), COLUMNS, performed)
    assert performed == [Performed("all_reduce", "n", 12), Performed("exchange", "n", 8)]


def test_what_values_route_is_accounted_with_what_stays_on_average() -> None:
    def kernel(rank: int) -> Kernel:
        yield from exchange(
            [None, np.zeros(3)] if rank == 0 else [np.zeros(0), None], "n", stays=np.zeros(4 * rank + 1)
        )
        return []

    performed: list[Performed] = []
    run_ranks([kernel(r) for r in range(2)], DeviceMesh.of(2), COLUMNS, performed)
    assert performed == [Performed("routed", "n", 8 * (3 + 1 + 0 + 5) // 2)]


@pytest.mark.parametrize("other", [lambda: all_reduce(np.ones(1), "max", "n"), lambda: all_gather(np.ones(1), "n")])
def test_ranks_at_different_collectives_are_an_error(other: Any) -> None:
    def kernel(rank: int) -> Kernel:
        yield from (other() if rank else all_reduce(np.ones(1), "sum", "n"))
        return []

    with pytest.raises(VerificationError, match="do not meet"):
        run_ranks([kernel(0), kernel(1)], DeviceMesh.of(2), COLUMNS)


def test_a_rank_that_stays_away_is_an_error() -> None:
    def kernel(rank: int) -> Kernel:
        if rank:
            yield from all_gather(np.ones(1), "n")
        return []

    with pytest.raises(VerificationError, match="1 of 2 wait"):
        run_ranks([kernel(0), kernel(1)], DeviceMesh.of(2), COLUMNS)


def places(shards: int) -> list[ShardContext]:
    rule = Rule({"d": 12}, ((("d",),),), ((("d",),),))
    mesh = DeviceMesh.of(shards)
    return [ShardContext.of(rule, {"d": mesh.names}, mesh, r) for r in range(shards)]


WANTED = st.sampled_from([2, 3, 4]).flatmap(
    lambda n: st.lists(st.lists(st.integers(-1, 11), max_size=9), min_size=n, max_size=n)
)


@settings(deadline=None, max_examples=80)
@given(WANTED)
def test_collecting_takes_elements_of_the_whole(wanted: list[list[int]]) -> None:
    whole = np.arange(24.0).reshape(2, 12) + 1
    n = len(wanted)
    indices = [np.array(w, dtype=np.int64) for w in wanted]

    def kernel(place: ShardContext, shard: Any) -> Kernel:
        return [(yield from collect(shard, 1, indices, "d", place))]

    shards = np.split(whole, n, axis=1)
    found = run_ranks([kernel(p, s) for p, s in zip(places(n), shards, strict=True)], DeviceMesh.of(n), {"d": ("x",)})
    for w, (part,) in zip(indices, found, strict=True):
        np.testing.assert_array_equal(part, np.where(w >= 0, whole[:, w], 0.0))


@settings(deadline=None, max_examples=80)
@given(WANTED, st.integers(0, 1000))
def test_giving_back_is_the_transpose_of_collecting(wanted: list[list[int]], seed: int) -> None:
    """⟨collect x, g⟩ = ⟨x, give back g⟩."""
    rng = np.random.default_rng(seed)
    n = len(wanted)
    indices = [np.array(w, dtype=np.int64) for w in wanted]
    x = rng.integers(-9, 9, size=(2, 12)).astype(np.float64)
    g = [rng.integers(-9, 9, size=(2, len(w))).astype(np.float64) for w in wanted]

    def kernel(place: ShardContext, shard: Any, gradient: Any) -> Kernel:
        taken = yield from collect(shard, 1, indices, "d", place)
        back = yield from give_back(gradient, 1, indices, shard.shape[1], "d", place)
        return [taken, back]

    shards = np.split(x, n, axis=1)
    rows = [kernel(p, s, v) for p, s, v in zip(places(n), shards, g, strict=True)]
    found = run_ranks(rows, DeviceMesh.of(n), {"d": ("x",)})
    left = sum(float(np.sum(taken * v)) for (taken, _), v in zip(found, g, strict=True))
    right = sum(float(np.sum(s * back)) for s, (_, back) in zip(shards, found, strict=True))
    assert left == right


def test_only_a_split_that_the_rule_marks_needs_a_kernel() -> None:
    op = Op("y", "Gather", ("a", "b"), ("y",), {}, 20)
    rule = Rule(
        {"v": 4, "i": 4}, ((("v",),), (("i",),)), ((("i",),),), {"v": Cut(("v",), aware=True), "i": Cut(("i",))}
    )
    assert spmd_forward(op, rule, ["i"]) is None
    assert spmd_backward(op, rule, ["i"]) is None
    assert spmd_forward(op, rule, ["v"]) is not None
    unknown = Op("y", "example::Op", ("a", "b"), ("y",), {}, 1)
    with pytest.raises(NoKernelError, match="no kernel for example::Op"):
        spmd_forward(unknown, rule, ["v"])
