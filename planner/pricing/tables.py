"""Strategies of operator classes with their prices, on one mesh."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from planner.cost_models.kernels import KERNEL_KINDS, Kernel, KernelArrays
from planner.ir import Layout, Tensor
from planner.pricing.dtensor import whole_convolutions
from planner.pricing.hubs import Read
from planner.pricing.machine import IntArray, Machine
from planner.pricing.operators import OperatorClass
from planner.rules.expansion import Choices, Expansion, Layouts, Side
from planner.rules.rule import Rule
from planner.rules.strategy import Strategy
from planner.search.problem import FORBIDDEN
from planner.work.operators import Operator, kernels

__all__ = ["Allowed", "OperatorTable", "Placements", "StrategyCosts", "distinct", "operator_tables"]

FloatArray = NDArray[np.float64]
Allowed = Callable[[Choices], NDArray[np.bool_]]  # which strategies are allowed
_Local = tuple[tuple[IntArray, IntArray], tuple[int, int]]  # costs, and launches


@dataclass(frozen=True, slots=True, eq=False)
class StrategyCosts:
    """Cost of local work and of the collectives inside the operator, per strategy."""

    forward: IntArray
    backward: IntArray
    inner_forward: IntArray
    inner_backward: IntArray

    @property
    def total(self) -> IntArray:
        return self.forward + self.backward + self.inner_forward + self.inner_backward


@dataclass(frozen=True, eq=False)
class Placements:
    """How the states of a node read or write a tensor: state s as `distinct[rows[s]]`, a pair (layout, layout of the
    gradient or None).  `numbers[k]` are the numbers of the pair among all layouts, -1 for None."""

    numbers: IntArray
    rows: IntArray
    layouts: Layouts

    @cached_property
    def distinct(self) -> tuple[Read, ...]:
        known = self.layouts.known
        return tuple((known[a], None if b < 0 else known[b]) for a, b in self.numbers.tolist())

    @cached_property
    def by_state(self) -> tuple[Read, ...]:
        return tuple(self.distinct[r] for r in self.rows.tolist())


@dataclass(frozen=True, eq=False)
class OperatorTable:
    """Strategies of one class of operators, their costs, and the layouts they ask for (None for tensors that are
    absent or of unknown shape).  `launches`: kernels forward and backward, whatever the strategy; `least`: of all
    strategies that the machine and the target admit, the least local work forward, and backward."""

    rule: Rule
    choices: Choices
    costs: IntArray
    work: StrategyCosts
    read_as: tuple[Placements | None, ...]
    written_as: tuple[Placements | None, ...]
    launches: tuple[int, int]
    least: tuple[int, int]

    @property
    def strategies(self) -> tuple[Strategy, ...]:
        return self.choices.strategies

    @cached_property
    def reads(self) -> tuple[tuple[Read, ...] | None, ...]:
        """`reads[i][s]` is how strategy s reads operand i, as (layout, layout of the gradient or None)."""
        return tuple(None if p is None else p.by_state for p in self.read_as)

    @cached_property
    def writes(self) -> tuple[tuple[Read, ...] | None, ...]:
        """`writes[j][s]`: how it delivers result j, as (layout, layout in which the gradient is wanted or None)."""
        return tuple(None if p is None else p.by_state for p in self.written_as)


def operator_tables(
    classes: Sequence[OperatorClass],
    expansions: Sequence[Expansion],
    machine: Machine,
    allowed: Mapping[int, Sequence[Allowed]] | None = None,
) -> list[OperatorTable]:
    """The table of each class; `expansions` are those of its rule over the mesh's names.

    `allowed`: by class, of which strategies at least one of these must allow each; all where they allow none.
    """
    every = [e.on(machine.mesh) for e in expansions]
    worked = _local_work(list(zip(classes, every, strict=True)), machine)
    admitted = [_admitted(c, found, machine) for c, found in zip(classes, every, strict=True)]
    least = [_least(own, there) for (own, _), there in zip(worked, admitted, strict=True)]
    rows = [_allowed(found, (allowed or {}).get(n, ())) for n, found in enumerate(every)]
    choices = [found if r is None else found.among(r) for found, r in zip(every, rows, strict=True)]
    local = [(own if r is None else (own[0][r], own[1][r])) for (own, _), r in zip(worked, rows, strict=True)]
    inner = _inner_work(list(zip(classes, choices, strict=True)), machine)
    return [
        _table(c, found, StrategyCosts(*own, *inside), launches, few, there if r is None else there[r])
        for c, found, own, (_, launches), inside, few, there, r in zip(
            classes, choices, local, worked, inner, least, admitted, rows, strict=True
        )
    ]


def _admitted(cls: OperatorClass, found: Choices, machine: Machine) -> NDArray[np.bool_]:
    """Strategies that the machine and the target admit."""
    admitted = np.ones(len(found), dtype=bool)
    if machine.profile.heavy_operators_must_split and cls.rule.cost.kind.multiplies:
        admitted &= found.parallelism == found.parallelism.max()
    if machine.settings.target == "mindspore":
        # A strategy tuple says how operands are split: it cannot ask for operands that arrive as pending sums.
        admitted &= ~found.plays("linear")
    if machine.settings.target == "dtensor" and cls.rule.cost.kind == "conv":
        admitted &= whole_convolutions(found)
    return admitted


def _least(work: tuple[IntArray, IntArray], admitted: NDArray[np.bool_]) -> tuple[int, int]:
    forward, backward = (int(w[admitted].min()) if admitted.any() else 0 for w in work)
    return forward, backward


def _allowed(choices: Choices, ways: Sequence[Allowed]) -> NDArray[np.bool_] | None:
    """None where all are."""
    if not ways:
        return None
    found: NDArray[np.bool_] = np.logical_or.reduce([way(choices) for way in ways])
    return found if found.any() else None


def distinct(items: Iterable[object]) -> tuple[list[int], IntArray]:
    """Where each distinct item first appears, and each item's index among the distinct ones."""
    position: dict[object, int] = {}
    first: list[int] = []
    rows: list[int] = []
    for i, item in enumerate(items):
        row = position.setdefault(item, len(position))
        if row == len(first):
            first.append(i)
        rows.append(row)
    return first, np.array(rows, dtype=np.intp)


