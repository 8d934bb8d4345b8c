"""Shapes inferred for operators that ONNX does not define are those that kernels give."""

from __future__ import annotations

from collections import Counter

from planner.frontends.contrib import infer
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
            if domain != "com.microsoft":
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
