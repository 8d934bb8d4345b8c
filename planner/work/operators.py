"""Kernels of one operator under a strategy, forward and backward.

A product is one kernel forward and one backward for each of its two factors that has a gradient; these share evenly
what the rule states of the backward, if that makes something anew.  Attention's backward computes the scores again and
a gradient of each operand of both products: 2.5 times the forward pass (FlashAttention 2, Dao 2023, section 4.1).  A
lookup reads and writes a row; backward its gradient is read and added to the table's.  All else is traffic: what enters
is read and what leaves written; backward the gradients of the latter and what was kept are read, those of the former
written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

import numpy as np

from planner.cost_models.kernels import Kernel, KernelKind
from planner.rules.cost import Kind
from planner.rules.rule import MULTIPLIED, Dims, Rule
from planner.work.fusion import Part

__all__ = ["Operator", "Shards", "kernels"]

CAUSAL_SHARE: Final = 0.5  # of the scores, the part that a causal mask leaves
BACKWARD_SHARE: Final = 2.5  # of attention's operations
MOST_ALIGNED: Final = 16.0  # elements: 16 bytes of the narrowest type


class Shards(Protocol):
    """Into how many pieces a strategy cuts what: numbers, or arrays with one number for each strategy."""

    @property
    def parallelism(self) -> Any: ...

    def operand(self, slot: int) -> Any: ...

    def result(self, output: int) -> Any: ...

    def factor(self, name: str) -> Any: ...


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator as its kernels see it; bytes are of whole tensors, 0 of absent ones, `width` those of a float."""

    rule: Rule
    part: Part
    operand_bytes: Sequence[float]
    result_bytes: Sequence[float]
    width: float


def kernels(op: Operator, shards: Shards) -> tuple[list[Kernel], list[Kernel]]:
    """Forward and backward; figures of the kernels are numbers or arrays as those of `shards` are."""
    part = op.part
    if part.role == "idle":
        return [], []
    if part.role in ("scores", "mixing"):
        return _core(op, shards)
    if part.role == "fused" or op.rule.cost.kind.fuses:
        return _fused(op, shards)
    return {"gather": _gather, "attention": _attention}.get(op.rule.cost.kind, _product)(op, shards)


def _moved(op: Operator, shards: Shards) -> Any:
    return _read(op, shards, op.part.reads) + _written(op, shards, op.part.writes)


def _read(op: Operator, shards: Shards, slots: Sequence[int]) -> Any:
    return sum((op.operand_bytes[i] / shards.operand(i) for i in slots), 0.0)


def _written(op: Operator, shards: Shards, outputs: Sequence[int]) -> Any:
    return sum((op.result_bytes[j] / shards.result(j) for j in outputs), 0.0)


def _fused(op: Operator, shards: Shards) -> tuple[list[Kernel], list[Kernel]]:
    part = op.part
    kind = cast(KernelKind, str(Kind.LAYOUT if op.rule.cost.kind is Kind.FREE else op.rule.cost.kind))
    flops = op.rule.cost.flops / shards.parallelism
    given = _written(op, shards, part.writes)
    forward = _vector(kind, flops, _read(op, shards, part.reads) + given, part)
    if not part.trained:
        return [forward], []
    saved = _read(op, shards, part.saved_operands) + _written(op, shards, part.saved_results)
    return [forward], [_vector(kind, 2 * flops, given + saved + _read(op, shards, part.gradients), part)]


def _vector(kind: KernelKind, flops: Any, moved: Any, part: Part) -> Kernel:
    return Kernel(kind, flops, moved + 0.0 * flops, 1.0, 1.0, 1.0, 1.0, int(part.begins))


def _gather(op: Operator, shards: Shards) -> tuple[list[Kernel], list[Kernel]]:
    written = _written(op, shards, op.part.writes)
    forward = Kernel("gather", 0.0 * written, 2 * written, 1.0, 1.0, 1.0, 1.0)
    backward = Kernel("gather", 0.0 * written, 3 * written, 1.0, 1.0, 1.0, 1.0)
    return [forward], [backward] * op.part.trained


