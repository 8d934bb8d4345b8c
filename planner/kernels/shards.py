"""Values on virtual devices: one array per rank.  Cutting a whole value up, and putting it together again."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.errors import VerificationError
from planner.ir import DeviceMesh, Layout, Reduction

__all__ = [
    "Array",
    "Region",
    "Shards",
    "assemble",
    "combine",
    "light_terms",
    "once_each",
    "put_together",
    "regions",
    "shard",
    "unfolded",
    "views",
]

Array = NDArray[Any]
Shards = tuple[Array, ...]  # index = rank
Region = tuple[slice, ...]

_SAMPLE = 1 << 16  # elements that show the ordinary size of a large tensor
_DROWNED = 1e3  # times the ordinary size of an element, which the standard deviation is where a few are huge


@lru_cache(maxsize=4096)
def regions(layout: Layout, shape: tuple[int, ...], mesh: DeviceMesh) -> tuple[Region, ...]:
    """The part of a whole tensor that lies on each rank."""
    return tuple(layout.region(shape, mesh, rank) for rank in range(mesh.devices))


def combine(values: list[Array], reduction: Reduction) -> Array:
    """Reduction of equally shaped values."""
    if reduction is Reduction.SUM:
        if len(values) == 1:
            return values[0].copy()
        total = np.asarray(values[0] + values[1])  # of scalars numpy makes no array
        for v in values[2:]:
            np.add(total, v, out=total)
        return total
    stacked = np.stack(values)
    return stacked.max(axis=0) if reduction is Reduction.MAX else stacked.min(axis=0)


def unfolded(shards: Shards, layout: Layout, shape: tuple[int, ...]) -> Shards:
    """The shards of a tensor of which some dimension is split in parts, as those of `layout.unfolded`; replicas stay
    one array."""
    counts = layout.parts
    view = tuple(n for size, c in zip(shape, counts, strict=True) for n in ((size,) if c == 1 else (c, size // c)))
    return once_each(shards, lambda piece: piece.reshape(view))


def once_each(shards: Shards | list[Array], change: Callable[[Array], Array]) -> Shards:
    """Every shard changed; those that are one array stay one."""
    done: dict[int, Array] = {}
    for piece in shards:
        if id(piece) not in done:
            done[id(piece)] = change(piece)
    return tuple(done[id(piece)] for piece in shards)


def shard(value: Array, layout: Layout, mesh: DeviceMesh, rng: np.random.Generator | None = None) -> Shards:
    """Lay a whole value out.  Ranks that hold the same piece share one array.

    A pending sum is decomposed into random, unequal terms when `rng` is given, so that errors cannot
    cancel; otherwise the first rank of each group holds the value and the others zero.  A pending
    maximum or minimum is lowered (raised) at random on all but one rank per element.
    """
    if layout.parts:
        shape, plain = layout.unfolded(value.shape)
        local = layout.local_shape(value.shape, mesh)
        return once_each(shard(value.reshape(shape), plain, mesh, rng), lambda piece: piece.reshape(local))
    pieces: dict[tuple[tuple[int, int], ...], Array] = {}
    out: list[Array] = []
    for region in regions(layout, value.shape, mesh):
        key = tuple((s.start, s.stop) for s in region)
        if key not in pieces:
            pieces[key] = np.asarray(value[region], order="C")  # ascontiguousarray would make a scalar a vector
        out.append(pieces[key])
    for axis, reduction in layout.partial:
        out = _decompose(out, axis, reduction, mesh, rng)
    return tuple(out)


def views(value: Array, layout: Layout, mesh: DeviceMesh) -> Shards:
    """Lay a whole value out without a copy, unless a dimension is split in parts: ranks that hold the same piece share
    one view of it."""
    if layout.parts:
        shape, plain = layout.unfolded(value.shape)
        local = layout.local_shape(value.shape, mesh)
        return once_each(views(value.reshape(shape), plain, mesh), lambda piece: piece.reshape(local))
    pieces: dict[tuple[int, ...], Array] = {}
    out: list[Array] = []
    for region in regions(layout, value.shape, mesh):
        key = tuple(s.start for s in region)
        if key not in pieces:
            pieces[key] = value[region]
        out.append(pieces[key])
    return tuple(out)


def light_terms(value: Array, layout: Layout, mesh: DeviceMesh) -> Shards:
    """Lay a value with pending sums out in two terms that are not zero, 1.7 and -0.7 times the value: whatever is not
    linear, or reduces otherwise, shows, and the other ranks' zeros take no memory."""
    if layout.parts:
        shape, plain = layout.unfolded(value.shape)
        local = layout.local_shape(value.shape, mesh)
        return once_each(light_terms(value.reshape(shape), plain, mesh), lambda piece: piece.reshape(local))
    weights = {0: 1.7, 1: -0.7}
    pieces: dict[tuple[object, ...], Array] = {}
    out: list[Array] = []
    for rank, region in enumerate(regions(layout, value.shape, mesh)):
        at = mesh.coordinates(rank)
        weight = math.prod(weights.get(at[a], 0.0) for a in layout.partial_axes)
        key = (weight, *(s.start for s in region))
        if key not in pieces:
            part = value[region]
            pieces[key] = part * weight if weight else np.broadcast_to(np.zeros((), part.dtype), part.shape)
        out.append(pieces[key])
    return tuple(out)


