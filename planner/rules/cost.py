"""What an operator costs: all that prices, fusion and schemes ask of its type."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Cost", "Kind"]


class Kind(StrEnum):
    """Products and attention multiply on matrix units, look-ups read rows by their index, all else moves memory."""

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

    @property
    def product(self) -> bool:
        """A matrix product, or what is computed as one: each of two factors has a gradient that is a product, too."""
        return self is Kind.MATMUL or self is Kind.CONV

    @property
    def multiplies(self) -> bool:
        """It takes the matrix units, and most of a step's time."""
        return self.product or self is Kind.ATTENTION

    @property
    def fuses(self) -> bool:
        """It may join the kernel of a neighbour; what does not is a kernel by itself."""
        return not (self.multiplies or self is Kind.GATHER)

    @property
    def view(self) -> bool:
        """It only rearranges: a strided read of its operand."""
        return self is Kind.FREE or self is Kind.LAYOUT


@dataclass(frozen=True, slots=True)
class Cost:
    """`flops` and `backward_flops` are of the whole operator, backward with all gradients, of a product with those of
    its two factors."""

    kind: Kind = Kind.ELEMENTWISE
    flops: float = 0.0
    backward_flops: float = 0.0