def _attention(op: Operator, shards: Shards) -> tuple[list[Kernel], list[Kernel]]:
    rule = op.rule
    share = CAUSAL_SHARE if op.part.causal else 1.0
    traffic = _moved(op, shards)
    sizes = {f: rule.factors.get(f, 1) / shards.factor(f) for f in "bhgste"}
    dims = sizes["b"] * sizes["h"] * sizes["g"], sizes["s"], sizes["t"], sizes["e"]
    forward = Kernel("attention", rule.cost.flops / shards.parallelism * share, traffic, *dims)
    back = rule.cost.backward_flops / shards.parallelism * share
    return [forward], [Kernel("attention_backward", back, 2 * traffic, *dims)] * op.part.trained


def _core(op: Operator, shards: Shards) -> tuple[list[Kernel], list[Kernel]]:
    """One of the two products of an attention written out, its half of the kernel."""
    part, launches = op.part, int(op.part.begins)
    flops = op.rule.cost.flops / shards.parallelism * (CAUSAL_SHARE if part.causal else 1.0)
    traffic, dims = _moved(op, shards), _product_sizes(op, shards)
    forward = Kernel("attention", flops, traffic, *dims, launches)
    backward = Kernel("attention_backward", BACKWARD_SHARE * flops, 2 * traffic, *dims, launches)
    return [forward], [backward] * part.trained


def _product(op: Operator, shards: Shards) -> tuple[list[Kernel], list[Kernel]]:
    kind: KernelKind = "convolution" if op.rule.cost.kind == "conv" else "product"
    flops, traffic = op.rule.cost.flops / shards.parallelism, _moved(op, shards)
    back = _per_gradient(op.rule) / shards.parallelism
    b, m, n, k = _product_sizes(op, shards)
    aligned = MOST_ALIGNED if kind == "convolution" else _aligned(m, n, k)
    backward: list[Kernel] = []
    if op.part.trained:
        if 0 in op.part.gradients:
            backward.append(Kernel(kind, back, traffic, b, m, k, n, aligned=aligned))
        if 1 in op.part.gradients:
            backward.append(Kernel(kind, back, traffic, b, k, n, m, of_weights=op.part.by_weight, aligned=aligned))
    return [Kernel(kind, flops, traffic, b, m, n, k, aligned=aligned)], backward


def _aligned(rows: Any, columns: Any, depth: Any) -> Any:
    """The largest power of two, up to the most that matters, that divides columns and depth.

    Of the three matrices of a product `y = x w` and of its two gradients, each lies in memory with the columns of `y`
    or the depth innermost, and never with its rows.  Products with vectors have kernels of their own.
    """
    least = np.minimum(*(np.gcd(np.ceil(x).astype(np.int64), int(MOST_ALIGNED)) for x in (columns, depth)))
    return np.where(np.minimum(rows, np.minimum(columns, depth)) == 1, MOST_ALIGNED, least)[()]


def _per_gradient(rule: Rule) -> float:
    """Operations of the backward for one of the two factors; those of the forward where the rule knows no gradient."""
    factors = rule.differentiable & MULTIPLIED
    return rule.cost.backward_flops / len(factors) if factors else rule.cost.flops


def _product_sizes(op: Operator, shards: Shards) -> tuple[Any, Any, Any, Any]:
    """(batch, rows, columns, depth) of a product or convolution on one device."""
    rule = op.rule
    left, right = _names(rule.operands[0]), _names(rule.operands[1] if len(rule.operands) > 1 else None)
    result = _names(rule.results[0])

    def size(names: set[str]) -> Any:
        out: Any = 1.0
        for f in names:
            out = out * np.maximum(1.0, rule.factors[f] / shards.factor(f))
        return out

    if rule.cost.kind == "conv":
        columns = size((right - left) & result)
        rows = np.maximum(1.0, op.result_bytes[0] / shards.result(0) / op.width / columns)
        return 1.0, rows, columns, np.maximum(1.0, rule.cost.flops / shards.parallelism / (2.0 * rows * columns))
    rows, columns = size((left - right) & result), size((right - left) & result)
    return size(left & right & result), rows, columns, size((left | right) - result)


def _names(dims: Dims | None) -> set[str]:
    return {f for d in dims or () for f in d}