def _decompose(
    shards: list[Array], axis: str, reduction: Reduction, mesh: DeviceMesh, rng: np.random.Generator | None
) -> list[Array]:
    out = list(shards)
    terms: dict[tuple[int, ...], list[Array]] = {}
    for group in mesh.groups([axis]):
        # Replicas of the same pieces must stay replicas: decompose each distinct piece once.
        key = tuple(id(shards[r]) for r in group)
        if key not in terms:
            terms[key] = _terms(shards[group[0]], len(group), reduction, rng)
        for r, term in zip(group, terms[key], strict=True):
            out[r] = term
    return out


def _terms(whole: Array, n: int, reduction: Reduction, rng: np.random.Generator | None) -> list[Array]:
    if reduction is Reduction.SUM:
        if rng is None:
            return [whole, *(np.zeros_like(whole) for _ in range(n - 1))]
        if np.issubdtype(whole.dtype, np.floating):
            # An infinity, or what terms would overflow beside (a mask), is one rank's; the others hold zeros there.
            most = float(np.finfo(whole.dtype).max) / (64 * n * n) if whole.dtype.itemsize >= 4 else np.inf
            finite = np.isfinite(whole) & (np.abs(whole) <= most)
            scale = _scale(whole, finite)
            parts = [(rng.standard_normal(whole.shape) * scale * (i + 1)).astype(whole.dtype) for i in range(n - 1)]
        else:
            parts = [rng.integers(-5, 5, size=whole.shape).astype(whole.dtype) for _ in range(n - 1)]
        if np.issubdtype(whole.dtype, np.floating):
            parts = [np.where(finite, part, 0).astype(whole.dtype) for part in parts]
        return [*parts, (whole - sum(parts[1:], parts[0])).astype(whole.dtype)] if parts else [whole]
    if rng is None:
        return [whole] * n
    owner = rng.integers(0, n, size=whole.shape)
    sign = -1 if reduction is Reduction.MAX else 1
    noise = [rng.integers(1, 4, size=whole.shape) * sign for _ in range(n)]
    return [np.where(owner == i, whole, whole + noise[i]).astype(whole.dtype) for i in range(n)]


