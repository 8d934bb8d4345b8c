"""Kernels in double precision on operands that are large enough to be cut into pieces, and their accuracy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from planner.ir import Op
from planner.kernels import NoKernelError, run_local
from planner.kernels.gradients import vjp
from planner.kernels.pieces import by_elements, by_rows, pieces
from planner.operators.elementwise.gradient import erf

RNG = np.random.default_rng(8)


def op(kind: str, count: int, opset: int = 20, **attributes: Any) -> Op:
    return Op("y0", kind, tuple(f"x{i}" for i in range(count)), ("y0",), attributes, opset)


def test_error_function_to_the_last_digits() -> None:
    x = np.concatenate([RNG.standard_normal(20_000), np.linspace(-7, 7, 2001), [0.0, 1e-300, np.inf, -np.inf]])
    exact = np.array([math.erf(v) for v in x])
    assert float(np.abs(erf(x) - exact).max()) < 1e-15
    assert np.isnan(erf(np.array([np.nan]))).all()
    assert erf(np.zeros((0, 3))).shape == (0, 3)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_and_its_slope_in_pieces(approximate: str) -> None:
    x = RNG.standard_normal((3, 20_000))[:, ::2]  # a view, whose elements do not follow each other
    gelu = op("Gelu", 1, approximate=approximate)
    (y,) = run_local(gelu, [x])
    (g,) = vjp(gelu, [x], [y], [np.ones_like(x)], [True])
    if approximate == "none":
        expected = np.array([0.5 * v * (1 + math.erf(v / math.sqrt(2))) for v in x.reshape(-1)]).reshape(x.shape)
    else:
        expected = 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    np.testing.assert_allclose(y, expected, rtol=1e-12, atol=1e-15)
    ends = [run_local(gelu, [x + s * 1e-5])[0] for s in (1, -1)]
    np.testing.assert_allclose(g, (ends[0] - ends[1]) / 2e-5, atol=1e-9)


@pytest.mark.parametrize(
    ("kind", "shapes", "attributes"),
    [
        ("Softmax", [(40, 7, 300)], {"axis": -1}),
        ("Softmax", [(40, 7, 300)], {"axis": 1}),
        ("Softmax", [(40, 7, 300)], {"axis": 0}),
        ("Sigmoid", [(40, 7, 300)], {}),
        ("Swish", [(40, 7, 300)], {"alpha": 1.3}),
        ("LayerNormalization", [(40, 7, 300), (300,), (300,)], {"axis": -1}),
        ("LayerNormalization", [(40, 7, 300), (7, 300), (300,)], {"axis": 1}),
    ],
)
def test_large_operands_give_what_their_rows_give(kind: str, shapes: list[tuple[int, ...]], attributes: Any) -> None:
    x, *rest = (RNG.standard_normal(s) for s in shapes)
    subject = op(kind, len(shapes), opset=24, **attributes)
    (whole,) = run_local(subject, [x, *rest])
    if attributes.get("axis") == 0:
        rows = np.concatenate([run_local(subject, [x[:, i : i + 1], *rest])[0] for i in range(x.shape[1])], axis=1)
    else:
        rows = np.concatenate([run_local(subject, [x[i : i + 1], *rest])[0] for i in range(len(x))])
    np.testing.assert_allclose(whole, rows, rtol=1e-13, atol=1e-16)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_cross_entropy_of_many_rows(reduction: str) -> None:
    x, labels = 3 * RNG.standard_normal((90, 700)), RNG.integers(0, 700, 90)
    labels[::7] = 5
    subject = op("SoftmaxCrossEntropyLoss", 2, reduction=reduction, ignore_index=5)
    (y,) = run_local(subject, [x, labels])
    p = np.exp(x - x.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    used = labels != 5
    each = np.where(used, -np.log(p[np.arange(90), labels]), 0.0)
    expected = {"mean": each.sum() / used.sum(), "sum": each.sum(), "none": each}[reduction]
    np.testing.assert_allclose(y, expected, rtol=1e-12)
    dy = RNG.standard_normal(np.shape(y))
    g, _ = vjp(subject, [x, labels], [y], [dy], [True, False])
    hot = np.zeros_like(p)
    hot[np.arange(90), labels] = 1
    share = dy / used.sum() if reduction == "mean" else dy
    factor = np.broadcast_to(share, (90,)) * used
    np.testing.assert_allclose(g, (p - hot) * factor[:, None], rtol=1e-11, atol=1e-15)


@pytest.mark.parametrize("shape", [(2, 5, 40, 40), (1, 96, 70, 70), (1, 3, 500, 500)])
def test_depthwise_convolution_is_one_convolution_per_channel(shape: tuple[int, ...]) -> None:
    x, w = RNG.standard_normal(shape), RNG.standard_normal((shape[1], 1, 3, 3))
    how = {"pads": (1, 1, 1, 1), "strides": (2, 1)}
    (y,) = run_local(op("Conv", 2, group=shape[1], **how), [x, w])
    for c in range(0, shape[1], 31):
        (alone,) = run_local(op("Conv", 2, **how), [x[:, c : c + 1], w[c : c + 1]])
        np.testing.assert_allclose(y[:, c : c + 1], alone, rtol=1e-12, atol=1e-13)


def test_convolution_is_a_sum_over_its_window() -> None:
    x, w, b = RNG.standard_normal((2, 4, 6, 7)), RNG.standard_normal((6, 2, 3, 2)), RNG.standard_normal(6)
    (y,) = run_local(op("Conv", 3, group=2, dilations=(1, 2), pads=(1, 0, 0, 1)), [x, w, b])
    padded = np.pad(x, ((0, 0), (0, 0), (1, 0), (0, 1)))
    expected = np.empty_like(y)
    for n, m, i, j in np.ndindex(*y.shape):
        group = slice(0, 2) if m < 3 else slice(2, 4)
        expected[n, m, i, j] = (padded[n, group, i : i + 3, j : j + 3 : 2] * w[m]).sum() + b[m]
    np.testing.assert_allclose(y, expected, rtol=1e-12, atol=1e-13)


def test_pieces_cover_everything_once() -> None:
    for count, width in [(0, 3), (1, 1), (100_000, 1), (50, 40_000), (7, 0)]:
        covered = np.zeros(count, dtype=int)
        for piece in pieces(count, width):
            covered[piece] += 1
        assert (covered == 1).all()
    x = RNG.standard_normal((300, 300))
    np.testing.assert_array_equal(by_elements(np.exp, x.T), np.exp(x.T))
    np.testing.assert_array_equal(by_rows(lambda a, b: a + b[:, None], x, x[:, 0]), x + x[:, :1])


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("per_column", [False, True])
def test_dynamically_quantised_lstm_is_that_of_onnx_runtime(direction: str, per_column: bool) -> None:
    ways, width, hidden, batch, steps = 1 + (direction == "bidirectional"), 6, 8, 3, 5
    rng = np.random.default_rng(1)

    def scale() -> np.ndarray:
        shape = (ways, 4 * hidden) if per_column else (ways,)
        return (0.003 + 0.01 * rng.random(shape)).astype(np.float32)

    # Seven bits: on CPUs without VNNI, products with unsigned bytes saturate in ONNX Runtime.
    w, r = (rng.integers(-64, 64, (ways, n, 4 * hidden)).astype(np.int8) for n in (width, hidden))
    w_scale, r_scale = scale(), scale()
    zero = np.zeros(w_scale.shape, np.int8)
    x, bias = rng.standard_normal((steps, batch, width)), rng.standard_normal((ways, 8 * hidden))
    inputs = [x.astype(np.float32), w, r, bias.astype(np.float32), *[None] * 4, w_scale, zero, r_scale, zero]
    names = tuple("" if v is None else f"x{i}" for i, v in enumerate(inputs))
    options = {"hidden_size": hidden, "direction": direction}
    subject = Op("y0", "com.microsoft::DynamicQuantizeLSTM", names, ("y0", "y1", "y2"), options, 1)
    single = run_local(subject, inputs)
    double = run_local(subject, [v.astype(np.float64) if v is not None and v.dtype.kind == "f" else v for v in inputs])
    for a, b in zip(single, double, strict=True):
        assert b.dtype == np.float64
        np.testing.assert_allclose(b, a, atol=1e-5)


def test_operands_that_do_not_fit_name_the_operator() -> None:
    with pytest.raises(NoKernelError, match=r"operator y0 \(Conv, opset 20\) fails on \(float64\[1, 3, 5\], float64"):
        run_local(op("Conv", 2), [np.ones((1, 3, 5)), np.ones((4, 2, 3))])
