"""Contractions of quantised tensors: sums of products of small integers, scaled afterwards.

Parts of a contraction add up exactly while the result is an integer sum, and like any other sum where it is scaled to
floating point; a result that is rounded to eight bits again needs the whole sum.
"""

from __future__ import annotations

import math

from planner.rules.notation import expand
from planner.rules.operator import KeepWholeError, Operator, sharded
from planner.rules.registry import rule
from planner.rules.rule import InnerCollective, Rule

__all__: list[str] = []


def _product(o: Operator, a: int, b: int) -> tuple[str, str, str]:
    """Operands a and b of a product, and its result; vectors are a row (left) or a column (right)."""
    left = "k" if o.rank(a) == 1 else "b... m k"
    right = "k" if o.rank(b) == 1 else "b... k n"
    batch = "b... " if max(o.rank(a), o.rank(b)) > 1 else ""
    return left, right, f"{batch}{'m ' if o.rank(a) > 1 else ''}{'n' if o.rank(b) > 1 else ''}"


def _row(o: Operator, i: int) -> str:
    """Scale or zero point of A: one for the tensor, or one per row."""
    if not o.has(i) or math.prod(o.shape(i)) == 1:
        return "*..."
    return "m" if o.rank(i) == 1 else "b... m 1"


def _column(o: Operator, i: int) -> str:
    """Scale or zero point of B: one for the tensor, or one per column."""
    if not o.has(i) or math.prod(o.shape(i)) == 1:
        return "*..."
    return "n" if o.rank(i) == 1 else "b... 1 n"


@rule("MatMulInteger", "com.microsoft::MatMulInteger16")
def _matmul_integer(o: Operator) -> Rule:
    """Exact in int32, so that parts of the contraction add up exactly."""
    left, right, result = _product(o, 0, 1)
    text = f"{left}, {right}, {_row(o, 2)}, {_column(o, 3)} -> {result}"
    return sharded(o, text, kind="matmul", flops=_products(o, text))


@rule("com.microsoft::MatMulIntegerToFloat")
def _matmul_integer_to_float(o: Operator) -> Rule:
    """A, B, their scales, their zero points, and a bias of the columns."""
    left, right, result = _product(o, 0, 1)
    parameters = f"{_row(o, 2)}, {_column(o, 3)}, {_row(o, 4)}, {_column(o, 5)}"
    text = f"{left}, {right}, {parameters}, +n -> {result}"
    return sharded(o, text, kind="matmul", flops=_products(o, text))


@rule("com.microsoft::DynamicQuantizeMatMul")
def _dynamic_matmul(o: Operator) -> Rule:
    """A is quantised by its smallest and largest element, on which ranks that split it agree first."""
    if o.rank(1) != 2 or o.rank(0) < 2:
        raise KeepWholeError("its operands are no matrices")
    text = f"b... m k, k n, {_column(o, 2)}, {_column(o, 3)}, +n -> b... m n"
    of_a = [*(f"b{i}" for i in range(o.rank(0) - 2)), "m", "k"]
    inner = [InnerCollective(f, "all_reduce", (), 8, reduction="max", statistic=True) for f in of_a]
    return sharded(o, text, kind="matmul", flops=_products(o, text), inner=inner)


@rule("QLinearMatMul")
def _qlinear_matmul(o: Operator) -> Rule:
    """The sum over `k` is rescaled and rounded, so that it stays whole.

    Operands: A, its scale and zero point, B, its scale and zero point, the result's.
    """
    left, right, result = _product(o, 0, 3)
    text = f"{left}, {_row(o, 1)}, {_row(o, 2)}, {right}, {_column(o, 4)}, {_column(o, 5)}, *..., *... -> {result}"
    return sharded(o, text, kind="matmul", whole=["k"], flops=_products(o, text))


@rule("com.microsoft::QGemm")
def _qgemm(o: Operator) -> Rule:
    """A, B (each with scale and zero point), C, scale and zero point of the result: float where they are absent.

    C is added to the integer sum; without it, parts of a sum that is not rounded add up.
    """
    left = "k m" if o.attribute("transA", 0) else "m k"
    right = "n k" if o.attribute("transB", 0) else "k n"
    bias = ("", "n", "m n")[o.rank(6)] if o.has(6) else "-"
    text = f"{left}, *..., *..., {right}, {_column(o, 4)}, {_column(o, 5)}, {bias}, *..., *... -> m n"
    return sharded(o, text, kind="matmul", whole=["k"] if o.has(6) or o.has(7) else [], flops=_products(o, text))


@rule("com.microsoft::MatMulNBits")
def _matmul_nbits(o: Operator) -> Rule:
    """A, weights (N, blocks, bytes of a block), a scale per block, zero points, group indices, bias.

    The contraction is split between blocks.  Zero points of fewer than eight bits are packed: `p` counts their bytes
    and `w` blocks per byte.  Older graphs give scales and zero points as one dimension, and a row of either may end
    with a byte that is not full: the contraction then stays whole.
    """
    n, blocks = o.shape(1)[0], o.shape(1)[1]
    bits = int(o.attribute("bits", 4))
    block = int(o.attribute("block_size", 32))
    packed = o.has(3) and not o.is_float(3)
    per_byte = 8 // bits if packed and 8 % bits == 0 else 1
    full = blocks * block == int(o.attribute("K", 0)) and blocks % per_byte == 0
    flat = o.rank(2) == 1 or (o.has(3) and o.rank(3) == 1)
    grouped = o.has(4) and math.prod(o.shape(4)) > 0
    zero = "p" if packed else "p w"
    zeros = "" if not o.has(3) else f"(n {zero})" if o.rank(3) == 1 else "n p" if packed else "n (p w!)"
    if not full:
        scales = "n *" if o.rank(2) == 2 else "*..."
        stay = "!" if o.rank(2) == 1 or (o.has(3) and o.rank(3) == 1) else ""
        zeros = "-" if not o.has(3) else "n *" if o.rank(3) == 2 else "*..."
        text = f"b... m k!, n{stay} * *, {scales}, {zeros}, -, n -> b... m n"
        return sharded(o, text, kind="matmul", differentiable=(0,), counts={"N": ("n",)}, flops=2.0 * _size(o) * n)
    scales = "(n p w!)" if o.rank(2) == 1 else "n (p w!)"
    text = f"b... m (p w! u!), n (p w!) *, {scales}, {zeros or '-'}, -, +n -> b... m n"
    return sharded(
        o,
        text,
        kind="matmul",
        sizes={"p": blocks // per_byte, "w": per_byte, "u": block},
        whole=["p"] if flat or grouped or bits not in (2, 4, 8) else [],
        linear=[(0, 5)],
        differentiable=(0,),
        saved=(1, 2, 3),
        flops=2.0 * _size(o) * n,
        counts={"K": ("p",), "N": ("n",)},
    )


def _size(o: Operator) -> float:
    return float(math.prod(o.shape(0)))


def _products(o: Operator, text: str) -> float:
    return 2.0 * math.prod(expand(text, o.inputs, o.outputs).factors.values())