def _table(
    cls: OperatorClass,
    found: Choices,
    work: StrategyCosts,
    launches: tuple[int, int],
    least: tuple[int, int],
    admitted: NDArray[np.bool_],
) -> OperatorTable:
    rule, expansion = cls.rule, found.expansion
    costs = work.total if admitted.all() else np.where(admitted, work.total, FORBIDDEN)
    # An operator that no gradient reaches contributes none either (the comparison of an activation, say).
    given = [a and cls.gradient_flows for a in cls.inputs_active]
    reads = _placements(found, cls.inputs, given, expansion.operands, expansion.operand_gradients)
    writes = _placements(found, cls.outputs, cls.outputs_active, expansion.results, expansion.result_gradients)
    return OperatorTable(rule, found, costs, work, reads, writes, launches, least)


def _placements(
    found: Choices,
    tensors: Sequence[Tensor | None],
    active: Sequence[bool],
    sides: Sequence[Side],
    gradients: Sequence[Side],
) -> tuple[Placements | None, ...]:
    layouts = found.expansion.layouts
    made: dict[object, Placements] = {}
    out: list[Placements | None] = []
    for i, (tensor, carries) in enumerate(zip(tensors, active, strict=True)):
        if tensor is None or tensor.shape is None:
            out.append(None)
            continue
        side, gradient = sides[i], gradients[i]
        key = tensor.rank, carries, id(side), id(gradient)
        if key not in made:
            whole = layouts.number(Layout.replicated(tensor.rank))
            there = found.layouts(side, whole)
            back = found.layouts(gradient, whole) if carries else np.full(len(there), -1)
            first, rows = distinct(zip(there.tolist(), back.tolist(), strict=True))
            made[key] = Placements(np.stack([there[first], back[first]], axis=1), rows, layouts)
        out.append(made[key])
    return tuple(out)


