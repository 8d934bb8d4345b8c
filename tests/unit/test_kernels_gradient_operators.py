"""Gradient operators of exported training graphs equal the vector-Jacobian products of their forward."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from planner.ir import Op
from planner.kernels import NoKernelError, run_local
from planner.kernels.gradients import vjp

RNG = np.random.default_rng(5)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def forward(kind: str, *inputs: np.ndarray, outputs: int = 1, **attributes: Any) -> tuple[Op, list[Any]]:
    op = Op(
        "y0", kind, tuple(f"x{i}" for i in range(len(inputs))), tuple(f"y{i}" for i in range(outputs)), attributes, 17
    )
    op = Op(op.name, op.type, op.inputs, op.outputs, attributes, 20)
    return op, run_local(op, inputs)


def products(op: Op, inputs: list[np.ndarray], outputs: list[Any], dy: np.ndarray) -> list[Any]:
    return vjp(op, inputs, outputs, [dy, *[None] * (len(outputs) - 1)], [x.dtype == np.float32 for x in inputs])


def gradient(
    kind: str, *inputs: np.ndarray | None, outputs: int = 1, shapes: Any = None, **attributes: Any
) -> list[Any]:
    domain = "" if kind == "MaxPoolGrad" else "com.microsoft::"
    names = tuple(f"x{i}" for i in range(len(inputs)))
    op = Op("y0", domain + kind, names, tuple(f"y{i}" for i in range(outputs)), attributes, 1)
    return run_local(op, inputs, output_shapes=shapes)


def same(found: list[Any], expected: list[Any]) -> None:
    for f, e in zip(found, expected, strict=True):
        assert f.dtype == e.dtype
        np.testing.assert_allclose(f, e, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "saves_result"), [("Relu", True), ("Tanh", True), ("Sigmoid", True), ("Gelu", False), ("FastGelu", False)]
)
def test_activations(kind: str, saves_result: bool) -> None:
    x, dy = normal(3, 4), normal(3, 4)
    mode = {"approximate": "tanh"} if kind == "FastGelu" else {}
    op, (y,) = forward(kind.removeprefix("Fast"), x, **mode)
    same(gradient(f"{kind}Grad", dy, y if saves_result else x), products(op, [x], [y], dy))


@pytest.mark.parametrize("kind", ["Softmax", "LogSoftmax"])
def test_softmax(kind: str) -> None:
    x, dy = normal(2, 3, 4), normal(2, 3, 4)
    op, (y,) = forward(kind, x, axis=1)
    same(gradient(f"{kind}Grad_13", dy, y, axis=1), products(op, [x], [y], dy))


def test_layer_normalization() -> None:
    x, scale, bias, dy = normal(2, 3, 4), normal(4), normal(4), normal(2, 3, 4)
    op, (y, mean, r) = forward("LayerNormalization", x, scale, bias, outputs=3, axis=-1)
    found = gradient("LayerNormalizationGrad", dy, x, scale, mean, r, outputs=3, axis=-1)
    same(found, products(op, [x, scale, bias], [y, mean, r], dy))


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_cross_entropy(reduction: str) -> None:
    x, labels, weights = normal(4, 5), np.array([0, 3, 1, 4]), np.abs(normal(5)) + 0.5
    options = {"reduction": reduction, "ignore_index": 3}
    op, (loss, log_p) = forward("SoftmaxCrossEntropyLoss", x, labels, weights, outputs=2, **options)
    dy = np.float32(0.7)
    found = gradient("SoftmaxCrossEntropyLossGrad", dy, log_p, labels, weights, **options)
    same(found, products(op, [x, labels, weights], [loss, log_p], dy)[:1])


def test_gather_and_slice() -> None:
    x, at, dy = normal(5, 3), np.array([4, 0, 4]), normal(3, 3)
    op, (y,) = forward("Gather", x, at)
    same(gradient("GatherGrad", np.array(x.shape), at, dy), products(op, [x, at], [y], dy)[:1])
    bounds = [np.array(v) for v in ([1], [4], [0], [2])]
    op, (y,) = forward("Slice", x, *bounds)
    dy = normal(*y.shape)
    same(gradient("SliceGrad", dy, np.array(x.shape), *bounds), products(op, [x, *bounds], [y], dy)[:1])


def test_convolution() -> None:
    x, w, b = normal(2, 4, 6, 5), normal(6, 2, 3, 3), normal(6)
    options = {"pads": (1, 1, 1, 1), "strides": (2, 1), "group": 2}
    op, (y,) = forward("Conv", x, w, b, **options)
    dy = normal(*y.shape)
    same(gradient("ConvGrad", dy, x, w, outputs=3, **options), products(op, [x, w, b], [y], dy))


def test_max_pool_needs_the_shape_of_its_result() -> None:
    x = normal(2, 3, 7, 6)
    options = {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)}
    op, (y, at) = forward("MaxPool", x, outputs=2, **options)
    dy = normal(*y.shape)
    same(gradient("MaxPoolGrad", dy, at, shapes=[x.shape], **options), products(op, [x], [y, at], dy))
    # On a shard of the batch the indices still count in the whole tensor.
    second = gradient("MaxPoolGrad", dy[1:], at[1:], shapes=[(1, *x.shape[1:])], **options)
    same(second, [g[1:] for g in products(op, [x], [y, at], dy)])
    with pytest.raises(NoKernelError, match="shape of its result"):
        gradient("MaxPoolGrad", dy, at)


def test_scale() -> None:
    x = normal(3)
    same(gradient("Scale", x, np.float32([4.0]), scale_down=1), [x / 4])
    same(gradient("Scale", x, np.float32([4.0])), [x * 4])


def test_average_pool() -> None:
    x = normal(2, 3, 7, 6)
    options = {"kernel_shape": (3, 2), "strides": (2, 2), "pads": (1, 0, 1, 0)}
    op, (y,) = forward("AveragePool", x, **options)
    dy = normal(*y.shape)
    same(gradient("AveragePoolGrad", dy, shapes=[x.shape], **options), products(op, [x], [y], dy))


def test_simplified_layer_normalization() -> None:
    x, scale, dy = normal(2, 3, 8), normal(8), normal(2, 3, 8)
    op = Op("y", "RMSNormalization", ("x", "s"), ("y",), {"epsilon": 1e-5}, 23)
    r = 1 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(1e-5))
    same(gradient("SimplifiedLayerNormalizationGrad", dy, x, scale, r, outputs=2), products(op, [x, scale], [None], dy))


def test_remaining_activations_and_sums() -> None:
    x, dy = normal(3, 4), normal(3, 4)
    quick = Op("y", "com.microsoft::QuickGelu", ("x",), ("y",), {"alpha": 1.5}, 1)
    same(gradient("QuickGeluGrad", dy, x, alpha=1.5), products(quick, [x], run_local(quick, [x]), dy))
    leaky, (y,) = forward("LeakyRelu", x, alpha=0.2)
    same(gradient("LeakyReluGrad", dy, y, alpha=0.2), products(leaky, [x], [y], dy))
    same(gradient("ReduceSumTraining", x, np.array([0]), keepdims=0), [x.sum(axis=0)])
