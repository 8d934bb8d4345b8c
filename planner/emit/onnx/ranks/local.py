"""What one operator's rank knows of the whole, and the collectives among the ranks that split one of its factors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planner.emit.onnx.domain import DOMAIN
from planner.emit.onnx.ranks.writer import Array, Shape, Value, Writer
from planner.errors import InputError
from planner.ir import Op
from planner.kernels import ShardContext
from planner.rules.rule import Rule

__all__ = ["Local", "all_gather", "all_reduce", "all_to_all", "all_to_all_v", "refusal"]


@dataclass(frozen=True, slots=True)
class Local:
    """`op` as the rank runs it, `place` where it stands, `groups` the ranks that split each factor or mode, in the
    order of their shards; `known` the values of constant operands, `shapes` the local shapes of the results."""

    op: Op
    place: ShardContext
    groups: Mapping[str, tuple[int, ...]]
    known: Sequence[Array | None]
    shapes: Sequence[Shape | None]

    @property
    def rule(self) -> Rule:
        assert self.place.rule is not None
        return self.place.rule


def refusal(op: Op, place: ShardContext, reason: str) -> InputError:
    """The error for an operator that has no form here."""
    split = ", ".join(f"{f}={n}" for f, n in place.shards.items())
    others = [f for f in (place.rule.factors if place.rule is not None else ()) if f not in place.shards]
    free = f" or another factor of {', '.join(others)}" if others else ""
    return InputError(
        f"plan: operator {op.name} ({op.type}) is split over {split}: {reason}, so no graph of ONNX operators and "
        f"collectives is written for it; search again with --pin '{op.name} replicated'{free}, or let `planner run` "
        "execute this plan"
    )


def all_reduce(w: Writer, x: Value, ranks: Sequence[int], op: str = "sum", name: str = "") -> Value:
    if len(ranks) == 1:
        return x
    return w.op("AllReduce", [x], x.dtype, x.shape, domain=DOMAIN, name=name, ranks=list(ranks), op=op)


def all_gather(w: Writer, x: Value, ranks: Sequence[int], axis: int, name: str = "") -> Value:
    if len(ranks) == 1:
        return x
    shape = (*x.dims[:axis], x.dims[axis] * len(ranks), *x.dims[axis + 1 :])
    return w.op("AllGather", [x], x.dtype, shape, domain=DOMAIN, name=name, ranks=list(ranks), axis=axis)


def all_to_all(w: Writer, x: Value, ranks: Sequence[int], split: int, concat: int, name: str = "") -> Value:
    if len(ranks) == 1:
        return x
    shape = list(x.dims)
    shape[split] //= len(ranks)
    shape[concat] *= len(ranks)
    axes = {"split_axis": split, "concat_axis": concat}
    return w.op("AllToAll", [x], x.dtype, tuple(shape), domain=DOMAIN, name=name, ranks=list(ranks), **axes)


def all_to_all_v(
    w: Writer, x: Value, ranks: Sequence[int], axis: int, send: Sequence[int], receive: Sequence[int]
) -> Value:
    """Parts of known sizes."""
    shape = (*x.dims[:axis], sum(receive), *x.dims[axis + 1 :])
    sizes: dict[str, Any] = {"send_sizes": list(send), "receive_sizes": list(receive)}
    return w.op("AllToAllV", [x], x.dtype, shape, domain=DOMAIN, ranks=list(ranks), axis=axis, **sizes)
