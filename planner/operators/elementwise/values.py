"""What operators on each element ask of the values of their operands."""

from __future__ import annotations

import math

import numpy as np

from planner.verify.uses import Reading, Use, Uses, reads

__all__: list[str] = []


@reads("Abs", "Clip", "Relu")
def _within(r: Reading) -> Uses:
    return {0: r.loosely()}


@reads("Cast", "CastLike", "Identity", "planner::Detach")
def _same(r: Reading) -> Uses:
    return {0: r.moved(terms=r.result.terms)}


@reads("Max", "Min")
def _any_of(r: Reading) -> Uses:
    return {i: r.loosely(i) for i in range(len(r.op.inputs))}


@reads("Where")
def _where(r: Reading) -> Uses:
    return {0: Use(mask=_keeps(r)), 1: r.loosely(1), 2: r.loosely(2)}


def _keeps(r: Reading) -> bool:
    """What most of a condition should be: the side that is not a masking value."""
    low = r.value(1)
    return not (low is not None and low.dtype.kind == "f" and low.size and float(np.max(low)) < -100)


@reads("Add", "Sum")
def _sum(r: Reading) -> Uses:
    """Terms of an index share its bound.  The terms of a sum are no weights or divisors by themselves."""
    out: Uses = {}
    for i in range(len(r.op.inputs)):
        below = r.moved(i).below
        shares = None if below is None else tuple(_share(r, i, b) for b in below)
        out[i] = Use(below=shares, mask=r.result.mask, loose=True)
    return out


def _share(r: Reading, index: int, bound: int) -> int:
    """Largest bound of one term of a sum that must stay below `bound`."""
    others = [j for j in range(len(r.op.inputs)) if j != index]
    known = [v for j in others if (v := r.value(j)) is not None]
    rest = sum(int(np.max(v, initial=0)) for v in known)
    return max(1, (bound - 1 - rest) // (len(others) - len(known) + 1) + 1)


@reads("Sub")
def _difference(r: Reading) -> Uses:
    return {i: Use(below=r.moved(i).below, mask=r.result.mask, loose=True) for i in range(len(r.op.inputs))}


@reads("Mul")
def _mul(r: Reading) -> Uses:
    """An index masked by ones keeps its bound; a parameter that multiplies whole rows is a scale."""
    out: Uses = {}
    for i in range(len(r.op.inputs)):
        scale = len(r.shape(i)) <= 1 or math.prod(r.shape(i)) * 2 <= math.prod(r.result_shape)
        out[i] = Use(below=r.result.flat.below, near_one=scale, loose=True)
    return out


@reads("Not")
def _not(r: Reading) -> Uses:
    return {} if r.result.mask is None else {0: Use(mask=not r.result.mask)}


@reads("And", "Or")
def _and(r: Reading) -> Uses:
    return {0: Use(mask=r.result.mask), 1: Use(mask=r.result.mask)}


@reads("Equal")
def _equal(r: Reading) -> Uses:
    """A mask compared with zero or one, or an index compared with a table (a one-hot code spelt out)."""
    out: Uses = {}
    for i in (0, 1):
        table = r.value(1 - i)
        if table is None or not np.issubdtype(table.dtype, np.integer):
            continue
        if table.size > 1 and table.min() >= 0:
            out[i] = Use(below=(int(table.max()) + 1,), loose=True)
        elif table.size == 1 and r.result.mask is not None and int(table.reshape(-1)[0]) in (0, 1):
            out[i] = Use(mask=r.result.mask == bool(table.reshape(-1)[0]))
    return out


@reads("Div")
def _div(r: Reading) -> Uses:
    return {1: Use(positive=True)}


@reads("Sqrt", "Log", "Reciprocal")
def _root(r: Reading) -> Uses:
    return {0: Use(positive=True)}


@reads("Pow")
def _pow(r: Reading) -> Uses:
    exponent = r.value(1)
    whole = exponent is not None and bool(np.all(exponent == np.round(exponent)) and np.all(exponent > 0))
    return {} if whole else {0: Use(positive=True), 1: Use(near_one=True)}
