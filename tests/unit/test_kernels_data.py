"""Random values are reproducible, keep indices valid, masks usable and activations finite."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from planner.ir import Graph, Op, Role, Tensor
from planner.verify.data import random_tensors
from planner.verify.reference import run_ops


def graph(tensors: dict[str, tuple[Any, ...]], *ops: Op) -> Graph:
    """Tensors as name → (shape, element type[, role or value]); results of operators are activations."""
    found = {}
    for name, (shape, dtype, *rest) in tensors.items():
        value = rest[0] if rest and isinstance(rest[0], np.ndarray) else None
        role = Role.CONSTANT if value is not None else rest[0] if rest else Role.ACTIVATION
        found[name] = Tensor(name, shape, dtype, role, value)
    return Graph(ops, found, tuple(n for n, t in found.items() if t.role is Role.INPUT), (ops[-1].outputs[0],))


def op(kind: str, inputs: str, output: str, **attributes: Any) -> Op:
    return Op(output, kind, tuple(inputs.split()), (output,), attributes, 20)


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def test_values_depend_on_name_and_seed_alone() -> None:
    relu = op("Relu", "x", "y")
    small = graph({"x": ((3,), "float32", Role.INPUT), "y": ((3,), "float32")}, relu)
    large = graph(
        {"z": ((5,), "float32", Role.PARAMETER), "x": ((3,), "float32", Role.INPUT), "y": ((3,), "float32")}, relu
    )
    first = random_tensors(small, 1)
    np.testing.assert_array_equal(first["x"], random_tensors(large, 1)["x"])
    assert not np.array_equal(first["x"], random_tensors(small, 2)["x"])
    assert first["x"].dtype == np.float32


def test_indices_are_bounded_through_the_operators_that_move_them() -> None:
    g = graph(
        {
            "ids": ((4, 9), "int32", Role.INPUT),
            "s": ((1,), "int64", ints(0)), "e": ((1,), "int64", ints(8)), "a": ((1,), "int64", ints(1)),
            "shape": ((1,), "int64", ints(32)),
            "cut": ((4, 8), "int32"), "flat": ((32,), "int32"), "wide": ((32,), "int64"),
            "table": ((3, 5), "float32", Role.PARAMETER), "y": ((32, 5), "float32"),
        },
        op("Slice", "ids s e a", "cut"), op("Reshape", "cut shape", "flat"), op("Cast", "flat", "wide", to=7),
        op("Gather", "table wide", "y"),
    )  # fmt: skip
    ids = random_tensors(g, 0)["ids"]
    assert ids.dtype == np.int32
    assert set(np.unique(ids)) == {0, 1, 2}


def test_components_of_coordinates_have_bounds_of_their_own() -> None:
    g = graph(
        {
            "row": ((6, 1), "int64", Role.INPUT), "column": ((6, 1), "int64", Role.INPUT),
            "at": ((6, 2), "int64"), "data": ((2, 50), "float32", Role.PARAMETER), "y": ((6,), "float32"),
        },
        op("Concat", "row column", "at", axis=-1), op("GatherND", "data at", "y"),
    )  # fmt: skip
    drawn = [random_tensors(g, seed) for seed in range(20)]
    assert max(int(v["row"].max()) for v in drawn) == 1
    assert max(int(v["column"].max()) for v in drawn) > 30


def test_labels_lie_below_the_classes() -> None:
    g = graph(
        {"s": ((6, 4, 3), "float32", Role.INPUT), "t": ((6, 3), "int64", Role.INPUT), "l": ((), "float32")},
        op("SoftmaxCrossEntropyLoss", "s t", "l"),
    )
    assert set(np.unique(random_tensors(g, 0)["t"])) == {0, 1, 2, 3}


def test_positions_plus_a_known_offset_stay_inside() -> None:
    g = graph(
        {"p": ((40,), "int64", Role.INPUT), "two": ((), "int64", np.array(2)), "q": ((40,), "int64"),
         "table": ((10, 5), "float32", Role.PARAMETER), "y": ((40, 5), "float32")},
        op("Add", "p two", "q"), op("Gather", "table q", "y"),
    )  # fmt: skip
    assert int(random_tensors(g, 0)["p"].max()) == 7


@pytest.mark.parametrize("masked_where_true", [False, True])
def test_a_mask_leaves_something_in_every_row(masked_where_true: bool) -> None:
    low = np.array(-np.inf, dtype=np.float32)
    branches = "m low x" if masked_where_true else "m x low"
    g = graph(
        {"m": ((50, 4), "bool", Role.INPUT), "x": ((50, 4), "float32", Role.INPUT), "low": ((), "float32", low),
         "s": ((50, 4), "float32"), "y": ((50, 4), "float32")},
        op("Where", branches, "s"), op("Softmax", "s", "y"),
    )  # fmt: skip
    values = random_tensors(g, 0)
    assert 0.02 < values["m"].mean() < 0.98
    assert np.isfinite(run_ops(g, values)["y"]).all()


def test_an_attention_mask_of_integers_is_mostly_one() -> None:
    g = graph(
        {"mask": ((20, 8), "int64", Role.INPUT), "zero": ((), "int64", np.array(0)), "pad": ((20, 8), "bool"),
         "low": ((), "float32", np.array(-3e38, dtype=np.float32)), "x": ((20, 8), "float32", Role.INPUT),
         "y": ((20, 8), "float32")},
        op("Equal", "mask zero", "pad"), op("Where", "pad low x", "y"),
    )  # fmt: skip
    mask = random_tensors(g, 0)["mask"]
    assert set(np.unique(mask)) == {0, 1}
    assert mask.mean() > 0.8
    assert mask[:, 0].all()


def test_deep_products_neither_explode_nor_vanish() -> None:
    tensors: dict[str, tuple[Any, ...]] = {"h0": ((8, 64), "float32", Role.INPUT)}
    ops = []
    for i in range(30):
        tensors |= {f"w{i}": ((96, 64), "float32", Role.PARAMETER), f"b{i}": ((96,), "float32", Role.PARAMETER),
                    f"v{i}": ((96, 64), "float32", Role.PARAMETER), f"g{i}": ((8, 96), "float32"),
                    f"h{i + 1}": ((8, 64), "float32")}  # fmt: skip
        ops += [op("Gemm", f"h{i} w{i} b{i}", f"g{i}", transB=1), op("MatMul", f"g{i} v{i}", f"h{i + 1}")]
    g = graph(tensors, *ops)
    last = run_ops(g, random_tensors(g, 0))["h30"]
    assert 0.05 < float(np.std(last)) < 20


def test_normalisation_parameters_are_sane() -> None:
    statistics = np.array([1e-4, 4.0], dtype=np.float32)
    g = graph(
        {"x": ((2, 2, 3), "float32", Role.INPUT), "s": ((2,), "float32", Role.PARAMETER),
         "b": ((2,), "float32", Role.PARAMETER), "m": ((2,), "float32", Role.CONSTANT),
         "v": ((2,), "float32", Role.CONSTANT), "k": ((2,), "float32", Role.PARAMETER),
         "known": ((2,), "float32", statistics), "y": ((2, 2, 3), "float32"), "z": ((2, 2, 3), "float32")},
        op("BatchNormalization", "x s b m v", "y"), op("BatchNormalization", "y k b m known", "z"),
    )  # fmt: skip
    values = random_tensors(g, 0)
    assert (values["v"] > 0).all()
    np.testing.assert_allclose(values["s"], 1, atol=0.5)
    np.testing.assert_array_equal(values["known"], statistics)
    # The file's own variance is of trained weights, which are not there: the scale makes up for it.
    np.testing.assert_allclose(values["k"] / np.sqrt(statistics + 1e-5), 1, atol=0.5)


def test_divisors_stay_away_from_zero() -> None:
    g = graph(
        {"x": ((9,), "float32", Role.INPUT), "d": ((9,), "float32", Role.PARAMETER), "y": ((9,), "float32")},
        op("Div", "x d", "y"),
    )
    assert (random_tensors(g, 0)["d"] >= 0.5).all()
