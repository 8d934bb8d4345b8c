"""What only moves elements, or looks at them otherwise."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from planner.torch.capture.registry import aten
from planner.torch.capture.writer import Value, Writer

__all__: list[str] = []


@aten("view.default", "_unsafe_view.default", "reshape.default", "flatten.using_ints", "unflatten.int")
def _view(w: Writer, x: Value, *_: object) -> Value:
    shape = w.result_shape()
    return x if shape == x.shape else w.op("Reshape", x, w.integers(shape), shape=shape)


@aten("transpose.int")
def _transpose(w: Writer, x: Value, a: int, b: int) -> Value:
    order = list(range(x.rank))
    a, b = x.dim(a), x.dim(b)
    order[a], order[b] = order[b], order[a]
    return _permute(w, x, order)


@aten("permute.default")
def _permute(w: Writer, x: Value, dims: Sequence[int]) -> Value:
    order = [x.dim(d) for d in dims]
    if order == sorted(order):
        return x
    return w.op("Transpose", x, shape=[x.shape[d] for d in order], perm=order)


@aten("t.default")
def _t(w: Writer, x: Value) -> Value:
    return _permute(w, x, list(range(x.rank))[::-1])


@aten("unsqueeze.default")
def _unsqueeze(w: Writer, x: Value, dim: int) -> Value:
    at = dim % (x.rank + 1)
    return w.op("Unsqueeze", x, w.integers([at]), shape=(*x.shape[:at], 1, *x.shape[at:]))


@aten("squeeze.dim", "squeeze.dims", "squeeze.default")
def _squeeze(w: Writer, x: Value, dims: int | Sequence[int] | None = None) -> Value:
    given = range(x.rank) if dims is None else [dims] if isinstance(dims, int) else dims
    gone = sorted(d for d in map(x.dim, given) if x.rank and x.shape[d] == 1)
    shape = [n for d, n in enumerate(x.shape) if d not in gone]
    return w.op("Squeeze", x, w.integers(gone), shape=shape) if gone else x


@aten("expand.default")
def _expand(w: Writer, x: Value, *_: object, **__: object) -> Value:
    shape = w.result_shape()
    return x if shape == x.shape else w.op("Expand", x, w.integers(shape), shape=shape)


@aten("repeat.default")
def _repeat(w: Writer, x: Value, repeats: Sequence[int]) -> Value:
    wide = (1,) * (len(repeats) - x.rank) + x.shape
    y = x if wide == x.shape else w.op("Reshape", x, w.integers(wide), shape=wide)
    return w.op("Tile", y, w.integers(repeats), shape=[n * r for n, r in zip(wide, repeats, strict=True)])


@aten("cat.default")
def _cat(w: Writer, parts: Sequence[Value], dim: int = 0) -> Value:
    parts = [p for p in parts if p.shape != (0,)]  # torch passes over empty vectors
    if len(parts) == 1:
        return parts[0]
    at = parts[0].dim(dim)
    shape = list(parts[0].shape)
    shape[at] = sum(p.shape[at] for p in parts)
    return w.op("Concat", *parts, shape=shape, axis=at)


@aten("stack.default")
def _stack(w: Writer, parts: Sequence[Value], dim: int = 0) -> Value:
    return _cat(w, [_unsqueeze(w, p, dim) for p in parts], dim % (parts[0].rank + 1))


@aten("split.Tensor", "split_with_sizes.default", "chunk.default")
def _split(w: Writer, x: Value, size: int | Sequence[int], dim: int = 0) -> tuple[Value, ...]:
    at = x.dim(dim)
    shapes = w.result_shapes()
    if len(shapes) == 1:
        return (x,)
    return w.ops("Split", [x, w.integers([s[at] for s in shapes])], [(s, x.dtype) for s in shapes], axis=at)


@aten("slice.Tensor")
def _slice(w: Writer, x: Value, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Value:
    at, shape = x.dim(dim), w.result_shape()
    if shape == x.shape:
        return x
    n = x.shape[at]
    first = 0 if start is None else max(start + n, 0) if start < 0 else min(start, n)
    vectors = [w.integers([v]) for v in (first, first + (shape[at] - 1) * step + 1, at, step)]
    return w.op("Slice", x, *vectors, shape=shape)


@aten("select.int")
def _select(w: Writer, x: Value, dim: int, index: int) -> Value:
    at = x.dim(dim)
    where = w.scalar(index % x.shape[at], torch.int64)
    return w.op("Gather", x, where, shape=(*x.shape[:at], *x.shape[at + 1 :]), axis=at)


@aten("copy.default")
def _copy(w: Writer, x: Value, source: Value, *_: object, **__: object) -> Value:
    """The source's elements in the shape and the type of `x`."""
    found = w.cast(source, x.dtype)
    return found if found.shape == x.shape else w.op("Expand", found, w.integers(x.shape), shape=x.shape)


