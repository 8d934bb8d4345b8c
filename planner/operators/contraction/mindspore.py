"""Products in MindSpore: nn.Dense and MatMul."""

from __future__ import annotations

from planner.emit.mindspore.primitives import Primitive, primitives

__all__: list[str] = []

primitives(
    {
        "MatMul": Primitive("MatMul", (0, 1), flattened=True),
        "Gemm": Primitive("MatMul", (0, 1), flattened=True, bias=2),
    }
)
