"""Which elements an operator moves where, along each dimension that it does not leave as it is.

Read twice: by the rules, for the whole operator, and by the kernels that exchange what a shard lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter

import numpy as np

from planner.ir.tensor import ITEM_BYTES
from planner.rules.movement import Indices, Movement, Moves, exchanges
from planner.rules.operator import KeepWholeError, Operator
from planner.rules.rule import InnerCollective

__all__ = ["channel_exchange", "channel_order", "data_operands", "moves_of"]

_CONCATENATIONS = ("Concat", "com.microsoft::ConcatTraining")
_FILL = np.int64(-1)
_LONGEST = 1 << 18  # longer dimensions (flat buffers) stay whole: nothing is gained from so long an index map
_MOVES: dict[str, Callable[[Operator], Moves]] = {}


def moves_of(o: Operator) -> Moves:
    """Movements by dimension, those that leave everything in place excluded.

    KeepWholeError where run-time values decide which dimensions are touched at all.
    """
    return {d: m for d, m in _MOVES[o.type](o).items() if m is None or not m.still}


def data_operands(o: Operator) -> range:
    """Operands whose elements are moved; the others say how."""
    return range(len(o.inputs)) if o.type in _CONCATENATIONS else range(1)


def _moves(*types: str) -> Callable[[Callable[[Operator], Moves]], Callable[[Operator], Moves]]:
    def register(function: Callable[[Operator], Moves]) -> Callable[[Operator], Moves]:
        _MOVES.update(dict.fromkeys(types, function))
        return function

    return register


def _one(size: int, result: int, source: Callable[[Indices], Indices]) -> Movement | None:
    """One operand and one result; `source` makes of the operand's places those of the result's elements."""
    if max(size, result) > _LONGEST:
        return None
    return Movement((size,), (source(np.arange(size, dtype=np.int64)),))


def _slices(o: Operator, first: int, shape: Sequence[int]) -> dict[int, slice]:
    """The slice of each axis; operands starts, ends, axes and steps begin at `first`."""
    starts, ends = o.ints(first, "starts") or (), o.ints(first + 1, "ends") or ()
    axes = o.ints(first + 2, "axes") or tuple(range(len(starts)))
    steps = o.ints(first + 3, "steps") or (1,) * len(starts)
    return {a % len(shape): slice(*bounds) for a, *bounds in zip(axes, starts, ends, steps, strict=True)}


def _sliced(o: Operator, first: int, whole: Sequence[int], part: Sequence[int]) -> dict[int, slice] | set[int]:
    """The slice of each axis; where it is computed at run time, the axes that are not all there, in order."""
    try:
        return _slices(o, first, whole)
    except KeepWholeError:
        steps = o.ints(first + 3, "steps") or ()
        axes = o.ints(first + 2, "axes") or tuple(range(len(steps))) if steps and min(steps) < 0 else ()
        backwards = {a % len(whole) for a, s in zip(axes, steps, strict=False) if s < 0}
        return backwards | {d for d, (a, b) in enumerate(zip(whole, part, strict=True)) if a != b}


@_moves("Slice")
def _slice(o: Operator) -> Moves:
    shape = o.shape(0)
    found = _sliced(o, 1, shape, o.outputs[0] or ())
    if isinstance(found, set):
        return dict.fromkeys(found)
    return {
        d: _one(shape[d], len(range(shape[d])[s]), itemgetter(s))
        for d, s in found.items()
        if range(shape[d])[s] != range(shape[d])
    }


@_moves("com.microsoft::SliceGrad")
def _slice_gradient(o: Operator) -> Moves:
    """The transpose of a slice: zeros where it did not read."""
    whole, dy = o.result(), o.shape(0)
    found = _sliced(o, 2, whole, dy)
    if isinstance(found, set):
        return dict.fromkeys(found)
    return {
        d: _one(dy[d], whole[d], partial(_put_back, size=whole[d], at=s))
        for d, s in found.items()
        if range(whole[d])[s] != range(whole[d])
    }


def _put_back(places: Indices, *, size: int, at: slice) -> Indices:
    source = np.full(size, _FILL)
    source[at] = places
    return source


@_moves("Concat", "com.microsoft::ConcatTraining")
def _concat(o: Operator) -> Moves:
    axis = o.axis(1)
    sizes = tuple(o.shape(i)[axis] for i in range(len(o.inputs)))
    if len(sizes) == 1:
        return {}
    return {axis: Movement(sizes, (np.arange(sum(sizes)),)) if sum(sizes) <= _LONGEST else None}


@_moves("Split", "com.microsoft::SplitTraining")
def _split(o: Operator) -> Moves:
    axis = o.axis(0)
    size, count = o.shape(0)[axis], len(o.outputs)
    try:
        lengths = o.ints(1, "split")
    except KeepWholeError:
        return {axis: None}
    if lengths is None:  # equal parts, the last one smaller
        each = -(-size // int(o.attribute("num_outputs", count)))
        lengths = tuple(min(each, size - each * j) for j in range(count))
    if len(lengths) == 1:
        return {}
    if size > _LONGEST:
        return {axis: None}
    parts = np.split(np.arange(size), np.cumsum(lengths)[:-1])
    return {axis: Movement((size,), tuple(p for j, p in enumerate(parts) if o.yields(j)))}


@_moves("Pad")
def _pad(o: Operator) -> Moves:
    rank = o.rank(0)
    try:
        pads = o.ints(1, "pads") or o.ints(1, "paddings") or (0,) * (2 * rank)
        axes = o.ints(3, "axes") or tuple(range(rank))
    except KeepWholeError:
        return dict.fromkeys(range(rank))
    shape = o.shape(0)
    return {
        a % rank: _one(
            shape[a % rank],
            shape[a % rank] + before + after,
            partial(_padded, before=before, after=after, mode=str(o.attribute("mode", "constant"))),
        )
        for a, before, after in zip(axes, pads[: len(axes)], pads[len(axes) :], strict=True)
        if before or after
    }


def _padded(places: Indices, *, before: int, after: int, mode: str) -> Indices:
    """Sources along one padded dimension; a negative padding crops, and does so first."""
    places_left = places[max(-before, 0) : len(places) - max(-after, 0)]
    widths = (max(before, 0), max(after, 0))
    if mode == "constant":
        return np.pad(places_left, widths, constant_values=_FILL)
    if mode == "reflect":
        return np.pad(places_left, widths, mode="reflect")
    return np.pad(places_left, widths, mode="edge") if mode == "edge" else np.pad(places_left, widths, mode="wrap")


@_moves("CenterCropPad")
def _center_crop_pad(o: Operator) -> Moves:
    """The middle of a larger dimension, zeros around a smaller one; the odd element goes to the end."""
    shape = o.shape(0)
    axes = [int(a) % len(shape) for a in o.attribute("axes", range(len(shape)))]
    out: dict[int, Movement | None] = {}
    for a, target in zip(axes, o.ints(1, "shape") or (), strict=True):
        missing = target - shape[a]
        before = missing // 2 if missing > 0 else -(-missing // 2)
        if missing:
            after = missing - before
            out[a] = _one(shape[a], target, partial(_padded, before=before, after=after, mode="constant"))
    return out


def channel_order(channels: int, block: int, *, to_space: bool) -> Movement:
    """Channels from (p q c), blocks major, to (c p q); the other way round for SpaceToDepth."""
    places = np.arange(channels * block * block)
    order = places.reshape(block * block, channels).T if to_space else places.reshape(channels, block * block).T
    return Movement((len(places),), (order.reshape(-1),))


def channel_exchange(o: Operator, channels: int, block: int, beside: tuple[str, ...]) -> list[InnerCollective]:
    """The exchange that brings split channels into the other order; `beside` are the other dimensions' factors."""
    movement = channel_order(channels, block, to_space=o.type == "DepthToSpace")
    item_bytes = ITEM_BYTES.get(o.input_types[0], 4)
    return exchanges("c", movement, beside, item_bytes, gradients=o.is_float(0))
