"""Matrix products: a factor that the result lacks is contracted and leaves a pending sum.

A product is linear in each operand on its own; a bias joins either of them.
"""

from __future__ import annotations

import math

from planner.rules.notation import expand
from planner.rules.operator import KeepWholeError, Operator, sharded
from planner.rules.registry import rule
from planner.rules.rule import Rule

__all__ = ["product_rule"]


def product_rule(o: Operator, text: str, *, kind: str = "matmul") -> Rule:
    """A product of operands 0 and 1 with an optional bias 2: two operations per combination of factors."""
    sizes = expand(text, o.inputs, o.outputs).factors
    return sharded(
        o,
        text,
        kind=kind,
        linear=[(0, 2), (1, 2)],
        differentiable=(0, 1, 2),
        saved=(0, 1),
        flops=2.0 * math.prod(sizes.values()),
    )


@rule("MatMul")
def _matmul(o: Operator) -> Rule:
    """Operands of rank one are a row (left) or a column (right); leading dimensions broadcast."""
    left = "k" if o.rank(0) == 1 else "b... m k"
    right = "k" if o.rank(1) == 1 else "b... k n"
    rows = "m" if o.rank(0) > 1 else ""
    columns = "n" if o.rank(1) > 1 else ""
    batch = "b..." if max(o.rank(0), o.rank(1)) > 1 else ""
    return product_rule(o, f"{left}, {right} -> {batch} {rows} {columns}")


@rule("com.microsoft::FusedMatMul")
def _fused_matmul(o: Operator) -> Rule:
    """alpha · A' B' with the last two dimensions transposed on request."""
    if o.attribute("transBatchA", 0) or o.attribute("transBatchB", 0):
        raise KeepWholeError("its operands are transposed in their batch dimensions")
    if min(o.rank(0), o.rank(1)) < 2:
        return _matmul(o)
    left = "k m" if o.attribute("transA", 0) else "m k"
    right = "n k" if o.attribute("transB", 0) else "k n"
    return product_rule(o, f"b... {left}, b... {right} -> b... m n")


@rule("Gemm")
def _gemm(o: Operator) -> Rule:
    """alpha · A' B' + beta · C, where C broadcasts to the result."""
    left = "k m" if o.attribute("transA", 0) else "m k"
    right = "n k" if o.attribute("transB", 0) else "k n"
    bias = ("", "n", "m n")[o.rank(2)] if o.has(2) else ""
    return product_rule(o, f"{left}, {right}, +{bias} -> m n")


@rule("Einsum")
def _einsum(o: Operator) -> Rule:
    """Labels become factors of the same name; one that repeats within a term (a diagonal) stays whole."""
    equation = str(o.attribute("equation", "")).replace(" ", "")
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if not arrow:
        counts = {c: left.count(c) for c in left if c.isalpha()}
        right = ("..." if "..." in left else "") + "".join(sorted(c for c, n in counts.items() if n == 1))
    diagonal = {c for t in terms for c in t if c.isalpha() and t.count(c) > 1}

    def spell(term: str) -> str:
        head, dots, tail = term.partition("...")
        words = [*(f"{c}!" if c in diagonal else c for c in head), *(["batch..."] if dots else [])]
        return " ".join([*words, *(f"{c}!" if c in diagonal else c for c in tail)])

    text = ", ".join(map(spell, terms)) + " -> " + spell(right)
    operands = range(len(terms))
    flops = float(max(len(terms), 1)) * math.prod(expand(text, o.inputs, o.outputs).factors.values())
    return sharded(
        o, text, kind="matmul", linear=[(i,) for i in operands], differentiable=operands, saved=operands, flops=flops
    )
