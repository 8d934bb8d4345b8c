"""Operators whose results are other ones every time: they draw random numbers.

Families register theirs beside the shapes of their results (`planner.plugins`).
"""

from __future__ import annotations

from planner.plugins import load_operators

__all__ = ["draws", "is_drawn"]

_DRAWS: set[str] = set()


def draws(*types: str) -> None:
    """Register operator types that always draw; dropout, which draws in training alone, is none of them.

    ValueError for a type that is registered already."""
    for t in types:
        if t in _DRAWS:
            raise ValueError(f"{t} draws twice; keep one")
        _DRAWS.add(t)


def is_drawn(type_: str) -> bool:
    """Whether operators of this type draw their results."""
    load_operators("shapes")
    return type_ in _DRAWS
