"""Blocks of space that become channels, and back, while the channels are split."""

from __future__ import annotations

from collections.abc import Sequence

from planner.ir import Op
from planner.kernels.attributes import Array
from planner.kernels.split import kernel
from planner.kernels.spmd import Coroutine, ShardContext
from planner.operators.layout.split import carried, returned
from planner.rules.movement import Movement
from planner.rules.moves import channel_order

__all__: list[str] = []

Operands = Sequence["Array | None"]


def _blocks_forward(op: Op, inputs: Operands, place: ShardContext) -> Coroutine:
    """Channels are exchanged before (DepthToSpace) or after (SpaceToDepth) blocks of whole channels are formed."""
    x = inputs[0]
    assert x is not None
    block = int(op.attributes["blocksize"])
    movement = _channels(op, x, place)
    if op.type == "DepthToSpace":
        (x,) = yield from carried([x], 1, movement, "c", place)
        return [_to_space(x, block)]
    return list((yield from carried([_to_depth(x, block)], 1, movement, "c", place)))


def _blocks_backward(
    op: Op, inputs: Operands, outputs: Operands, gradients: Operands, wanted: Sequence[bool], place: ShardContext
) -> Coroutine:
    x, dy = inputs[0], gradients[0]
    assert x is not None
    if dy is None or not wanted[0]:
        return [None]
    block = int(op.attributes["blocksize"])
    movement = _channels(op, x, place)
    if op.type == "DepthToSpace":
        return list((yield from returned([_to_depth(dy, block)], 1, movement, "c", place)))
    (dx,) = yield from returned([dy], 1, movement, "c", place)
    return [_to_space(dx, block)]


def _channels(op: Op, x: Array, place: ShardContext) -> Movement:
    channels, block = x.shape[1] * place.shards["c"], int(op.attributes["blocksize"])
    to_space = op.type == "DepthToSpace"
    return channel_order(channels // block**2 if to_space else channels, block, to_space=to_space)


def _to_space(x: Array, block: int) -> Array:
    """n (c p q) h w -> n c (h p) (w q)."""
    n, channels, height, width = x.shape
    blocks = x.reshape(n, channels // block**2, block, block, height, width)
    return blocks.transpose(0, 1, 4, 2, 5, 3).reshape(n, -1, height * block, width * block)


def _to_depth(x: Array, block: int) -> Array:
    """n c (h p) (w q) -> n (c p q) h w."""
    n, channels, height, width = x.shape
    blocks = x.reshape(n, channels, height // block, block, width // block, block)
    return blocks.transpose(0, 1, 3, 5, 2, 4).reshape(n, -1, height // block, width // block)


kernel(["DepthToSpace", "SpaceToDepth"], _blocks_forward, _blocks_backward)