@aten("slice_scatter.default")
def _slice_scatter(
    w: Writer, x: Value, source: Value, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Value:
    """`x` with the source in the place of a slice."""
    at = x.dim(dim)
    n = x.shape[at]
    first = 0 if start is None else max(start + n, 0) if start < 0 else min(start, n)
    source = w.cast(source, x.dtype)
    return _replaced(w, x, source, at, first) if step == 1 else _interleaved(w, x, source, at, first, step)


@aten("select_scatter.default")
def _select_scatter(w: Writer, x: Value, source: Value, dim: int, index: int) -> Value:
    at = x.dim(dim)
    one = _unsqueeze(w, w.cast(source, x.dtype), at)
    return _replaced(w, x, one, at, index % x.shape[at])


def _interleaved(w: Writer, x: Value, source: Value, at: int, first: int, step: int) -> Value:
    """`x` with the source's places at every step: both in one row, from which the result is chosen."""
    n = x.shape[at]
    places = torch.arange(n)
    places[first : first + (source.shape[at] - 1) * step + 1 : step] = n + torch.arange(source.shape[at])
    both = _cat(w, [x, source], at)
    return w.op("Gather", both, w.integers(places.tolist()), shape=x.shape, axis=at)


def _replaced(w: Writer, x: Value, part: Value, at: int, first: int) -> Value:
    """`x` with the part from place `first` of dimension `at` on."""

    def rest(begin: int, end: int) -> list[Value]:
        if begin == end:
            return []
        shape = (*x.shape[:at], end - begin, *x.shape[at + 1 :])
        return [w.op("Slice", x, *(w.integers(v) for v in ([begin], [end], [at])), shape=shape)]

    pieces = [*rest(0, first), part, *rest(first + part.shape[at], x.shape[at])]
    return part if len(pieces) == 1 else w.op("Concat", *pieces, shape=x.shape, axis=at)


@aten("unbind.int")
def _unbind(w: Writer, x: Value, dim: int = 0) -> tuple[Value, ...]:
    return tuple(_select(w, x, dim, k) for k in range(x.shape[x.dim(dim)]))


@aten("constant_pad_nd.default", "pad.default")
def _pad(w: Writer, x: Value, pads: Sequence[int], *how: object, value: float | None = None) -> Value:
    value = next((v for v in how if isinstance(v, int | float)), value) or 0
    mode = next((v for v in how if isinstance(v, str)), "constant")
    before, after = [0] * x.rank, [0] * x.rank
    for k in range(len(pads) // 2):
        before[x.rank - 1 - k], after[x.rank - 1 - k] = pads[2 * k], pads[2 * k + 1]
    wrapped = mode == "circular"  # of what is left; the other modes repeat what is taken away, too
    if wrapped:
        x = _cropped(w, x, before, after)
    filled = w.scalar(value, x.dtype) if mode == "constant" else None
    wide = [max(p, 0) for p in (*before, *after)]
    if any(wide):
        shape = [n + b + a for n, b, a in zip(x.shape, wide[: x.rank], wide[x.rank :], strict=True)]
        mode = {"replicate": "edge", "circular": "wrap"}.get(mode, mode)
        x = w.op("Pad", x, w.integers(wide), filled, shape=shape, mode=mode)
    return x if wrapped else _cropped(w, x, before, after)


def _cropped(w: Writer, x: Value, before: list[int], after: list[int]) -> Value:
    """Negative widths take away."""
    first = [max(-b, 0) for b in before]
    last = [n - max(-a, 0) for n, a in zip(x.shape, after, strict=True)]
    shape = tuple(e - b for b, e in zip(first, last, strict=True))
    return x if shape == x.shape else w.op("Slice", x, w.integers(first), w.integers(last), shape=shape)


@aten("tril.default", "triu.default")
def _triangle(w: Writer, x: Value, diagonal: int = 0) -> Value:
    return w.op("Trilu", x, w.scalar(diagonal, torch.int64), shape=x.shape, upper=int("triu" in w.operator))


@aten("flip.default")
def _flip(w: Writer, x: Value, dims: Sequence[int]) -> Value:
    at = [x.dim(d) for d in dims]
    vectors = [w.integers(v) for v in ([-1] * len(at), [-(2**62)] * len(at), at, [-1] * len(at))]
    return w.op("Slice", x, *vectors, shape=x.shape)
