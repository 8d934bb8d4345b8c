"""Experts under any load: rows go where their experts are, however many choose the same one.

`prove` compares the bytes that ranks distribute with those that the rule prices; here the numbers alone count.
"""

from __future__ import annotations

import numpy as np
import pytest

from planner.ir import DeviceMesh
from planner.kernels import ShardContext, run_ranks, spmd_backward, spmd_forward
from planner.kernels.gradients import vjp
from planner.rules import local_op, strategies
from tests.rules.cases.values import f, n
from tests.rules.prover import case, compare, cut

LOADS = {
    "one expert": np.full(12, 3, dtype=np.int64),
    "the last rank's": np.full(12, 5, dtype=np.int64),
    "each rank its own": np.repeat(np.arange(6), 2),
    "random": n(6, 12),
    "counted from the end": n(6, 12) - 6,
}


@pytest.mark.parametrize("mesh", [DeviceMesh.of(2), DeviceMesh.of(3), DeviceMesh.of(2, 3)], ids=str)
@pytest.mark.parametrize("load", LOADS)
def test_any_load(load: str, mesh: DeviceMesh) -> None:
    subject = case("planner::ExpertMatMul", [f(12, 4), f(6, 6, 4), LOADS[load], f(6, 6)], transB=1)
    rng = np.random.default_rng(3)
    (expected,) = subject.results
    assert expected is not None
    gradient = rng.standard_normal(expected.shape).astype(np.float32)
    wanted = [True, True, False, True]
    whole = vjp(subject.op, subject.inputs, subject.results, [gradient], wanted)
    tried = 0
    for s in strategies(subject.rule, mesh, training=True):
        kernels = [k(subject.op, subject.rule, s.split) for k in (spmd_forward, spmd_backward)]
        forward, backward = kernels
        if forward is None or backward is None:
            continue
        tried += 1
        op = local_op(subject.op, subject.rule, s, mesh)
        places = [ShardContext.of(subject.rule, s.split, mesh, r) for r in range(mesh.devices)]
        columns = [
            cut(x, layout, mesh, rng) for x, layout in zip(subject.inputs, s.operands, strict=True) if x is not None
        ]
        operands = list(zip(*columns, strict=True))
        results = run_ranks([forward(op, x, p) for x, p in zip(operands, places, strict=True)], mesh, s.split)
        compare("result", [r[0] for r in results], s.results[0], expected, mesh)
        dy = cut(gradient, s.result_gradients[0], mesh, rng)
        started = [backward(op, x, y, [g], wanted, p) for x, y, g, p in zip(operands, results, dy, places, strict=True)]
        found = run_ranks(started, mesh, s.split)
        for i, g in enumerate(whole):
            if g is not None:
                compare(f"gradient {i}", [r[i] for r in found], s.operand_gradients[i], g, mesh)
    assert tried > 1
