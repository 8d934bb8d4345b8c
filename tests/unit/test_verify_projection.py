"""Random projections know the gradients of a product from everything else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from planner.ir import Op
from planner.kernels import run_local
from planner.kernels.gradients import vjp
from planner.verify.projection import are_product_gradients

CASES: list[tuple[str, tuple[tuple[int, ...], ...], dict[str, Any]]] = [
    ("MatMul", ((4, 8, 16), (16, 32)), {}),
    ("MatMul", ((2, 3, 8, 16), (2, 3, 16, 5)), {}),
    ("MatMul", ((3, 8, 16), (2, 3, 16, 5)), {}),
    ("MatMul", ((2, 1, 8, 16), (3, 16, 5)), {}),
    ("Gemm", ((8, 16), (5, 16), (5,)), {"transB": 1, "alpha": 0.5, "beta": 2.0}),
    ("Gemm", ((16, 8), (16, 5), (8, 1)), {"transA": 1}),
]


@pytest.mark.parametrize(("kind", "shapes", "attributes"), CASES, ids=lambda x: str(x))
def test_true_gradients_pass_and_any_wrong_element_does_not(
    kind: str, shapes: tuple[tuple[int, ...], ...], attributes: dict[str, Any]
) -> None:
    rng = np.random.default_rng(0)
    operands = [rng.standard_normal(s) for s in shapes]
    op = Op("y", kind, tuple("abc"[: len(shapes)]), ("y",), attributes, opset=13)
    (y,) = run_local(op, operands)
    assert y is not None
    dy = rng.standard_normal(y.shape)
    gradients = vjp(op, operands, [y], [dy], [True] * len(shapes))
    assert are_product_gradients(op, operands, dy, gradients, rng)
    for i, gradient in enumerate(gradients):
        assert gradient is not None
        for place in rng.choice(gradient.size, 4, replace=False):
            wrong = gradient.copy()
            wrong.flat[place] += 1e-9
            changed = [*gradients[:i], wrong, *gradients[i + 1 :]]
            assert not are_product_gradients(op, operands, dy, changed, rng), (i, place)
        for whole in (gradient * 0, gradient / 2, np.roll(gradient, 1, axis=-1), gradient[..., ::-1]):
            if gradient.shape[-1] > 1 or whole is not gradient[..., ::-1]:
                changed = [*gradients[:i], whole, *gradients[i + 1 :]]
                same = np.array_equal(whole, gradient)
                assert are_product_gradients(op, operands, dy, changed, rng) == same


def test_an_absent_candidate_is_not_asked_about() -> None:
    rng = np.random.default_rng(0)
    a, b, dy = rng.standard_normal((8, 16)), rng.standard_normal((16, 4)), rng.standard_normal((8, 4))
    op = Op("y", "MatMul", ("a", "b"), ("y",), opset=13)
    assert are_product_gradients(op, [a, b], dy, [None, a.T @ dy], rng)
