"""Configurations as textbooks have them, as choices on one mesh: every axis divides samples, or the model, throughout.

Data parallelism with parameters whole or in shards over some or all axes (ZeRO, FSDP, hybrid sharding), tensor
parallelism, and both at once.  What an axis that divides the model does to each operator is left to prices, so that
Megatron's layout is among the choices and need not be the best.  They cost little to find, and few limits leave none of
them: a search under a limit that binds starts from there.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.errors import InputError
from planner.ir import Layout
from planner.planning.constraints.batch import follow_batch
from planner.planning.recall import narrowed
from planner.pricing import PricedProblem
from planner.rules.strategy import Strategy
from planner.search.elimination.tables import TooLarge
from planner.search.prices.repriced import Repriced
from planner.search.problem import FORBIDDEN
from planner.search.reduction.reduced import Infeasible

__all__ = ["shapes"]

MOST_AXES: Final = 3
_States = NDArray[np.int64]


def shapes(
    priced: PricedProblem,
    stop: Callable[[], bool] = lambda: False,
    cutoff: Callable[[], float] = lambda: math.inf,
) -> Iterator[tuple[int, ...]]:
    """The cheapest choice of every configuration, the limit aside, the least storage first; those that the mesh or a
    pin rules out are left out, and those that are seen to cost as much as `cutoff` says when they are come to."""
    axes = priced.machine.mesh.names
    if len(axes) > MOST_AXES:
        return
    kinds = [data for data in itertools.product((True, False), repeat=len(axes)) if any(data) or len(axes) == 1]
    shards = sorted(itertools.product((True, False), repeat=len(axes)), key=lambda s: -sum(s))
    finder = _Finder(priced)
    for over in shards:  # from parameters in as many pieces as may be to parameters stored at will
        for data in kinds:
            allowed_states = finder.operators(data) | finder.parameters(
                tuple(a for a, s in zip(axes, over, strict=True) if s)
            )
            try:
                found = Repriced(narrowed(priced.problem, allowed_states), stop, cutoff=cutoff()).evaluate({}).choice
            except (Infeasible, TooLarge):
                continue
            yield tuple(int(allowed_states[v][x]) if v in allowed_states else x for v, x in enumerate(found))


class _Finder:
    """States of nodes; operators, and parameters, that look alike share them."""

    def __init__(self, priced: PricedProblem) -> None:
        self.priced = priced
        try:
            self.batch: Mapping[str, frozenset[str]] = follow_batch(priced.graph, priced.rules, {}, "batch").factors
        except InputError:
            self.batch = {}
        self._known: dict[tuple[object, ...], _States] = {}

    def operators(self, data: Sequence[bool]) -> dict[int, _States]:
        """Operators split samples along the axes of `data`, as many of them as they can, and nothing but samples; along
        the others anything else."""
        out = {}
        for name, node in self.priced.op_nodes.items():
            strategies = self.priced.tables[name].strategies
            factors = self.batch.get(name, frozenset())
            costs = self.priced.problem.nodes[node].costs
            key = (id(strategies), id(costs), factors, tuple(data))
            if key not in self._known:
                fits = np.array([_samples(s, factors, data) for s in strategies])
                self._known[key] = _most(np.where(costs < FORBIDDEN, fits, -1))
            if len(self._known[key]):
                out[node] = self._known[key]
        return out

    def parameters(self, over: Sequence[str]) -> dict[int, _States]:
        """Parameters are stored in shards over these axes, as many as divide one of their dimensions."""
        out = {}
        for name, node in self.priced.parameter_nodes.items():
            layouts = self.priced.stored_layouts[name]
            costs = self.priced.problem.nodes[node].costs
            key = (id(layouts), id(costs), tuple(over))
            if key not in self._known:
                fits = np.array([_shards(x, over) for x in layouts])
                self._known[key] = _most(np.where(costs < FORBIDDEN, fits, -1))
            if over and len(self._known[key]):
                out[node] = self._known[key]
        return out


def _samples(strategy: Strategy, factors: frozenset[str], data: Sequence[bool]) -> int:
    """Along how many of the axes that should the strategy divides samples; -1 where one does another thing."""
    count = 0
    for role, wanted in zip(strategy.roles, data, strict=True):
        of_samples = role.kind == "split" and role.factor in factors
        if not wanted:
            if of_samples:
                return -1
        elif of_samples:
            count += 1
        elif factors and role.kind == "split":
            return -1
    return count


def _shards(layout: Layout, over: Sequence[str]) -> int:
    return sum(a in over for d in layout.dims for a in d)


def _most(fits: NDArray[np.int64]) -> _States:
    """Where `fits` is greatest; empty where it is below 0 throughout."""
    return np.flatnonzero(fits == fits.max()) if len(fits) and fits.max() >= 0 else np.zeros(0, dtype=np.int64)
