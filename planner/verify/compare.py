"""Whether shards are the pieces of a whole value, element by element, in double precision.

An element a that should be b is close where |a − b| ≤ `TOLERANCE` · (|b| + m), m the median size of the value's
elements that are not zero: a mask of −10³⁸ in a tensor does not widen what is allowed elsewhere.  Elements beyond that
may still be rounding, where an operator subtracts numbers that are nearly equal; how far rounding moves an operator's
result is measured (`Rounding`), and `ROUNDINGS` times that is allowed as long as it stays below `CAP` of the value's
own size.  Infinities must stand in the same places with the same sign; a reference that holds NaN proves nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from planner.ir import DeviceMesh, Layout
from planner.kernels.shards import Array, Region, Shards, combine, regions, unfolded

__all__ = [
    "CAP",
    "ROUNDINGS",
    "TOLERANCE",
    "Difference",
    "Rounding",
    "alike",
    "difference",
    "nonzero",
    "reduced",
    "sampled",
    "typical_size",
]

TOLERANCE: Final = 1e-9  # double precision sums a million terms to 1e-13; a wrong shard is off by 1e-6 or more
ROUNDINGS: Final = 64.0  # an execution rounds at every addition; the measurement moves every operand once
SEEN: Final = 100 * TOLERANCE  # an error that is larger than this share of an element is seen
CAP: Final = 1e-3  # beyond this share of a value's size an error is no rounding that anybody may call harmless

MASKS: Final = 1e6  # times the typical size: what lies beyond is a masking value

_MASK: Final = 1e4  # the least masking value

_CHUNK: Final = 1 << 15  # elements compared at a time: three such arrays stay in a core's cache
_SAMPLE: Final = 4096  # elements whose median is taken

Rounding = Callable[[], Array]  # how far rounding moves each element of the whole value: absolute, in its shape


@dataclass(frozen=True, slots=True)
class Difference:
    """`error` is the largest |a − b| / (|b| + m); `reason` is empty where the value is as it should be.

    `unproved` says why nothing follows from the comparison; `excused`, that rounding explains what is left of it."""

    error: float = 0.0
    reason: str = ""
    unproved: str = ""
    excused: bool = False

    @property
    def fine(self) -> bool:
        return not (self.reason or self.unproved)


def difference(
    shards: Shards,
    layout: Layout,
    whole: Array,
    mesh: DeviceMesh,
    rounding: Rounding | None = None,
    values: Shards | None = None,
) -> Difference:
    """The worst element over all ranks.  `shards` hold the local values of `layout`, pending reductions included;
    `values` are the shards after these, where they are known."""
    reason = _misfit(shards, layout, whole, mesh)
    if reason:
        return _nothing(whole) or Difference(np.inf, reason)
    if layout.parts:
        local, (view, plain) = layout.local_shape(whole.shape, mesh), layout.unfolded(whole.shape)
        moved = None if rounding is None else lambda: np.broadcast_to(rounding(), whole.shape).reshape(view)
        known = None if values is None else unfolded(values, layout, local)
        return difference(unfolded(shards, layout, local), plain, whole.reshape(view), mesh, moved, known)
    values = reduced(shards, layout, mesh) if values is None else values
    scale = typical_size(whole)
    worst, suspects, examined = 0.0, [], True
    compared: set[tuple[int, ...]] = set()
    for rank, (piece, region) in enumerate(zip(values, regions(layout, whole.shape, mesh), strict=True)):
        key = (id(piece), *(s.start for s in region))
        if key in compared:
            continue
        compared.add(key)
        expected = whole[region]
        if _same_memory(piece, expected):
            examined = False
            continue
        error = _largest(piece, expected, scale)
        worst = max(worst, error)
        if not error <= TOLERANCE:
            suspects.append((rank, piece, region))
    # An element that is not a number is a suspect, wherever it was compared with another.
    if (suspects or not examined) and (nothing := _nothing(whole)):
        return nothing
    return _explained(suspects, whole, scale, worst, rounding) if suspects else Difference(worst)


def _misfit(shards: Shards, layout: Layout, whole: Array, mesh: DeviceMesh) -> str:
    """Which rank holds another shape or element type than the layout means; empty where none does."""
    local = layout.local_shape(whole.shape, mesh)
    for rank, piece in enumerate(shards):
        if piece.shape != local:
            return f"rank {rank} holds shape {list(piece.shape)}, layout {layout} means {list(local)}"
        if piece.dtype != whole.dtype:
            return f"rank {rank} holds {piece.dtype} where {whole.dtype} is expected"
    return ""


def _nothing(whole: Array) -> Difference | None:
    """What a comparison with a value that is not a number shows."""
    if whole.dtype.kind == "f" and _has_nan(whole):
        return Difference(unproved="the whole model's value is not a number")
    return None


def reduced(shards: Shards, layout: Layout, mesh: DeviceMesh) -> Shards:
    """The shards after their pending reductions; ranks of one group share the array."""
    values = list(shards)
    for axis, reduction in reversed(layout.partial):
        done: dict[tuple[int, ...], Array] = {}
        for group in mesh.groups([axis]):
            key = tuple(id(values[r]) for r in group)
            if key not in done:
                done[key] = combine([values[r] for r in group], reduction)
            for r in group:
                values[r] = done[key]
    return tuple(values)


def typical_size(value: Array) -> float:
    """Median size of the finite elements that are not zero, of a sample spread over the value; 0 where all are zero.
    Where most elements are masked (-1e9 and beyond) it is that of the others."""
    if value.dtype.kind not in "fV" or not value.size:
        return 0.0
    sample = np.abs(sampled(value, _SAMPLE).astype(np.float64))
    sample = sample[np.isfinite(sample) & (sample > 0)]
    if sample.size:
        size = float(np.median(sample))
        if size < _MASK:
            return size
        others = sample[sample * MASKS < size]
        return float(np.median(others)) if others.size else size
    finite = np.abs(value[np.isfinite(value)].astype(np.float64))
    return float(finite.max(initial=0.0))


def sampled(value: Array, count: int) -> Array:
    """About `count` elements spread over all dimensions, the same ones every time; all of a smaller value."""
    if value.size <= count:
        return value.reshape(-1)
    return value[_places(value.shape, count)].reshape(-1)


@lru_cache(maxsize=256)
def _places(shape: tuple[int, ...], count: int) -> tuple[Array, ...]:
    rng = np.random.default_rng(len(shape))
    share = (count / math.prod(shape)) ** (1 / len(shape))
    return np.ix_(*(np.sort(rng.choice(n, max(1, round(n * share)), replace=False)) for n in shape))


def nonzero(value: Array, scale: float = 0.0) -> bool:
    """Whether any element is more than rounding of others that are as large as `scale`; most often one of the first is,
    and no others are read then."""
    least = SEEN * scale
    with np.errstate(invalid="ignore"):
        return not all(np.all(np.abs(x) <= least) for x, _ in _pieces(value, value))  # of no number, too


def alike(a: Array, b: Array, scale: float) -> bool:
    """Whether each could stand for the other, and no comparison of elements as large as `scale` would notice; where
    that is not so, most often their first elements show it."""
    return a.shape == b.shape and all(_alike(x, y, scale) for x, y in _pieces(a, b))


def _alike(x: Array, y: Array, scale: float) -> bool:
    if x.dtype.kind != "f":
        return np.array_equal(x, y)
    with np.errstate(invalid="ignore", over="ignore"):
        return bool(np.all((x == y) | (np.abs(x - y) <= SEEN * (np.abs(y) + scale))))


def _has_nan(value: Array) -> bool:
    with np.errstate(invalid="ignore", over="ignore"):
        total = value.sum()  # one pass without a temporary; infinities of both signs give NaN, too
    return bool(np.isnan(total) and np.isnan(value).any())


def _same_memory(a: Array, b: Array) -> bool:
    """Both are views of the very same elements."""
    here, there = a.__array_interface__, b.__array_interface__
    return bool(here["data"][0] == there["data"][0] and a.strides == b.strides and a.dtype == b.dtype)


def _largest(found: Array, expected: Array, scale: float) -> float:
    """Largest |a − b| / (|b| + scale); infinity where an infinity or a NaN stands elsewhere, or exact values differ."""
    if found.dtype.kind not in "fV":
        return 0.0 if np.array_equal(found, expected) else np.inf
    if found.dtype.kind == "V":  # bfloat16 and float8: quantised values
        found, expected = found.astype(np.float64), expected.astype(np.float64)
    worst = 0.0
    space = np.empty(min(found.size, _CHUNK), dtype=found.dtype)
    with np.errstate(invalid="ignore", over="ignore"):
        for x, y in _pieces(found, expected):
            d = np.subtract(x, y, out=space[: x.size].reshape(x.shape))
            largest = max(float(d.max()), -float(d.min())) if d.size else 0.0
            if largest <= worst * scale:  # false for NaN
                continue
            if scale > 0 and largest < np.inf:  # then all elements are finite
                np.abs(d, out=d)
                size = np.abs(y)
                size += scale
                d /= size
                worst = max(worst, float(d.max()))
            else:
                worst = max(worst, _relative(x, y, d, scale))
    return worst


def _pieces(a: Array, b: Array) -> Iterator[tuple[Array, Array]]:
    """Corresponding parts of at most some `_CHUNK` elements, as views."""
    if a.size <= _CHUNK or not a.ndim:
        yield a, b
        return
    if a.flags.c_contiguous and b.flags.c_contiguous:
        a, b = a.reshape(-1), b.reshape(-1)
    rows = max(1, _CHUNK * len(a) // a.size)
    for at in range(0, len(a), rows):
        x, y = a[at : at + rows], b[at : at + rows]
        if rows == 1 and x.size > _CHUNK:
            yield from _pieces(x[0], y[0])
        else:
            yield x, y


def _relative(x: Array, y: Array, d: Array, scale: float) -> float:
    np.abs(d, out=d)
    special = ~(np.isfinite(x) & np.isfinite(y))
    if special.any():
        if not np.array_equal(x[special], y[special]):
            return np.inf
        d[special] = 0.0
    size = np.asarray(np.abs(y) + scale)
    size[special] = 1.0
    size[(size == 0) & (d == 0)] = 1.0
    with np.errstate(divide="ignore"):
        return float((d / size).max(initial=0.0))


def _explained(
    suspects: list[tuple[int, Array, Region]],
    whole: Array,
    scale: float,
    worst: float,
    rounding: Rounding | None,
) -> Difference:
    """What is left of the suspects when rounding is allowed for."""
    if rounding is None or (worst == np.inf and whole.dtype.kind == "f" and _infinite_elsewhere(suspects, whole)):
        return Difference(worst, _text(suspects, whole, worst))
    noise = np.broadcast_to(rounding(), whole.shape)  # of a redistribution, one figure for all elements
    if whole.dtype.kind != "f":  # whole numbers and conditions: rounding may flip those that it moves, no others
        wrong = [s for s in suspects if np.any((s[1] != whole[s[2]]) & (noise[s[2]] == 0))]
        if wrong:
            return Difference(np.inf, _text(wrong, whole, worst))
        flips = float(np.mean(noise != 0))
        return (
            Difference(flips, excused=True)
            if flips <= CAP
            else Difference(unproved=f"rounding moves {flips:.1%} of its elements")
        )
    allowed = ROUNDINGS * np.maximum(noise, np.finfo(np.float64).eps * _largest_usual(whole, scale))
    for suspect in suspects:
        _, piece, region = suspect
        beyond = np.abs(piece - whole[region]) > np.maximum(
            allowed[region], TOLERANCE * (np.abs(whole[region]) + scale)
        )
        if np.any(beyond & np.isfinite(whole[region])):
            return Difference(worst, _text([suspect], whole, worst))
    size = np.abs(whole) + scale
    magnified = float(np.max(allowed / np.where(size > 0, size, 1.0), initial=0.0, where=np.isfinite(whole)))
    largest = float(np.max(np.abs(whole), initial=0.0, where=np.isfinite(whole)))
    if magnified > CAP and largest > float(np.max(allowed, initial=0.0)):
        return Difference(unproved=f"it magnifies rounding to {magnified:.1g} of its size")
    # A value of pure rounding is zero in exact arithmetic.
    return Difference(0.0 if magnified > CAP else worst, excused=True)


def _largest_usual(whole: Array, scale: float) -> float:
    """Of the value's elements but for those that mask: formulas that differ by the order of an addition, as p - 1 of a
    probability near one, round on this scale whatever becomes of the result."""
    sizes = np.abs(whole)
    return float(np.max(sizes, initial=0.0, where=sizes <= MASKS * scale))


def _infinite_elsewhere(suspects: list[tuple[int, Array, Region]], whole: Array) -> bool:
    for _, piece, region in suspects:
        special = ~(np.isfinite(piece) & np.isfinite(whole[region]))
        if not np.array_equal(piece[special], whole[region][special]):
            return True
    return False


def _text(suspects: list[tuple[int, Array, Region]], whole: Array, worst: float) -> str:
    rank, piece, region = suspects[0]
    others = f" (and {len(suspects) - 1} more ranks)" if len(suspects) > 1 else ""
    if whole.dtype.kind == "f":
        return f"rank {rank}{others} differs from the whole model by {worst:.3g} of the value's size"
    count = int(np.count_nonzero(piece != whole[region]))
    return f"rank {rank}{others} differs from the whole model in {count} of {piece.size} elements"