def _scale(whole: Array, finite: NDArray[np.bool_]) -> float | NDArray[np.float64]:
    """The size of random terms: that of the value's elements, or of each of them where a few large ones (a mask of -1e9
    beside zeros) would drown the others, for what large terms cancel of each other is lost to rounding."""
    std = float(np.std(whole[finite])) if finite.any() else 0.0
    std = std if 0 < std < np.inf else 1.0
    sizes = np.abs(np.where(finite, whole, 0)).astype(np.float64)
    sample = sizes.reshape(-1)[:: max(1, sizes.size // _SAMPLE)]
    ordinary = float(np.median(sample)) if sample.size else 0.0
    if not ordinary:
        ordinary = min(float(np.quantile(sample[sample > 0], 0.1)), 1.0) if sample.any() else 1.0
    if std <= _DROWNED * ordinary:
        return std
    return np.maximum(sizes, ordinary)


def put_together(values: Shards, layout: Layout, shape: tuple[int, ...], mesh: DeviceMesh) -> tuple[Array, Shards]:
    """The whole value of ranks' parts without pending reductions, and the parts: views of it where it was made of them.
    Of replicas that are several arrays the last one counts, and the others stay what they are."""
    if layout.parts:
        view, plain = layout.unfolded(shape)
        own = unfolded(values, layout, layout.local_shape(shape, mesh))
        return put_together(own, plain, view, mesh)[0].reshape(shape), values
    places = [(*(s.start for s in region),) for region in regions(layout, shape, mesh)]
    last = dict(zip(places, values, strict=True))
    if len(last) == 1:
        return values[-1], values
    whole = np.empty(shape, dtype=values[0].dtype)
    pieces = {}
    for place, region in zip(places, regions(layout, shape, mesh), strict=True):
        if place not in pieces:
            pieces[place] = whole[region]
            pieces[place][...] = last[place]
    parts = (pieces[place] if value is last[place] else value for place, value in zip(places, values, strict=True))
    return whole, tuple(parts)


def assemble(shards: Shards, layout: Layout, shape: tuple[int, ...], mesh: DeviceMesh, *, what: str = "value") -> Array:
    """The whole value that the shards stand for.

    VerificationError where a shard has the wrong shape, or ranks that should hold replicas differ.
    """
    local = layout.local_shape(shape, mesh)
    for rank, piece in enumerate(shards):
        if piece.shape != local:
            raise VerificationError(
                f"{what}: rank {rank} holds shape {piece.shape}, layout {layout} of {shape} means {local}"
            )
    if layout.parts:
        view, plain = layout.unfolded(shape)
        return assemble(unfolded(shards, layout, local), plain, view, mesh, what=what).reshape(shape)
    values: list[Array] = list(shards)
    for axis, reduction in reversed(layout.partial):
        reduced: dict[tuple[int, ...], Array] = {}
        for group in mesh.groups([axis]):
            key = tuple(id(values[r]) for r in group)
            if key not in reduced:
                reduced[key] = combine([values[r] for r in group], reduction)
            for r in group:
                values[r] = reduced[key]
    whole = np.empty(shape, dtype=values[0].dtype)
    seen: dict[tuple[tuple[int, int], ...], Array] = {}
    for piece, region in zip(values, regions(layout, shape, mesh), strict=True):
        key2 = tuple((s.start, s.stop) for s in region)
        first = seen.setdefault(key2, piece)
        if first is not piece and not _replicas_agree(first, piece):
            raise VerificationError(f"{what}: ranks that should hold replicas under {layout} hold different values")
        whole[region] = piece
    return whole


def _replicas_agree(a: Array, b: Array) -> bool:
    if a.dtype == b.dtype and np.array_equal(a, b):  # as they mostly do
        return True
    if a.dtype.kind in "fV":  # V: the types of ml_dtypes (bfloat16, float8, …)
        a, b = a.astype(np.float64), b.astype(np.float64)
        # Replicas may have been reduced in different orders.
        scale = float(np.max(np.abs(a), initial=0.0, where=np.isfinite(a)))
        return bool(np.allclose(a, b, rtol=1e-3, atol=1e-4 * scale + 1e-7, equal_nan=True))
    if a.dtype.kind == "V":  # of ml_dtypes, whose NaN differ from each other
        a, b = a.astype(np.float32), b.astype(np.float32)
    return bool(np.array_equal(a, b, equal_nan=a.dtype.kind == "f"))
