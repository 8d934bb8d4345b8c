"""Gathers and other look-ups that are steered by indices.

Dimensions that no index refers to are split like any other; index tensors are split together with the
result.  The indexed dimensions of a table are contractions: a rank looks up what lies in its part of the
table and adds zeros for the rest, so that the results are a pending sum.
"""

from __future__ import annotations

import math
from functools import partial

from planner.ir.tensor import ITEM_BYTES
from planner.rules.notation import Shape, labels
from planner.rules.operator import Operator, sharded
from planner.rules.registry import rule
from planner.rules.rule import Combine, InnerCollective, Rule

__all__ = ["paired"]

_LARGE = 1024  # rows from which on a table of integers is worth splitting


def _parts(o: Operator, rows: int) -> bool:
    """A masked look-up may be left pending: of floating point, or of integers in a large table."""
    return o.makes_float or (rows >= _LARGE and all(t.startswith(("int", "uint")) for t in o.output_types if t))


def _look_up(o: Operator, text: str, aware: list[str]) -> Rule:
    return sharded(
        o,
        text,
        kind="gather",
        linear=[(0,)],
        differentiable=(0,),
        saved=(1,),
        flops=0.0,
        backward_flops=float(math.prod(o.result())),
        aware=aware,
    )


@rule("Gather")
def _gather(o: Operator) -> Rule:
    """Factor `v` is the indexed dimension.  Split, the lookup is masked and needs to know its offset."""
    axis = o.axis(0)
    table = "v" if _parts(o, o.shape(0)[axis]) else "v!"
    before, after = labels("l", axis), labels("r", o.rank(0) - axis - 1)
    indices = labels("i", o.rank(1))
    return _look_up(o, f"{before} {table} {after}, {indices} -> {before} {indices} {after}", ["v"])


def paired(data_shape: Shape, indices_shape: Shape, axis: int) -> tuple[list[str], list[str]]:
    """Dimensions of data and indices of element-wise look-ups and updates.

    Beside the axis they run together where the indices cover the data; elsewhere the data has its own factor `w…`,
    and the indices stay whole.
    """
    pairs = list(zip(data_shape, indices_shape, strict=True))
    data = [f"d{i}" if a == b else f"w{i}" for i, (a, b) in enumerate(pairs)]
    indices = [f"d{i}" if a == b else "*" for i, (a, b) in enumerate(pairs)]
    data[axis], indices[axis] = "v", "i"
    return data, indices


@rule("GatherElements")
def _gather_elements(o: Operator) -> Rule:
    axis = o.axis(0)
    data, indices = paired(o.shape(0), o.shape(1), axis)
    own = [f for f in data if not f.startswith("d")]
    if not _parts(o, o.shape(0)[axis]):
        data = [f if f.startswith("d") else "*" for f in data]
    return _look_up(o, f"{' '.join(data)}, {' '.join(indices)} -> {' '.join(indices)}", own)


@rule("GatherND")
def _gather_nd(o: Operator) -> Rule:
    """Factors `v…` are the dimensions that the coordinates refer to."""
    batch = int(o.attribute("batch_dims", 0))
    depth = o.shape(1)[-1]
    own = [f"v{k}" for k in range(depth)] if _parts(o, math.prod(o.shape(0)[batch : batch + depth])) else []
    b = labels("b", batch)
    indices = labels("i", o.rank(1) - 1 - batch)
    rest = labels("r", o.rank(0) - batch - depth)
    text = f"{b} {' '.join(own or '*' * depth)} {rest}, {b} {indices} * -> {b} {indices} {rest}"
    return _look_up(o, text, own)


@rule("OneHot")
def _one_hot(o: Operator) -> Rule:
    """Factor `v` is the new dimension: a rank compares all indices with the classes of its part.  Linear in the pair
    of values."""
    names = [f"d{i}" for i in range(o.rank(0))]
    axis = o.axis(-1, len(names) + 1)
    text = f"{' '.join(names)}, -, * -> {' '.join([*names[:axis], 'v', *names[axis:]])}"
    return sharded(o, text, kind="gather", linear=[(2,)], aware=["v"])


@rule("TopK")
def _top_k(o: Operator) -> Rule:
    """Split along the axis `v`, every rank contributes its own best, and all choose among the candidates.

    Not where more than half are chosen, which would mean to gather nearly everything, and not where the result
    may come in any order.
    """
    axis = o.axis(-1)
    size, count = o.shape(0)[axis], o.result()[axis]
    names = [f"d{i}" for i in range(o.rank(0))]
    result = " ".join([*names[:axis], "*", *names[axis + 1 :]])
    names[axis] = "v" if 0 < 2 * count <= size and o.attribute("sorted", 1) else "v!"
    beside = tuple(f for f in names if f[0] == "d")
    item_bytes = ITEM_BYTES.get(o.input_types[0], 4) + ITEM_BYTES["int64"]
    return sharded(
        o,
        f"{' '.join(names)}, - -> {result}, {result}",
        kind="reduction",
        differentiable=(0,),
        saved_results=(1,),
        flops=float(math.prod(o.shape(0))),
        backward_flops=float(math.prod(o.result())),
        combine={"v": Combine.INNER},
        inner=[
            InnerCollective(
                "v",
                "all_gather",
                beside,
                item_bytes,
                extent=partial(_candidates, size, count),
                fixed_bytes=ITEM_BYTES["int64"],
            )
        ],
    )


def _candidates(size: int, count: int, shards: int) -> int:
    """How many of its elements a rank proposes."""
    return min(count, size // shards)
