"""ONNX operators in MindSpore's terms: the primitive, and which operands its strategy lists."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

__all__ = ["PRIMITIVES", "Primitive"]


@dataclass(frozen=True, slots=True)
class Primitive:
    """`operands`: slots of the ONNX operator that the strategy lists, in MindSpore's order.  `flattened`: of an
    operand with more than two dimensions all but the last are one (`nn.Dense`).  `bias`: a slot that MindSpore adds by
    an operator of its own, whose other operand lies as the result does."""

    name: str
    operands: tuple[int, ...]
    flattened: bool = False
    bias: int | None = None


# Mind the operators of nn.Dense, nn.Conv2d, nn.Embedding, nn.LayerNorm and nn.BatchNorm2d.
PRIMITIVES: Final[Mapping[str, Primitive]] = {
    "MatMul": Primitive("MatMul", (0, 1), flattened=True),
    "Gemm": Primitive("MatMul", (0, 1), flattened=True, bias=2),
    "Conv": Primitive("Conv2D", (0, 1), bias=2),
    "Gather": Primitive("Gather", (0, 1)),
    "Add": Primitive("Add", (0, 1)),
    "Sub": Primitive("Sub", (0, 1)),
    "Mul": Primitive("Mul", (0, 1)),
    "Div": Primitive("RealDiv", (0, 1)),
    "LayerNormalization": Primitive("LayerNorm", (0, 1, 2)),
    "RMSNormalization": Primitive("RmsNorm", (0, 1)),
    "BatchNormalization": Primitive("BatchNorm", (0, 1, 2, 3, 4)),
    "PRelu": Primitive("PReLU", (0, 1)),
}
