"""Which operands of an operator hold weights.

Families register theirs (`planner.plugins`), quantised operators with the scales and zero points that belong to each;
`planner.frontends.steps.roles` and `quantized` find by them the tensors that are weights.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from planner.frontends.steps.draft import split_type
from planner.ir import Op
from planner.plugins import load_operators

__all__ = ["Places", "places", "quantised_at", "quantised_places", "weights_at"]


@dataclass(frozen=True, slots=True)
class Places:
    """What stands at an operator's operands.

    weights      filters, factors, tables, scales and biases
    shared       those of them where data may stand as well: a weight has at least two dimensions there
    data         where no weight stands that a graph is fed
    statistics   what is held like a weight, and not trained
    """

    weights: frozenset[int] = frozenset()
    shared: frozenset[int] = frozenset()
    data: frozenset[int] = frozenset()
    statistics: frozenset[int] = frozenset()


# Operand that may hold a quantised weight → operands with its scales, zero points and orders.
Quantised = Mapping[int, tuple[int, ...]]

_NOTHING: Final = Places()
_PLACES: dict[str, Places] = {}
_QUANTISED: dict[str, Quantised] = {}


def weights_at(
    operands: Collection[int],
    *types: str,
    shared: Collection[int] = (),
    data: Collection[int] = (),
    statistics: Collection[int] = (),
) -> None:
    """Register where operators of these types hold weights (see `Places`); a name without a domain stands for that of
    every domain.  ValueError for a type that is registered already."""
    found = Places(frozenset(operands), frozenset(shared), frozenset(data), frozenset(statistics))
    for t in types:
        if t in _PLACES:
            raise ValueError(f"the weights of {t} are placed twice; keep one")
        _PLACES[t] = found


def quantised_at(slots: Mapping[str, Quantised]) -> None:
    """Register quantised operators, named as in `weights_at`: a weight there is one whatever its element type."""
    for t, found in slots.items():
        if t in _QUANTISED:
            raise ValueError(f"the quantised weights of {t} are placed twice; keep one")
        _QUANTISED[t] = found


def places(op: Op) -> Places:
    """What stands at its operands; nothing where no family says so."""
    load_operators("weights")
    return _PLACES.get(op.type) or _PLACES.get(split_type(op.type)[1], _NOTHING)


def quantised_places(op: Op) -> Quantised:
    """Where it holds quantised weights, and what belongs to each."""
    load_operators("weights")
    return _QUANTISED.get(op.type) or _QUANTISED.get(split_type(op.type)[1], {})
