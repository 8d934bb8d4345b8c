"""Operators on known operands are computed when a file is read."""

from __future__ import annotations

import numpy as np

from planner.frontends.steps.fold import _evaluator, fold
from planner.ir import Op


def _op(kind: str, inputs: str, **attributes: object) -> Op:
    return Op(f"{kind} of {inputs}", kind, tuple(inputs.split()), (f"result of {inputs}",), attributes, opset=18)


def test_operators_that_differ_in_names_alone_share_what_computes_them() -> None:
    _evaluator.cache_clear()
    for k in range(5):
        values = {f"a{k}": np.array([k, 1]), f"b{k}": np.array([2, 3])}
        found = fold(_op("Sub", f"a{k} b{k}"), values, 16)
        assert found is not None
        np.testing.assert_array_equal(found[f"result of a{k} b{k}"], [k - 2, -2])
    assert _evaluator.cache_info().currsize == 1
    twice = fold(_op("Sub", "a a"), {"a": np.array([4, 5])}, 16)
    assert twice is not None
    np.testing.assert_array_equal(twice["result of a a"], [0, 0])
    assert _evaluator.cache_info().currsize == 2, "one operand twice is not two operands"


def test_long_attributes_are_told_apart_by_all_of_their_elements() -> None:
    for middle in (1.0, 2.0):
        value = np.zeros(3000, dtype=np.float32)
        value[1500] = middle
        found = fold(_op("Constant", "", value=value), {}, 12000)
        assert found is not None
        np.testing.assert_array_equal(found["result of "], value)
