"""Pools over the whole of space while it is split."""

from __future__ import annotations

from planner.emit.onnx.ranks.local import Local
from planner.emit.onnx.ranks.reduced import over
from planner.emit.onnx.ranks.registry import Operands, lowers, needed
from planner.emit.onnx.ranks.writer import Value, Writer

__all__: list[str] = []


@lowers("GlobalMaxPool")
def _largest(w: Writer, here: Local, operands: Operands) -> list[Value]:
    """Modes `^x…` reduce the maximum inside; other splits leave it pending."""
    x = needed(operands[0])
    y = w.reduce("ReduceMax", x, range(2, x.rank))
    return [over(w, y, [f for f in here.place.shards if f.startswith("^")], here, "max")]


@lowers("GlobalLpPool")
def _norm(w: Writer, here: Local, operands: Operands) -> list[Value]:
    """The p-th root of a sum over all ranks."""
    x = w.widened(needed(operands[0]))
    p = int(here.op.attributes.get("p", 2))
    powers = w.join("Pow", w.each("Abs", x), w.number(p, x))
    total = over(
        w, w.reduce("ReduceSum", powers, range(2, x.rank)), [f for f in here.place.shards if f[0] == "x"], here
    )
    return [w.join("Pow", total, w.number(1 / p, total))]