@dataclass(frozen=True, slots=True)
class _Shards:
    """Into how many pieces each strategy cuts what (`planner.work.operators.Shards`)."""

    found: Choices

    @property
    def parallelism(self) -> FloatArray:
        return self.found.parallelism.astype(np.float64)

    def operand(self, slot: int) -> IntArray:
        return self.found.shards(self.found.expansion.operands[slot])

    def result(self, output: int) -> IntArray:
        return self.found.shards(self.found.expansion.results[output])

    def factor(self, name: str) -> IntArray:
        return self.found.factor_shards(name)


def _local_work(pairs: Sequence[tuple[OperatorClass, Choices]], machine: Machine) -> list[_Local]:
    """Costs forward and backward, and launches; all kernels are priced in one call."""
    size, width = machine.settings.tensor_bytes, 4.0 if machine.settings.precision == "fp32" else 2.0
    found: list[tuple[int, int, Kernel]] = []
    for n, (cls, choices) in enumerate(pairs):
        operand_bytes, result_bytes = (
            [0.0 if t is None or t.shape is None else float(size(t)) for t in tensors]
            for tensors in (cls.inputs, cls.outputs)
        )
        seen = Operator(cls.rule, cls.part, operand_bytes, result_bytes, width)
        forward, backward = kernels(seen, _Shards(choices))
        found += [(n, 0, kernel) for kernel in forward]
        if (
            cls.gradient_flows
        ):  # of a region that has gradients, an operator may be one that none passes: no run is there
            found += [(n, 1, kernel) for kernel in backward]
    out = [tuple(np.zeros(len(choices), dtype=np.int64) for _ in range(2)) for _, choices in pairs]
    strategies = [len(pairs[n][1]) for n, *_ in found]
    costs = machine.kernels(_columns([k for *_, k in found], strategies))
    ends = np.cumsum(strategies, dtype=np.int64)
    for (n, way, _), end, own in zip(found, ends, strategies, strict=True):
        out[n][way][:] += costs[end - own : end]
    launches = [[0, 0] for _ in pairs]
    for n, way, kernel in found:
        launches[n][way] += kernel.launches
    return [((own[0], own[1]), (there, back)) for own, (there, back) in zip(out, launches, strict=True)]


def _columns(kernels: Sequence[Kernel], strategies: Sequence[int]) -> KernelArrays:
    """Kernels, each for so many strategies, one behind the other."""

    def column(name: str) -> FloatArray:
        figures = [np.broadcast_to(getattr(k, name), (n,)) for k, n in zip(kernels, strategies, strict=True)]
        return np.concatenate([np.zeros(0), *figures]).astype(np.float64)

    kinds = np.repeat([KERNEL_KINDS.index(k.kind) for k in kernels], strategies).astype(np.int64)
    names = ("flops", "bytes", "batch", "rows", "columns", "depth", "launches", "aligned")
    return KernelArrays(kinds, *(column(name) for name in names))


def _inner_work(pairs: Sequence[tuple[OperatorClass, Choices]], machine: Machine) -> list[tuple[IntArray, IntArray]]:
    """Costs of the collectives inside operators, forward and backward; those alike are priced in one call."""
    out = [(np.zeros(len(f), dtype=np.int64), np.zeros(len(f), dtype=np.int64)) for _, f in pairs]
    calls: dict[tuple[str, tuple[str, ...]], list[tuple[IntArray, int, int, int]]] = defaultdict(list)
    for (cls, found), own in zip(pairs, out, strict=True):
        if not cls.rule.inner:
            continue
        for i, collectives in enumerate(found.inner()):
            for c in collectives:
                if cls.gradient_flows or not c.backward:
                    ranks = 1 if c.kind in ("all_reduce", "permute") else machine.mesh.size(c.axes)
                    size = machine.settings.payload_bytes(c) * ranks
                    calls[c.kind, c.axes].append((own[c.backward], i, c.count, size))
    for (kind, axes), items in calls.items():
        costs = machine.collective(kind, axes, np.array([size for *_, size in items], dtype=np.float64))
        for (target, i, count, _), cost in zip(items, costs.tolist(), strict=True):
            target[i] += count * cost
    return out
