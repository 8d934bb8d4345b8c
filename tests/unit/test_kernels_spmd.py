"""Operators that communicate inside: all ranks together equal the whole operator, forward and backward."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
import pytest

from planner.errors import VerificationError
from planner.ir import DeviceMesh, Layout, Op, Reduction
from planner.verify.kernels import AllReduce, ShardContext, run_local, run_ranks, spmd_backward, spmd_forward
from planner.verify.shards import assemble, shard
from planner.verify.vjp import vjp

MESHES = [
    (DeviceMesh.of(2), {"n": ("x",)}),
    (DeviceMesh.of(2, 2), {"n": ("x", "y")}),
    (DeviceMesh.of(2, 2), {"n": ("y",)}),
    (DeviceMesh.of(2, 3), {"n": ("x",), "d0": ("y",)}),
    (DeviceMesh.of(2, 2), {"n": ("y", "x")}),
]


def contexts(mesh: DeviceMesh, split: dict[str, Any], factors: dict[str, int]) -> list[ShardContext]:
    return [ShardContext.of(factors, split, mesh, r) for r in range(mesh.devices)]


@pytest.mark.parametrize(("mesh", "split"), MESHES, ids=lambda v: str(v))
@pytest.mark.parametrize("weighted", [False, True])
def test_mean_cross_entropy_over_split_batch_and_space(
    mesh: DeviceMesh, split: dict[str, tuple[str, ...]], weighted: bool
) -> None:
    rng = np.random.default_rng(1)
    n, c, d = 4, 5, 3
    scores = rng.standard_normal((n, c, d)).astype(np.float32)
    labels = rng.integers(0, c, size=(n, d))
    labels[0] = labels[3, 1] = -1  # uneven: one shard holds far fewer labels than another
    inputs: list[np.ndarray | None] = [scores, labels]
    if weighted:
        inputs.append((0.5 + rng.random(c)).astype(np.float32))
    op = Op("l", "SoftmaxCrossEntropyLoss", ("s", "t", "w")[: len(inputs)], ("l", "p"), {"ignore_index": -1}, 20)
    expected = run_local(op, inputs)
    dl, dp = np.float32(0.7), rng.standard_normal(scores.shape).astype(np.float32)
    (expected_dx, *_) = vjp(op, inputs, expected, [dl, dp], [True, False, False][: len(inputs)])

    over_n, over_d = split["n"], split.get("d0", ())
    wide, narrow = Layout((over_n, (), over_d)), Layout((over_n, over_d))
    local_scores, local_labels, local_dp = (
        shard(scores, wide, mesh), shard(labels, narrow, mesh), shard(dp, wide, mesh)
    )  # fmt: skip
    places = contexts(mesh, split, {"n": n, "d0": d})
    local_inputs = [[s, t, *inputs[2:]] for s, t in zip(local_scores, local_labels, strict=True)]
    forward, backward = spmd_forward(op, split), spmd_backward(op, split)
    assert forward is not None
    assert backward is not None
    results = run_ranks([forward(op, x, p) for x, p in zip(local_inputs, places, strict=True)], mesh, split)
    for loss, _ in results:
        np.testing.assert_allclose(loss, expected[0], rtol=1e-5)
        assert loss.dtype == np.float32
    log_p = assemble(tuple(r[1] for r in results), wide, scores.shape, mesh)
    np.testing.assert_allclose(log_p, expected[1], rtol=1e-5, atol=1e-6)

    grads = run_ranks(
        [
            backward(op, local_inputs[r], results[r], [dl, local_dp[r]], [True, False, False][: len(inputs)], places[r])
            for r in range(mesh.devices)
        ],
        mesh,
        split,
    )
    dx = assemble(tuple(g[0] for g in grads), wide, scores.shape, mesh)
    np.testing.assert_allclose(dx, expected_dx, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("sizes", [(2,), (2, 2)])
@pytest.mark.parametrize("axis", [0, 1])
def test_gather_from_a_split_axis_is_a_pending_sum(sizes: tuple[int, ...], axis: int) -> None:
    rng = np.random.default_rng(2)
    mesh = DeviceMesh.of(*sizes)
    table = rng.standard_normal((8, 3) if axis == 0 else (3, 8)).astype(np.float32)
    at = np.array([[0, 7, 3], [-1, 4, 3]])
    op = Op("y", "Gather", ("t", "i"), ("y",), {"axis": axis}, 20)
    (expected,) = run_local(op, [table, at])
    dy = rng.standard_normal(expected.shape).astype(np.float32)
    expected_dt, _ = vjp(op, [table, at], [expected], [dy], [True, False])

    split = {"v": mesh.names}
    layout = Layout(tuple(mesh.names if i == axis else () for i in range(2)))
    local = shard(table, layout, mesh)
    places = contexts(mesh, split, {"v": 8})
    forward, backward = spmd_forward(op, split), spmd_backward(op, split)
    assert forward is not None
    assert backward is not None
    results = run_ranks([forward(op, [t, at], p) for t, p in zip(local, places, strict=True)], mesh, split)
    pending = Layout(((),) * expected.ndim, tuple((a, Reduction.SUM) for a in mesh.names))
    y = assemble(tuple(r[0] for r in results), pending, expected.shape, mesh)
    np.testing.assert_allclose(y, expected, rtol=1e-6)
    grads = run_ranks(
        [backward(op, [t, at], [None], [dy], [True, False], p) for t, p in zip(local, places, strict=True)], mesh, split
    )
    np.testing.assert_allclose(assemble(tuple(g[0] for g in grads), layout, table.shape, mesh), expected_dt, rtol=1e-5)


@pytest.mark.parametrize(
    ("kind", "attributes", "split"),
    [
        ("Gather", {}, ["b"]),
        ("SoftmaxCrossEntropyLoss", {"reduction": "sum"}, ["n"]),
        ("SoftmaxCrossEntropyLoss", {"reduction": "none"}, ["n"]),
        ("SoftmaxCrossEntropyLoss", {}, []),
        ("MatMul", {}, ["k"]),
    ],
)
def test_local_operators_need_no_kernel(kind: str, attributes: dict[str, Any], split: list[str]) -> None:
    op = Op("y", kind, ("a", "b"), ("y",), attributes, 20)
    assert spmd_forward(op, split) is None
    assert spmd_backward(op, split) is None


def test_ranks_at_different_collectives_are_an_error() -> None:
    def kernel(reduction: str) -> Generator[AllReduce, Any, list[Any]]:
        yield AllReduce(np.ones(1), reduction, "n")
        return []

    with pytest.raises(VerificationError, match="do not meet"):
        run_ranks([kernel("sum"), kernel("max")], DeviceMesh.of(2), {"n": ("x",)})


def test_groups_reduce_apart() -> None:
    def kernel(value: float) -> Generator[AllReduce, Any, list[Any]]:
        found = yield AllReduce(np.array([value]), "max", "n")
        return [found]

    results = run_ranks([kernel(float(r)) for r in range(4)], DeviceMesh.of(2, 2), {"n": ("x",)})
    assert [float(r[0][0]) for r in results] == [2.0, 3.0, 2.0, 3.0]
