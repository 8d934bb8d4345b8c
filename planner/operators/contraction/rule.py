"""Matrix products: a factor that the result lacks is contracted and leaves a pending sum.

A product is linear in each operand on its own; a bias joins either of them.
"""

from __future__ import annotations

import math

from planner.rules.notation import expand
from planner.rules.operator import Operator, sharded
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


@rule("com.microsoft::FusedMatMul", "com.microsoft::TransposeMatMul")
def _fused_matmul(o: Operator) -> Rule:
    """alpha · A' B', both transposed on request; `transBatch` moves a first dimension before the last one."""
    if min(o.rank(0), o.rank(1)) < 2:
        return _matmul(o)
    return product_rule(o, f"{_transposed(o, 'A', 'm k')}, {_transposed(o, 'B', 'k n')} -> b... m n")


def _transposed(o: Operator, operand: str, names: str) -> str:
    first, second = names.split()[:: -1 if o.attribute(f"trans{operand}", 0) else 1]
    return f"{first} b... {second}" if o.attribute(f"transBatch{operand}", 0) else f"b... {first} {second}"


@rule("com.microsoft::FusedMatMulActivation")
def _matmul_activation(o: Operator) -> Rule:
    """The activation needs the whole sum."""
    return _activated(o, f"{_transposed(o, 'A', 'm k')}, {_transposed(o, 'B', 'k n')} -> b... m n")


def _activated(o: Operator, text: str) -> Rule:
    flops = 2.0 * math.prod(expand(text, o.inputs, o.outputs).factors.values())
    return sharded(o, text, kind="matmul", whole=["k"], differentiable=(0, 1, 2), saved=(0, 1, 2), flops=flops)


def _gemm_operands(o: Operator) -> tuple[str, str, str]:
    """Notation of A, B and C, transposed on request; C has the rank it broadcasts from."""
    left = "k m" if o.attribute("transA", 0) else "m k"
    right = "n k" if o.attribute("transB", 0) else "k n"
    return left, right, ("", "n", "m n")[o.rank(2)] if o.has(2) else ""


@rule("Gemm")
def _gemm(o: Operator) -> Rule:
    """alpha · A' B' + beta · C, where C broadcasts to the result."""
    left, right, bias = _gemm_operands(o)
    return product_rule(o, f"{left}, {right}, +{bias} -> m n")


@rule("com.microsoft::FusedGemm")
def _fused_gemm(o: Operator) -> Rule:
    """Gemm with an activation, which needs the whole sum."""
    left, right, bias = _gemm_operands(o)
    return _activated(o, f"{left}, {right}, {bias} -> m n")


@rule("com.microsoft::GemmFastGelu")
def _gemm_fast_gelu(o: Operator) -> Rule:
    return _activated(o, "b... m k, k n, n -> b... m n")


@rule("com.microsoft::CDist")
def _distances(o: Operator) -> Rule:
    """Between all rows of A and all of B; squared ones are sums over the coordinates."""
    metric = o.attribute("metric", "sqeuclidean")
    squared = (metric.decode() if isinstance(metric, bytes) else metric) == "sqeuclidean"
    flops = 3.0 * math.prod(o.shape(0)) * o.shape(1)[0]
    return sharded(o, "m k, n k -> m n", kind="matmul", whole=[] if squared else ["k"], flops=flops)


@rule("Det")
def _det(o: Operator) -> Rule:
    """Elimination runs through all rows and columns of a matrix; only matrices are split from each other."""
    flops = 2 / 3 * math.prod(o.shape(0)) * o.shape(0)[-1]
    return sharded(
        o, "b... * * -> b...", kind="matmul", differentiable=(0,), saved=(0,), saved_results=(0,), flops=flops
    )


@rule("com.microsoft::Inverse")
def _inverse(o: Operator) -> Rule:
    flops = 2.0 * math.prod(o.shape(0)) * o.shape(0)[-1]
    return sharded(o, "b... * * -> b... * *", kind="matmul", differentiable=(0,), saved_results=(0,), flops=flops)


@rule("Einsum")
def _einsum(o: Operator) -> Rule:
    """Labels become factors of the same name; one that repeats within a term (a diagonal) stays whole.

    Shards of a diagonal are blocks on it: an operand would be split in two dimensions over one axis, which no layout
    says.
    """
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
