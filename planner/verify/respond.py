"""Whether a value could show an error at all.

Where every shard of a result is alike but for rounding, exchanged shards look like the right ones; where a shard is
zero, so does one that was never computed.  Such a value proves nothing, unless what the operator reads is alike in the
same way (what is expanded along a dimension, a mask that masks nobody): then any run gives shards that are alike.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.ir import DeviceMesh, Layout
from planner.kernels.shards import Array, views
from planner.rules.rule import Rule
from planner.verify.compare import alike, nonzero, typical_size

__all__ = ["silence"]


def silence(
    result: Array,
    layout: Layout,
    rule: Rule,
    place: int,
    operands: Sequence[Array | None],
    mesh: DeviceMesh,
) -> str:
    """Why result number `place` would not show exchanged or missing shards; empty where it would.

    `operands` are the whole values that the operator reads.  Only floats are judged: conditions and indices take few
    values, and are compared exactly.
    """
    if result.dtype.kind != "f" or result.size < 2:
        return ""
    if not nonzero(result):  # of an operand that is zero, zero is the answer
        return "it is zero everywhere on these values" if _varies(operands) else ""
    dims = rule.results[place] if place < len(rule.results) else None
    scale = typical_size(result)
    for d, axes in enumerate(layout.dims if dims is not None else ()):
        if not axes or dims is None:
            continue
        alone = Layout(tuple(a if k == d else () for k, a in enumerate(layout.dims)), (), layout.parts)
        pieces = views(result, alone, mesh)
        distinct = list({id(p): p for p in pieces}.values())
        if len(distinct) < 2 or not _reads_along(dims[d], rule, operands):
            continue
        if all(alike(distinct[0], p, scale) for p in distinct[1:]):
            return f"its shards along dimension {d} are all alike on these values"
        silent = [i for i, p in enumerate(distinct) if not nonzero(p, scale)]
        if any(not _reads_zeros(i, len(distinct), dims[d], rule, operands) for i in silent):
            return f"a shard along dimension {d} is zero on these values"
    return ""


def _varies(operands: Sequence[Array | None]) -> bool:
    """All float operands hold something else than zero."""
    floats = [x for x in operands if x is not None and x.dtype.kind == "f"]
    return bool(floats) and all(nonzero(x) for x in floats)


def _reads_along(factors: Sequence[str], rule: Rule, operands: Sequence[Array | None]) -> bool:
    """Some float operand carries one of the factors, and is not itself alike or zero somewhere along it."""
    for x, dims in zip(operands, rule.operands, strict=False):
        if x is None or dims is None or x.dtype.kind != "f":
            continue
        for k, own in enumerate(dims):
            if k < x.ndim and x.shape[k] > 1 and set(own) & set(factors) and _lively(x, k):
                return True
    return False


def _reads_zeros(number: int, count: int, factors: Sequence[str], rule: Rule, operands: Sequence[Array | None]) -> bool:
    """Some float operand is zero in the same of so many pieces: an expert that no token goes to computes nothing."""
    for x, dims in zip(operands, rule.operands, strict=False):
        if x is None or dims is None or x.dtype.kind != "f":
            continue
        for k, own in enumerate(dims):
            if k < x.ndim and set(own) & set(factors) and x.shape[k] % count == 0:
                size = x.shape[k] // count
                if not nonzero(np.moveaxis(x, k, 0)[number * size : (number + 1) * size], typical_size(x)):
                    return True
    return False


def _lively(x: Array, dim: int) -> bool:
    """No half along the dimension is zero, and its first and last index differ."""
    along, scale = np.moveaxis(x, dim, 0), typical_size(x)
    half = len(along) // 2
    return nonzero(along[:half], scale) and nonzero(along[-half:], scale) and not alike(along[0], along[-1], scale)
