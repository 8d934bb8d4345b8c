"""Operators that move elements along a split dimension: every rank fetches what its shard of the results lacks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.emit.onnx.ranks.local import Local, refusal
from planner.emit.onnx.ranks.registry import Operands, lowers, needed
from planner.emit.onnx.ranks.transport import collect, taken
from planner.emit.onnx.ranks.writer import Array, Value, Writer
from planner.operators.layout.split import whole_operator
from planner.rules.movement import Movement
from planner.rules.moves import channel_order, data_operands, moves_of
from planner.rules.operator import KeepWholeError
from planner.rules.rule import Dims
from planner.verify.data import numpy_dtype

__all__: list[str] = []


@lowers("CenterCropPad", "Concat", "Pad", "Slice", "Split")
def _move(w: Writer, here: Local, operands: Operands) -> list[Value | None]:
    op, rule = here.op, here.rule
    whole = whole_operator(op, _stand_ins(here, operands), here.place)
    try:
        moves = moves_of(whole)
    except KeepWholeError as e:
        raise refusal(op, here.place, str(e)) from e
    data = data_operands(whole)
    fill = _fill(w, here, operands)
    parts = [needed(operands[i]) for i in data]
    for dim, movement in sorted(moves.items()):
        if movement is None:
            raise refusal(op, here.place, f"which elements of dimension {dim} it moves is computed at run time")
        factor = _split_factor([rule.operands[i] for i in data], dim, here)
        if factor is not None and rule.splits_parts(data[0], dim):
            movement, factor = movement.of_equal_parts(here.place.shards[factor]), None
        if factor is not None and _split_factor(rule.results, dim, here) is None:
            parts = [_pending(w, parts[0], dim, movement, factor, here)]
        else:
            parts = _carried(w, parts, dim, movement, factor, here, fill)
    requested = [j for j, name in enumerate(op.outputs) if name and rule.results[j] is not None]
    found = dict(zip(requested, parts, strict=True))
    return [found.get(j) for j in range(len(op.outputs))]


def _stand_ins(here: Local, operands: Operands) -> list[Array | None]:
    """Operands as rules want to see them: known values, and of the others only shape and type."""
    out: list[Array | None] = []
    for x, known in zip(operands, here.known, strict=True):
        if x is None:
            out.append(None)
        elif known is not None:
            out.append(known)
        else:
            out.append(np.broadcast_to(np.zeros((), dtype=numpy_dtype(x.dtype)), x.dims))
    return out


def _split_factor(tensors: Sequence[Dims | None], dim: int, here: Local) -> str | None:
    """The split factor that the tensors carry along `dim`; those without elements carry none."""
    return next((f for dims in tensors if dims is not None for f in dims[dim] if here.place.splits(f)), None)


def _carried(
    w: Writer,
    parts: Sequence[Value],
    dim: int,
    movement: Movement,
    factor: str | None,
    here: Local,
    fill: Value | None = None,
) -> list[Value]:
    """Local results of a movement along `dim`, which `factor` splits on both sides (None: nobody does)."""
    x = w.concat(parts, dim)
    shards = 1 if factor is None else here.place.shards[factor]
    if factor is None:
        moved = taken(w, x, dim, movement.wanted(1)[0], fill)
    else:
        moved = collect(w, x, dim, movement.wanted(shards), factor, here, fill)
    return w.parts(moved, dim, [len(s) // shards for s in movement.sources])


def _pending(w: Writer, x: Value, dim: int, movement: Movement, factor: str, here: Local) -> Value:
    """The elements read that this rank holds, zeros for the others."""
    places = movement.sources[0] - here.place.offset[factor]
    held = (movement.sources[0] >= 0) & (places >= 0) & (places < x.dims[dim])
    return taken(w, x, dim, np.where(held, places, -1))


def _fill(w: Writer, here: Local, operands: Operands) -> Value | None:
    """What Pad puts where no operand gives an element, unless it is zero."""
    if here.op.type != "Pad":
        return None
    x = needed(operands[0])
    given = operands[2] if len(operands) > 2 else None
    if given is not None:
        known = here.known[2]
        return None if known is not None and not np.any(known) else w.reshape(given, ())
    value = float(here.op.attributes.get("value", 0.0))
    return w.number(value, x) if value else None


@lowers("DepthToSpace", "SpaceToDepth")
def _blocks(w: Writer, here: Local, operands: Operands) -> list[Value]:
    """Channels are exchanged before (DepthToSpace) or after (SpaceToDepth) blocks of whole channels are formed."""
    x, block = needed(operands[0]), int(here.op.attributes["blocksize"])
    to_space = here.op.type == "DepthToSpace"
    channels = x.dims[1] * here.place.shards["c"]
    movement = channel_order(channels // block**2 if to_space else channels, block, to_space=to_space)
    if to_space:
        (x,) = _carried(w, [x], 1, movement, "c", here)
        n, c, height, width = x.dims
        channels_left = c // block**2
        cut = w.reshape(x, (n, channels_left, block, block, height, width))
        turned = _turned(w, cut, (0, 1, 4, 2, 5, 3))
        return [w.reshape(turned, (n, channels_left, height * block, width * block))]
    n, c, height, width = x.dims
    cut = w.reshape(x, (n, c, height // block, block, width // block, block))
    turned = _turned(w, cut, (0, 1, 3, 5, 2, 4))
    deep = w.reshape(turned, (n, c * block**2, height // block, width // block))
    return _carried(w, [deep], 1, movement, "c", here)


def _turned(w: Writer, x: Value, order: Sequence[int]) -> Value:
    return w.op("Transpose", [x], x.dtype, tuple(x.dims[d] for d in order), perm=list(order))
