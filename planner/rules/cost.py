"""What an operator costs: all that prices, fusion and schemes ask of its type."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Cost", "Kind"]


class Kind(StrEnum):
    """Products and attention multiply on matrix units, look-ups read rows by their index, all else moves memory.

    product     a matrix product, or what is computed as one: each of two factors has a gradient that is a product, too
    multiplies  takes the matrix units, and most of a step's time
    fuses       may join the kernel of a neighbour; what does not is a kernel by itself
    view        only rearranges: a strided read of its operand
    """

    MATMUL = "matmul"
    CONV = "conv"
    ATTENTION = "attention"
    GATHER = "gather"
    ELEMENTWISE = "elementwise"
    NORMALIZATION = "normalization"
    REDUCTION = "reduction"
    POOLING = "pooling"
    LAYOUT = "layout"
    FREE = "free"  # names what is there

    product: bool
    multiplies: bool
    fuses: bool
    view: bool

    def __init__(self, word: str) -> None:
        # Attributes, not properties: fusion and traces ask them of every operator.
        self.product = word in ("matmul", "conv")
        self.multiplies = self.product or word == "attention"
        self.fuses = not self.multiplies and word != "gather"
        self.view = word in ("layout", "free")


@dataclass(frozen=True, slots=True)
class Cost:
    """`flops` and `backward_flops` are of the whole operator, backward with all gradients, of a product with those of
    its two factors."""

    kind: Kind = Kind.ELEMENTWISE
    flops: float = 0.0
    backward_flops: float = 0.0
