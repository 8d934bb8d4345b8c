"""Every vector-Jacobian product agrees with central differences of the operator itself, in float64."""

from __future__ import annotations

import numpy as np
import pytest

from planner.ir import Op
from planner.kernels import run_local
from planner.kernels.gradients import NoVjpError, differentiable_types, unbroadcast, vjp
from tests.unit.vjp_cases import CASES, Case

# Covered by tests of their own: contributed types without a public float64 kernel.
ELSEWHERE = {
    "CastLike", "Ceil", "GlobalLpPool", "Round", "Sign", "Scatter", "SimplifiedLayerNormalization", "Upsample",
    "com.microsoft::BiasGelu", "com.microsoft::FastGelu", "com.microsoft::FusedMatMul", "com.microsoft::Gelu",
    "com.microsoft::LinearAttention", "com.microsoft::QuickGelu", "com.microsoft::RotaryEmbedding",
    "com.microsoft::Scale", "com.microsoft::SimplifiedLayerNormalization",
    "com.microsoft::SkipLayerNormalization", "com.microsoft::SkipSimplifiedLayerNormalization",
    "com.microsoft::TransposeMatMul",
}  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_product_is_the_derivative(case: Case) -> None:
    rng = np.random.default_rng(7)
    outputs = run_local(case.op, case.inputs)
    seeds = [rng.standard_normal(y.shape) if i in case.seeded else None for i, y in enumerate(outputs)]
    wanted = [x is not None and x.dtype == np.float64 and i not in case.skipped for i, x in enumerate(case.inputs)]
    found = vjp(case.op, case.inputs, outputs, seeds, wanted)

    def scalar(inputs: list[np.ndarray | None]) -> float:
        results = run_local(case.op, inputs)
        return sum(float(np.sum(y * s)) for y, s in zip(results, seeds, strict=True) if s is not None)

    for i, x in enumerate(case.inputs):
        if not wanted[i]:
            assert found[i] is None
            continue
        assert found[i].shape == x.shape
        assert found[i].dtype == x.dtype
        for _ in range(3):
            direction = rng.standard_normal(x.shape)
            there, back = list(case.inputs), list(case.inputs)
            there[i], back[i] = x + case.epsilon * direction, x - case.epsilon * direction
            slope = (scalar(there) - scalar(back)) / (2 * case.epsilon)
            expected = float(np.sum(found[i] * direction))
            scale = float(np.linalg.norm(found[i]) * np.linalg.norm(direction)) + 1
            assert abs(slope - expected) <= case.tolerance * scale, f"operand {i}: slope {slope}, product {expected}"


def test_every_registered_type_has_a_case() -> None:
    assert differentiable_types() - {c.op.type for c in CASES} == ELSEWHERE


def test_unknown_type_is_named() -> None:
    with pytest.raises(NoVjpError, match=r"operator y \(NonMaxSuppression"):
        vjp(Op("y", "NonMaxSuppression", ("x",), ("y",)), [np.ones(2)], [np.ones(2)], [np.ones(2)], [True])


def test_half_precision_is_kept_and_computed_wide() -> None:
    x = np.linspace(-2, 2, 9).astype(np.float16)
    op = Op("y", "Tanh", ("x",), ("y",), {}, 20)
    (g,) = vjp(op, [x], [np.tanh(x)], [np.ones_like(x)], [True])
    assert g.dtype == np.float16
    np.testing.assert_allclose(g, 1 - np.tanh(x.astype(float)) ** 2, atol=2e-3)


def test_unwanted_and_integer_operands_get_nothing() -> None:
    op = Op("y", "Gather", ("x", "i"), ("y",), {}, 20)
    x, i = np.ones((3, 2)), np.array([0, 2])
    assert vjp(op, [x, i], [x[i]], [x[i]], [False, True]) == [None, None]


def test_unbroadcast_sums_repeated_dimensions() -> None:
    np.testing.assert_array_equal(unbroadcast(np.ones((2, 3, 4)), (3, 1)), np.full((3, 1), 8.0))
    assert unbroadcast(np.ones((2, 1)), (1,)).shape == (1,)


