"""Shapes inferred for operators that ONNX does not define are those that kernels give."""

from __future__ import annotations

from collections import Counter

import pytest

from planner.frontends.facts.shapes import infer
from planner.frontends.steps.infer import infer_op
from planner.ir import Op, Role, Tensor
from tests.rules.cases import FAMILIES

# Types of the suite's cases whose results have shapes that an operand's value or a runtime decides.
UNKNOWN = {
    "AveragePoolGrad", "CDist", "ConcatTraining", "FusedMatMulActivation", "GatherElementsGrad", "GatherNDGrad",
    "LinearAttention", "LinearAttentionGate", "MaxPoolGrad", "MurmurHash3", "QLinearWhere", "ReduceSumInteger",
    "ReduceSumTraining", "SplitTraining",
}  # fmt: skip


def test_inferred_shapes_are_those_of_the_kernels() -> None:
    wrong, known, unknown = [], Counter[str](), set()
    for family in FAMILIES:
        for case in family():
            domain, _, name = case.op.type.partition("::")
            if domain not in ("com.microsoft", "planner"):
                continue
            operands = [case.graph.tensors[n] if n else None for n in case.op.inputs]
            found = infer(case.op, operands) or []
            if not found or found[0][1] is None:
                unknown.add(name)
                continue
            known[name] += 1
            for j, ((dtype, shape), value) in enumerate(zip(found, case.results, strict=False)):
                if value is not None and shape is not None and (shape != value.shape or dtype != str(value.dtype)):
                    wrong.append(
                        f"{case.name}, result {j}: {dtype}{shape}, the kernel gives {value.dtype}{value.shape}"
                    )
    assert not wrong, "\n".join(wrong[:30])
    assert unknown - set(known) <= UNKNOWN
    assert len(known) > 50


@pytest.mark.parametrize(
    ("kind", "opset", "operands", "found"),
    [
        ("GroupNormalization", 21, ((2, 8, 4), (8,), (8,)), ("float32", (2, 8, 4))),
        ("MeanVarianceNormalization", 13, ((2, 8, 4, 4),), ("float32", (2, 8, 4, 4))),
        ("GreaterOrEqual", 12, ((2, 1, 4), (8, 1)), ("bool", (2, 8, 4))),
        ("LessOrEqual", 15, ((3,), ()), ("bool", (3,))),
    ],
)
def test_shapes_of_what_onnx_defines_by_a_function_alone(
    kind: str, opset: int, operands: tuple[tuple[int, ...], ...], found: tuple[str, tuple[int, ...]]
) -> None:
    tensors = {f"t{k}": Tensor(f"t{k}", s, "float32", Role.ACTIVATION) for k, s in enumerate(operands)}
    op = Op("y", kind, tuple(tensors), ("y",), {"num_groups": 4} if kind.startswith("Group") else {}, opset)
    assert infer_op(op, tensors) == [found]
