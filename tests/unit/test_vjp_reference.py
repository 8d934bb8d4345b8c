"""The reverse sweep over a graph, and the whole model by another route."""

from __future__ import annotations

import numpy as np
import pytest

from planner.errors import VerificationError
from planner.ir import Graph, Op, Role, Tensor
from planner.kernels import NoKernelError
from planner.verify.data import random_tensors
from planner.verify.reference import active_tensors, gradients, run_ops, run_whole


def network(dtype: str = "float32") -> Graph:
    """A table read by labels, a shared weight used twice (plainly and transposed), a frozen branch, a loss."""
    shapes: dict[str, tuple[tuple[int, ...], str, Role]] = {
        "ids": ((6,), "int64", Role.INPUT), "labels": ((6,), "int64", Role.INPUT),
        "table": ((7, 4), dtype, Role.PARAMETER), "w": ((4, 4), dtype, Role.PARAMETER),
        "frozen": ((6, 4), dtype, Role.CONSTANT), "unused": ((3,), dtype, Role.PARAMETER),
        "e": ((6, 4), dtype, Role.ACTIVATION), "h": ((6, 4), dtype, Role.ACTIVATION),
        "a": ((6, 4), dtype, Role.ACTIVATION), "wt": ((4, 4), dtype, Role.ACTIVATION),
        "f": ((6, 4), dtype, Role.ACTIVATION), "b": ((6, 4), dtype, Role.ACTIVATION),
        "s": ((6, 4), dtype, Role.ACTIVATION), "l": ((), dtype, Role.ACTIVATION),
        "top": ((6,), "int64", Role.ACTIVATION),
    }  # fmt: skip
    ops = (
        Op("e", "Gather", ("table", "ids"), ("e",), {}, 20),
        Op("h", "MatMul", ("e", "w"), ("h",), {}, 20),
        Op("a", "Tanh", ("h",), ("a",), {}, 20),
        Op("wt", "Transpose", ("w",), ("wt",), {}, 20),
        Op("f", "Exp", ("frozen",), ("f",), {}, 20),
        Op("b", "Add", ("a", "f"), ("b",), {}, 20),
        Op("s", "MatMul", ("b", "wt"), ("s",), {}, 20),
        Op("l", "SoftmaxCrossEntropyLoss", ("s", "labels"), ("l",), {"reduction": "mean"}, 20),
        Op("top", "ArgMax", ("s",), ("top",), {"axis": -1, "keepdims": 0}, 20),
    )
    tensors = {n: Tensor(n, s, d, r) for n, (s, d, r) in shapes.items()}
    return Graph(ops, tensors, ("ids", "labels"), ("l", "top"), "network", "l")


def test_active_tensors_lie_between_a_parameter_and_the_loss() -> None:
    assert active_tensors(network()) == {"table", "w", "e", "h", "a", "wt", "b", "s", "l"}


def test_a_rule_may_cut_the_path() -> None:
    cut = active_tensors(network(), lambda op: () if op.type == "Tanh" else range(len(op.inputs)))
    assert cut == {"w", "wt", "s", "l"}


def test_gradients_are_the_slopes_of_the_loss() -> None:
    g = network("float64")
    values = random_tensors(g, 0)
    found = gradients(g, values, run_ops(g, values))
    assert set(found) == active_tensors(g)
    rng = np.random.default_rng(1)
    for name in ("table", "w"):
        direction = rng.standard_normal(values[name].shape)
        ends = [run_ops(g, {**values, name: values[name] + s * 1e-4 * direction})["l"] for s in (1, -1)]
        np.testing.assert_allclose((ends[0] - ends[1]) / 2e-4, np.sum(found[name] * direction), rtol=1e-6, atol=1e-8)


def test_only_what_is_asked_for_is_returned() -> None:
    g = network()
    values = random_tensors(g, 0)
    activations = run_ops(g, values)
    everything = gradients(g, values, activations)
    asked = gradients(g, values, activations, ["w", "h", "frozen"])
    assert set(asked) == {"w", "h"}
    for name, value in asked.items():
        np.testing.assert_array_equal(value, everything[name])


def test_whole_model_and_single_operators_agree() -> None:
    g = network()
    values = random_tensors(g, 0)
    whole, single = run_whole(g, values), run_ops(g, values)
    assert set(whole) == {"l", "top"}
    np.testing.assert_allclose(whole["l"], single["l"], rtol=1e-5)
    np.testing.assert_array_equal(whole["top"], single["top"])


def test_missing_values_are_named() -> None:
    g = network()
    values = {k: v for k, v in random_tensors(g, 0).items() if k != "w"}
    with pytest.raises(VerificationError, match="'w'"):
        run_whole(g, values)


def test_a_graph_without_loss_has_no_gradients() -> None:
    g = network()
    bare = Graph(g.ops, g.tensors, g.inputs, g.outputs, "bare")
    with pytest.raises(VerificationError, match="bare has no loss"):
        active_tensors(bare)


def test_a_model_beyond_onnx_runtime_is_reported() -> None:
    tensors = {
        n: Tensor(n, (3,), "float32", r) for n, r in zip("gxy", [Role.INPUT] * 2 + [Role.ACTIVATION], strict=True)
    }
    op = Op("y", "com.microsoft::ReluGrad", ("g", "x"), ("y",), {}, 1)
    g = Graph((op,), tensors, ("g", "x"), ("y",), "backward")
    values = random_tensors(g, 0)
    np.testing.assert_array_equal(run_ops(g, values)["y"], values["g"] * (values["x"] > 0))
    with pytest.raises(NoKernelError, match="backward as a whole"):
        run_whole(g, values)
