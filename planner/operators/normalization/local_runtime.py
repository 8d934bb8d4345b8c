"""Normalisations that ONNX Runtime registers without their domain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from planner.ir import Op
from planner.kernels.attributes import Array
from planner.kernels.local import in_place_of_runtime
from planner.kernels.session import run_node

__all__: list[str] = []

Operands = Sequence["Array | None"]
Results = Sequence["Array | None"]


def _in_onnx_domain(op: Op, inputs: Operands) -> Results | None:
    """ONNX Runtime registers the operator without its domain."""
    return run_node(replace(op, type=op.type.rpartition("::")[2]), inputs)


in_place_of_runtime(
    {
        "com.microsoft::SimplifiedLayerNormalization": _in_onnx_domain,
    }
)