@pytest.mark.parametrize("p", [1, 2, 3])
def test_a_global_norm_is_that_of_one_large_window(p: int) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 5)).astype(np.float32)
    wide = Op("y", "GlobalLpPool", ("x",), ("y",), {"p": p}, 20)
    window = Op("y", "LpPool", ("x",), ("y",), {"p": p, "kernel_shape": (4, 5)}, 20)
    (found,), (expected,) = (vjp(op, [x], run_local(op, [x]), [np.ones((2, 3, 1, 1), np.float32)], [True])
                             for op in (wide, window))  # fmt: skip
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def contributed(kind: str, *inputs: np.ndarray, **attributes: object) -> list[np.ndarray | None]:
    op = Op("y", f"com.microsoft::{kind}", tuple(f"x{i}" for i in range(len(inputs))), ("y",), attributes, 1)
    outputs = run_local(op, inputs)
    return vjp(op, inputs, outputs, [np.ones_like(outputs[0])], [True] * len(inputs))


@pytest.mark.parametrize("flips", [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_fused_matmul_is_matmul_of_transposed_operands(flips: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 3, 4)).astype(np.float32), rng.standard_normal((2, 4, 5)).astype(np.float32)
    plain = Op("y", "MatMul", ("a", "b"), ("y",), {}, 20)
    expected = vjp(plain, [a, b], [a @ b], [np.full((2, 3, 5), 0.5, np.float32)], [True, True])
    stored = [np.ascontiguousarray(np.swapaxes(x, 1, 2)) if f else x for x, f in zip((a, b), flips, strict=True)]
    found = contributed("FusedMatMul", *stored, transA=flips[0], transB=flips[1], alpha=0.5)
    for f, g, e in zip(flips, found, expected, strict=True):
        np.testing.assert_allclose(np.swapaxes(g, 1, 2) if f else g, e, rtol=1e-5)


def test_contributed_activations_equal_the_standard_ones() -> None:
    x = np.linspace(-3, 3, 13, dtype=np.float32)
    bias = np.full(13, 0.25, dtype=np.float32)

    def standard(mode: str, at: np.ndarray) -> np.ndarray | None:
        op = Op("y", "Gelu", ("x",), ("y",), {"approximate": mode}, 20)
        return vjp(op, [at], [at], [np.ones_like(at)], [True])[0]

    np.testing.assert_allclose(contributed("Gelu", x)[0], standard("none", x), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(contributed("FastGelu", x)[0], standard("tanh", x), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(contributed("BiasGelu", x, bias)[1], standard("none", x + bias), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(contributed("Scale", x, np.float32([2.0]), scale_down=1)[0], np.full(13, 0.5))


def test_skip_normalisations_equal_addition_and_normalisation() -> None:
    rng = np.random.default_rng(0)
    x, skip, bias = (rng.standard_normal(s).astype(np.float32) for s in [(2, 3, 8), (2, 3, 8), (8,)])
    scale, shift = (0.5 + rng.random(8)).astype(np.float32), rng.standard_normal(8).astype(np.float32)
    dy, of_sum = (rng.standard_normal((2, 3, 8)).astype(np.float32) for _ in range(2))
    total = x + skip + bias
    for kind, plain, parameters in [
        ("SkipLayerNormalization", "LayerNormalization", [scale, shift]),
        ("SkipSimplifiedLayerNormalization", "RMSNormalization", [scale]),
    ]:
        inputs = [x, skip, *parameters, bias]
        names = tuple(f"x{i}" for i in range(len(inputs)))
        fused = Op("y", f"com.microsoft::{kind}", names, ("y", "", "", "sum"), {"epsilon": 1e-5}, 1)
        found = vjp(fused, inputs, run_local(fused, inputs), [dy, None, None, of_sum], [True] * len(inputs))
        norm = Op("y", plain, names[: 1 + len(parameters)], ("y",), {"epsilon": 1e-5}, 23)
        dtotal, *rest = vjp(norm, [total, *parameters], [None], [dy], [True] * (1 + len(parameters)))
        dtotal = dtotal + of_sum
        for f, e in zip(found, [dtotal, dtotal, *rest, dtotal.sum((0, 1))], strict=True):
            np.testing.assert_allclose(f, e, rtol=1e-4, atol=1e-5)
