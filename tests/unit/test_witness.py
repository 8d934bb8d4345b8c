"""The witness of gradients passes every vector-Jacobian product that there is, and catches what is wrong with them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from planner.ir import Op
from planner.kernels import run_local
from planner.kernels.gradients import vjp
from planner.verify.witness import DISAGREES, witness
from tests.unit.vjp_cases import CASES, Case

Arrays = list[np.ndarray | None]


def executed(case: Case) -> tuple[Arrays, Arrays, Arrays, list[bool]]:
    """Results, their gradients, the gradients of the operands, and which of these are wanted."""
    rng = np.random.default_rng(7)
    results = run_local(case.op, case.inputs)
    seeds = [rng.standard_normal(y.shape) if i in case.seeded else None for i, y in enumerate(results)]
    wanted = [x is not None and x.dtype == np.float64 and i not in case.skipped for i, x in enumerate(case.inputs)]
    return results, seeds, vjp(case.op, case.inputs, results, seeds, wanted), wanted


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_right_products_pass(case: Case) -> None:
    results, seeds, gradients, wanted = executed(case)
    for seed in range(3):
        found = witness(case.op, case.inputs, results, seeds, gradients, wanted, seed=seed)
        assert found is not None
        assert found < DISAGREES / 10


def largest_dropped(g: np.ndarray) -> np.ndarray:
    where = np.abs(g).argmax()
    return np.where(np.arange(g.size).reshape(g.shape) == where, 0.0, g)


WRONG: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "zero": np.zeros_like,
    "half": lambda g: g / 2,
    "a percent too much": lambda g: 1.01 * g,
    "sign": np.negative,
    "moved by one element": lambda g: np.roll(g, 1),
    "an element dropped": largest_dropped,
}


@pytest.mark.parametrize("mutation", WRONG)
def test_wrong_products_are_caught(mutation: str) -> None:
    """Each operand's gradient alone is wrong; a mutation that changes no number is none."""
    missed = []
    for case in CASES:
        results, seeds, gradients, wanted = executed(case)
        for i, g in enumerate(gradients):
            wrong = None if g is None else WRONG[mutation](g)
            if wrong is None or np.allclose(wrong, g, rtol=1e-6, atol=1e-9 * float(np.abs(g).max(initial=0.0))):
                continue
            given = [*gradients[:i], wrong, *gradients[i + 1 :]]
            found = witness(case.op, case.inputs, results, seeds, given, wanted, seed=3)
            if found is None or found <= DISAGREES:
                missed.append((case.name, i, found))
    assert not missed


def one(kind: str, x: np.ndarray, **attributes: object) -> tuple[float | None, float | None]:
    """(disagreement of the product, disagreement of half of it), at operands that may have kinks."""
    op = Op("y", kind, ("x",), ("y",), attributes, 20)
    results = run_local(op, [x])
    seeds = [np.random.default_rng(1).standard_normal(results[0].shape)]
    (g,) = vjp(op, [x], results, seeds, [True])
    right, half = (witness(op, [x], results, seeds, [v], [True], seed=0) for v in (g, g / 2))
    return right, half


@pytest.mark.parametrize("size", [64, 4096, 300_000])
def test_kinks_are_no_disagreement(size: int) -> None:
    x = np.random.default_rng(2).standard_normal(size)
    right, half = one("Relu", x)
    assert right is not None
    assert half is not None
    assert right < DISAGREES < half


def test_exact_kinks_and_ties_are_avoided() -> None:
    """After a Relu half of the elements are zero: a kink of the next, and ties within windows."""
    x = np.maximum(np.random.default_rng(3).standard_normal((2, 4, 16, 16)), 0)
    for kind, attributes in [("Relu", {}), ("MaxPool", {"kernel_shape": (2, 2), "strides": (2, 2)})]:
        right, half = one(kind, x, **attributes)
        assert right is not None
        assert half is not None
        assert right < DISAGREES < half


def test_all_elements_equal_have_a_witness_or_none() -> None:
    right, _ = one("Relu", np.zeros(16))
    assert right is None or right < DISAGREES


def test_steps_are_flat_between_their_jumps() -> None:
    right, _ = one("Floor", np.linspace(-2.3, 2.3, 50))
    assert right == 0.0


def test_infinite_masks_are_left_alone() -> None:
    x = np.random.default_rng(4).standard_normal((3, 5))
    x[0, 2:] = -np.inf
    right, half = one("Softmax", x, axis=-1)
    assert right is not None
    assert half is not None
    assert right < DISAGREES < half


def test_a_gradient_that_is_rounding_alone_passes() -> None:
    """A constant added to all scores changes no softmax: its gradient is zero but for rounding."""
    rng = np.random.default_rng(5)
    x, b, dy = rng.standard_normal((4, 6)), rng.standard_normal((4, 1)), rng.standard_normal((4, 6))
    y = x + b
    p = np.exp(y - y.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    g = p * (dy - (dy * p).sum(axis=1, keepdims=True))
    op = Op("y", "Add", ("x", "b"), ("y",), {}, 20)
    gradients = vjp(op, [x, b], [y], [g], [False, True])
    found = witness(op, [x, b], [y], [g], gradients, [False, True], seed=0)
    assert found is not None
    assert found < DISAGREES


def test_without_gradient_there_is_no_witness() -> None:
    op = Op("y", "Neg", ("x",), ("y",), {}, 20)
    x = np.ones(3)
    assert witness(op, [x], [-x], [x], [None], [True], seed=0) is None
    assert witness(op, [x], [-x], [x], [-x], [False], seed=0) is None
