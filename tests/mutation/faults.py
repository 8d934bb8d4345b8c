"""Kinds of faults: named functions that make a wrong program, or wrong devices, of a right one.

A kind lists its sites; which of them is taken is drawn by a seed.  What a mutant does may come to nothing (shards
that are replicas are exchanged, an edge is zeroed that is zero).  Whether it does is found out without the verifier:
an `Effect` says whether any array was changed, and programs are run to the end and compared (`produced`).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from planner.lowering import Program
from tests.mutation.subjects import Subject

__all__ = ["KINDS", "Effect", "Fault", "Kind", "Mutant", "faults", "kind", "sites"]


@dataclass
class Effect:
    """What a fault did while it was in force."""

    changed: int = 0

    def note(self, before: object, after: object) -> None:
        """An array that was, and what stands in its place."""
        self.changed += not same(before, after)


def same(a: object, b: object) -> bool:
    """Equal but for rounding in double precision."""
    if a is None or b is None:
        return a is b
    x, y = np.asarray(a), np.asarray(b)
    if x.shape != y.shape or x.dtype != y.dtype:
        return False
    if x.dtype.kind != "f" or np.array_equal(x, y, equal_nan=True):
        return np.array_equal(x, y)
    size = float(np.max(np.abs(x), initial=0.0, where=np.isfinite(x)))
    return np.allclose(x, y, rtol=1e-12, atol=1e-13 * size, equal_nan=True)


Fault = Callable[[], AbstractContextManager[Effect]]


@dataclass(frozen=True, eq=False)
class Mutant:
    """`program` is the subject's own, or another; `fault` is in force while it is executed."""

    site: str
    program: Program
    fault: Fault | None = None


@dataclass(frozen=True)
class Kind:
    """`where` is what it is a fault of: program, strategy, rule, device, gradient, document, import."""

    name: str
    where: str
    of: Callable[[Subject, np.random.Generator], Iterator[Mutant]] = field(repr=False)


KINDS: Final[dict[str, Kind]] = {}
Maker = Callable[[Subject, np.random.Generator], Iterator[Mutant]]


def kind(where: str) -> Callable[[Maker], Maker]:
    """Decorator: the generator gives the mutants of a subject, in an order that its random numbers decide."""

    def add(function: Maker) -> Maker:
        name = function.__name__.strip("_").replace("_", " ")
        assert name not in KINDS, f"two kinds are called {name!r}"
        KINDS[name] = Kind(name, where, function)
        return function

    return add


def faults() -> dict[str, Kind]:
    """All kinds there are."""
    for family in ("collectives", "instructions", "layouts", "rules", "shards", "kernels", "gradients"):
        importlib.import_module(f"tests.mutation.{family}")
    return KINDS


def sites(found: Kind, subject: Subject, seed: int, count: int) -> list[Mutant]:
    """At most `count` mutants of this kind."""
    rng = np.random.default_rng([seed, *map(ord, found.name)])
    out: list[Mutant] = []
    for mutant in found.of(subject, rng):
        out.append(mutant)
        if len(out) == count:
            break
    return out
