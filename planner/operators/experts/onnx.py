"""Products whose weight every token chooses, while each rank holds a part of the experts.

With the tokens whole, a rank computes the tokens that chose its experts and leaves zeros for the rest: a pending sum.
With tokens and experts split over the same axis, rows travel to the ranks that hold their experts and the results
travel back, in numbers that are known at run time alone.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from planner.emit.onnx.domain import DOMAIN
from planner.emit.onnx.ranks.local import Local, all_to_all
from planner.emit.onnx.ranks.registry import Operands, lowers, needed
from planner.emit.onnx.ranks.writer import Shape, Value, Writer
from planner.frontends.steps.experts import EXPERT_MATMUL, spelled_out
from planner.ir import Role, Tensor

__all__: list[str] = []


@lowers(EXPERT_MATMUL)
def _expert_product(w: Writer, here: Local, operands: Operands) -> list[Value]:
    w.need(13)
    mode = next((m for m in here.place.shards if m.endswith("&e")), "")
    return [_exchanged(w, here, operands, mode) if mode else _masked(w, here, operands)]


def _counted(w: Writer, here: Local, indices: Value) -> Value:
    """Indices from the front, of all experts, in 64 bits."""
    at = w.cast(indices, "int64")
    behind = w.join("Less", at, _integer(w, 0), "bool")
    return w.where(behind, w.join("Add", at, _integer(w, here.rule.factors["e"])), at)


def _integer(w: Writer, value: int) -> Value:
    return w.constant(np.array(value, dtype=np.int64))


def _masked(w: Writer, here: Local, operands: Operands) -> Value:
    x, weights, indices = (needed(v) for v in operands[:3])
    local = w.join("Sub", _counted(w, here, indices), _integer(w, here.place.offset["e"]))
    above = w.join("Greater", local, _integer(w, -1), "bool")
    held = w.join("And", above, w.join("Less", local, _integer(w, weights.dims[0]), "bool"))
    tokens = np.broadcast_shapes(indices.dims[: x.rank - 1], x.dims[:-1])
    found = _product(w, here, x, w.where(held, local, _integer(w, 0)), operands, (*tokens, _width(here, weights)))
    return w.where(w.reshape(held, (*indices.dims[: x.rank - 1], 1)), found, w.number(0, found))


def _width(here: Local, weights: Value) -> int:
    return weights.dims[1 if here.op.attributes.get("transB", 0) else 2]


def _product(w: Writer, here: Local, x: Value, indices: Value, operands: Operands, shape: Shape | None) -> Value:
    """Of rows and this rank's experts."""
    weights = needed(operands[1])
    bias = operands[3] if len(operands) > 3 else None
    y = w.declare(w.fresh(f"{w.scope}/product"), x.dtype, shape)
    read = [v for v in (x, weights, indices, bias) if v is not None]
    op = replace(here.op, inputs=tuple(v.name for v in read), outputs=(y.name,))
    tensors = {v.name: Tensor(v.name, v.shape or (0,) * (2 if v is x else 1), v.dtype, Role.ACTIVATION) for v in read}
    nodes, constants = spelled_out(op, tensors, w.opset)
    w.constants.update((c.name, c) for c in constants)
    w.nodes += nodes
    return y


def _exchanged(w: Writer, here: Local, operands: Operands, mode: str) -> Value:
    x, weights, indices = (needed(v) for v in operands[:3])
    group, width = here.groups[mode], _width(here, weights)
    tokens = np.broadcast_shapes(indices.dims[: x.rank - 1], x.dims[:-1])
    count, depth = math.prod(tokens), x.dims[-1]
    full = (*tokens, depth)
    if x.dims != full:
        x = w.op("Expand", [x, w.constant(np.array(full, dtype=np.int64))], x.dtype, full)
    rows = w.reshape(x, (count, depth))
    experts = w.reshape(_counted(w, here, indices), (count,))
    owner = w.join("Div", experts, _integer(w, weights.dims[0]))
    order = _sorted_places(w, owner, count)
    shards = w.constant(np.arange(len(group), dtype=np.int64))
    sent_to = w.cast(w.join("Equal", w.reshape(owner, (count, 1)), shards, "bool"), "int64")
    send = w.reshape(w.reduce("ReduceSum", sent_to, [0]), (len(group),))
    receive = all_to_all(w, send, group, 0, 0)

    def travel(v: Value, there: Value, back: Value, shape: Shape | None) -> Value:
        attributes: dict[str, Any] = {"ranks": list(group), "axis": 0}
        return w.op("AllToAllV", [v, there, back], v.dtype, shape, domain=DOMAIN, **attributes)

    arrived = travel(w.gather(rows, order, 0), send, receive, None)
    chosen = travel(w.gather(experts, order, 0), send, receive, None)
    local = w.op("Sub", [chosen, _integer(w, here.place.offset["e"])], "int64", None)
    results = travel(_product(w, here, arrived, local, operands, None), receive, send, (count, width))
    back = w.gather(results, _places(w, order, count), 0)
    return w.reshape(back, (*tokens, width))


def _sorted_places(w: Writer, owner: Value, count: int) -> Value:
    """Places of the rows by owner, those of one owner in their order."""
    scaled = w.join("Mul", owner, _integer(w, count))
    return _places(w, w.join("Add", scaled, w.constant(np.arange(count, dtype=np.int64))), count)


def _places(w: Writer, keys: Value, count: int) -> Value:
    """Places of distinct keys in ascending order."""
    values = w.declare(w.fresh(f"{w.scope}/keys"), "int64", (count,))
    places = w.declare(w.fresh(f"{w.scope}/places"), "int64", (count,))
    attributes: dict[str, Any] = {"axis": 0, "largest": 0, "sorted": 1}
    w.several("TopK", [keys, w.constant(np.array([count], dtype=np.int64))], [values, places], **attributes)
    return places
