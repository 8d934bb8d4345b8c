"""Tensor parallelism: Megatron's layout (Shoeybi et al. 2019) on transformers, on other models the like.

- A product or convolution whose other operand arrives divided along the contraction divides its weight's rows; any
  other divides its columns, unless a normalisation over them comes before the next product (a router, a latent
  projection, patches of an image): that one stays whole.
- A weight that another operator has read before, as a table that inputs look up and the output layer multiplies by, is
  used as it lies.
- Tables that inputs look up divide their rows.
- Products of activations are divided as an operand arrives; an all-to-all of activations is no tensor parallelism, and
  whole samples are data parallelism's.
- Everything else runs whole, or divided as an activation arrives.
"""

from __future__ import annotations

from typing import Final

from planner.planning.schemes.arrival import Arrival, KindOfAxis, Ways
from planner.planning.schemes.ways import Way, divided, whole

__all__ = ["TENSOR"]


def _admitted(at: Arrival, ways: Ways) -> Ways:
    if at.matrices and (at.rule.cost.kind.product or at.indexed):
        chosen = _dividing(at, [w for w in ways if w.divides(at.matrices)])
        if chosen:
            return chosen
    if at.heavy and not at.matrices and any(map(divided, at.operands)):
        return [w for w in ways if not _turns(at, w)] or ways
    return at.following(ways)


def _dividing(at: Arrival, ways: Ways) -> Ways:
    laid = [i for i in at.matrices if at.operands[i] is not None]
    if laid:
        return [w for w in ways if all(at.keeps(w, i) for i in laid)]
    return _by_rows_of_table(at, ways) if at.indexed else _paired(at, ways)


def _by_rows_of_table(at: Arrival, ways: Ways) -> Ways:
    return [w for w in ways if any(_first(w, i) for i in at.matrices)]


def _paired(at: Arrival, ways: Ways) -> Ways:
    """Rows behind columns; columns where operands arrive whole, or anything where there are none (a convolution of
    every channel by itself)."""
    rows = [w for w in ways if any(at.keeps(w, i) for i in at.activations)]
    if rows:
        return rows
    columns = [w for w in ways if all(whole(w.operands[i]) for i in at.activations) and divided(w.results[0])]
    return [w for w in columns if (result := w.results[0]) and at.feeds(result)] if columns else ways


def _turns(at: Arrival, way: Way) -> bool:
    """Whether an operand is divided along another dimension than it arrives in, or samples are that arrive whole."""
    return any(
        divided(need) and need != have and (divided(have) or _first(way, i))
        for i, (need, have) in enumerate(zip(way.operands, at.operands, strict=True))
    )


def _first(way: Way, operand: int) -> bool:
    """Whether an operand is divided along its first dimension."""
    layout = way.operands[operand]
    return layout is not None and bool(layout.dims) and bool(layout.dims[0])


TENSOR: Final = KindOfAxis(
    "tp",
    None,
    _admitted,
    True,
    "no two weights of the model are a pair, one behind the other, of which {} divides columns and rows",
)
