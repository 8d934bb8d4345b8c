"""Blocks of space that become channels, and back, while the channels are split."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from planner.ir import Op
from planner.kernels.attributes import Array
from planner.kernels.namespaces import array_namespace
from planner.kernels.shared import Call, shared
from planner.kernels.spmd import Coroutine, ShardContext
from planner.operators.layout.split import carried, returned
from planner.rules.movement import Movement
from planner.rules.moves import channel_order

__all__: list[str] = []

Operands = Sequence["Array | None"]


def _blocks_backward(
    op: Op, inputs: Operands, outputs: Operands, gradients: Operands, wanted: Sequence[bool], place: ShardContext
) -> Coroutine:
    x, dy = inputs[0], gradients[0]
    assert x is not None
    if dy is None or not wanted[0]:
        return [None]
    block = int(op.attributes["blocksize"])
    movement = _channels(op, x.shape[1], place)
    if op.type == "DepthToSpace":
        return list((yield from returned([_to_depth(dy, block)], 1, movement, "c", place)))
    (dx,) = yield from returned([dy], 1, movement, "c", place)
    return [_to_space(dx, block)]


def _channels(op: Op, channels: int, place: ShardContext) -> Movement:
    whole, block = channels * place.shards.get("c", 1), int(op.attributes["blocksize"])
    to_space = op.type == "DepthToSpace"
    return channel_order(whole // block**2 if to_space else whole, block, to_space=to_space)


def _to_space(x: Any, block: int) -> Any:
    """n (c p q) h w -> n c (h p) (w q)."""
    n, channels, height, width = x.shape
    xp, deep = array_namespace(x), channels // block**2
    blocks = xp.permute_dims(xp.reshape(x, (n, deep, block, block, height, width)), (0, 1, 4, 2, 5, 3))
    return xp.reshape(blocks, (n, deep, height * block, width * block))


def _to_depth(x: Any, block: int) -> Any:
    """n c (h p) (w q) -> n (c p q) h w."""
    n, channels, height, width = x.shape
    xp, high, wide = array_namespace(x), height // block, width // block
    blocks = xp.permute_dims(xp.reshape(x, (n, channels, high, block, wide, block)), (0, 1, 3, 5, 2, 4))
    return xp.reshape(blocks, (n, channels * block**2, high, wide))


@shared("DepthToSpace", "SpaceToDepth", backward=_blocks_backward)
def _blocks(c: Call) -> Coroutine:
    """Channels are exchanged before (DepthToSpace) or after (SpaceToDepth) blocks of whole channels are formed; in mode
    CRD they are in order."""
    x, block = c.operand(), int(c.attr("blocksize"))
    movement = _channels(c.op, x.shape[1], c.place) if c.attr("mode", "DCR") == "DCR" else None
    factor = "c" if c.place.splits("c") else None
    if c.op.type == "DepthToSpace":
        if movement is not None:
            (x,) = yield from carried([x], 1, movement, factor, c.place)
        return [_to_space(x, block)]
    deep = [_to_depth(x, block)]
    return deep if movement is None else (yield from carried(deep, 1, movement, factor, c.place))
