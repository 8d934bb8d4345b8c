"""One operator on arrays: every source of kernels, old opsets, and errors that name the operator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from planner.ir import Op
from planner.kernels import NoKernelError, run_local
from planner.kernels.local import numpy_kernels
from planner.kernels.session import run_node

RNG = np.random.default_rng(3)


def op(kind: str, count: int, opset: int = 20, outputs: int = 1, **attributes: Any) -> Op:
    return Op(
        "y0", kind, tuple(f"x{i}" for i in range(count)), tuple(f"y{i}" for i in range(outputs)), attributes, opset
    )


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def ints(*values: Any) -> np.ndarray:
    return np.array(values, dtype=np.int64)


PLAIN = [
    (op("Add", 2), [normal(2, 3), normal(3)]),
    (op("Sub", 2), [normal(2, 3), normal(2, 1)]),
    (op("Mul", 2), [normal(2, 3), normal()]),
    (op("Div", 2), [normal(2, 3), normal(3)]),
    (op("Neg", 1), [normal(2, 3)]),
    (op("Identity", 1), [normal(2, 3)]),
    (op("MatMul", 2), [normal(2, 3, 4), normal(4, 5)]),
    (op("MatMul", 2), [normal(4), normal(4, 5)]),
    (op("Gemm", 3, transA=1, transB=1, alpha=0.5, beta=2.0), [normal(4, 3), normal(5, 4), normal(5)]),
    (op("Gemm", 2), [normal(3, 4), normal(4, 5)]),
    (op("Reshape", 2), [normal(2, 6), ints(0, 2, -1)]),
    (op("Reshape", 2, allowzero=1), [normal(0, 6), ints(3, 0)]),
    (op("Flatten", 1), [normal(2, 3, 4)]),
    (op("Flatten", 1, axis=0), [normal(2, 3)]),
    (op("Transpose", 1), [normal(2, 3, 4)]),
    (op("Transpose", 1, perm=(1, 2, 0)), [normal(2, 3, 4)]),
    (op("Unsqueeze", 2), [normal(2, 3), ints(0, -1)]),
    (op("Unsqueeze", 1, 11, axes=(1,)), [normal(2, 3)]),
    (op("Squeeze", 1), [normal(2, 1, 1)]),
    (op("Squeeze", 2), [normal(2, 1, 1), ints(-1)]),
    (op("Concat", 2, axis=-1), [normal(2, 3), normal(2, 1)]),
    (op("Expand", 2), [normal(3, 1), ints(2, 1, 4)]),
    (op("Slice", 5), [normal(6, 5), ints(-1, 1), ints(-100, 4), ints(0, 1), ints(-2, 2)]),
    (op("Slice", 1, 9, starts=(1,), ends=(2**31,), axes=(1,)), [normal(6, 5)]),
    (op("Gather", 2, axis=1), [normal(3, 5), ints([0, -1], [2, 2])]),
]


@pytest.mark.parametrize(("o", "inputs"), PLAIN, ids=lambda v: v.type if isinstance(v, Op) else "")
def test_plain_kernel_equals_onnx_runtime(o: Op, inputs: list[np.ndarray]) -> None:
    plain = numpy_kernels()[o.type](o, inputs)
    (expected,) = run_node(o, inputs)
    assert plain is not None
    assert plain.shape == expected.shape
    np.testing.assert_allclose(plain, expected, rtol=1e-5, atol=1e-6)


# Compared with ONNX's node tests, or with the graph before fusion (tests/rules, tests/unit/test_frontends_experts.py).
ELSEWHERE = {"Cast", "CastLike", "planner::Detach", "planner::ExpertMatMul"}


def test_every_plain_kernel_is_compared() -> None:
    assert set(numpy_kernels()) - ELSEWHERE == {o.type for o, _ in PLAIN}


def test_what_is_detached_is_handed_on() -> None:
    x = normal(2, 3)
    (y,) = run_local(Op("y", "planner::Detach", ("x",), ("y",), {}, 1), [x])
    np.testing.assert_array_equal(y, x)


def test_integer_division_truncates() -> None:
    (y,) = run_local(op("Div", 2), [ints(-7, 7), ints(2, 2)])
    np.testing.assert_array_equal(y, [-3, 3])


@pytest.mark.parametrize("opset", [7, 9, 11, 12, 13, 17, 20])
def test_old_opsets_run(opset: int) -> None:
    x = normal(2, 4, 6, 6)
    (y,) = run_local(op("Conv", 2, opset, pads=(1, 1, 1, 1), group=2), [x, normal(4, 2, 3, 3)])
    assert y.shape == (2, 4, 6, 6)
    (p,) = run_local(op("MaxPool", 1, opset, kernel_shape=(2, 2), strides=(2, 2)), [x])
    assert p.shape == (2, 4, 3, 3)
    (s,) = run_local(op("Softmax", 1, opset, axis=1), [x])
    over = (1, 2, 3) if opset < 13 else 1
    np.testing.assert_allclose(s.sum(axis=over), 1, rtol=1e-5)


def test_absent_operands_and_results_stay_absent() -> None:
    o = Op("y", "Clip", ("x", "", "high"), ("y",), {}, 13)
    (y,) = run_local(o, [np.float32([-5, 5]), None, np.array(1, dtype=np.float32)])
    np.testing.assert_array_equal(y, [-5, 1])
    o = Op("mean", "LayerNormalization", ("x", "s"), ("", "mean"), {}, 17)
    none, mean = run_local(o, [normal(2, 3), normal(3)])
    assert none is None
    assert mean.shape == (2, 1)


def test_a_type_without_runtime_kernel_falls_back_to_the_reference() -> None:
    x = RNG.standard_normal((1, 2, 5, 5))  # ONNX Runtime has no double convolution
    w = RNG.standard_normal((3, 2, 3, 3))
    (y,) = run_local(op("Conv", 2), [x, w])
    (single,) = run_local(op("Conv", 2), [x.astype(np.float32), w.astype(np.float32)])
    assert y.dtype == np.float64
    np.testing.assert_allclose(y, single, rtol=1e-4, atol=1e-5)


def test_double_lrn_is_not_left_to_the_reference() -> None:
    x = RNG.standard_normal((2, 7, 3, 3))
    o = op("LRN", 1, size=5, alpha=0.5, beta=0.75, bias=1.5)
    sums = sum(np.pad(x * x, [(0, 0), (2, 2), (0, 0), (0, 0)])[:, i : i + 7] for i in range(5))
    np.testing.assert_allclose(run_local(o, [x])[0], x / (1.5 + 0.1 * sums) ** 0.75, rtol=1e-5)


def test_unknown_operator_is_named() -> None:
    with pytest.raises(NoKernelError, match=r"y0.*com\.example::Mystery"):
        run_local(op("com.example::Mystery", 1), [normal(2)])


def test_rejected_operands_are_described() -> None:
    with pytest.raises(NoKernelError, match=r"Conv.*float32\[2, 3, 4, 4\]"):
        run_local(op("Conv", 2), [normal(2, 3, 4, 4), normal(4, 5, 3, 3)])


def test_same_session_serves_other_shapes() -> None:
    o = op("Relu", 1)
    assert run_local(o, [normal(2, 3)])[0].shape == (2, 3)
    assert run_local(o, [normal(4, 5)])[0].shape == (4, 5)


def test_results_without_dimensions_are_arrays() -> None:
    x = np.array(2.0, dtype=np.float32)
    (y,) = run_local(op("Mul", 2), [x, x])
    assert isinstance(y, np.ndarray)
    (z,) = run_local(op("Relu", 1), [np.float32(-1)])
    assert z.shape == ()
