"""Strategies of operators with their prices.

Operators that look the same (type, attributes, shapes, activity) share one table, so that a model of many
identical layers is priced once, and the solver sees the very same arrays again and again.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from planner.ir import DeviceMesh, Graph, Layout, Op, Role
from planner.pricing.machine import IntArray, Machine
from planner.rules.registry import replicated, rule_for
from planner.rules.rule import Rule
from planner.rules.strategy import Strategy, strategies
from planner.search.problem import FORBIDDEN

__all__ = ["OperatorTable", "Work", "bind_rules", "operator_tables", "signatures"]

_HEAVY = frozenset({"matmul", "conv", "attention"})


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """Cost of local work and of the collectives inside the operator, per strategy."""

    forward: IntArray
    backward: IntArray
    inner_forward: IntArray
    inner_backward: IntArray

    @property
    def total(self) -> IntArray:
        return self.forward + self.backward + self.inner_forward + self.inner_backward


@dataclass(frozen=True, eq=False)
class OperatorTable:
    """Strategies of one class of operators, their costs, and the layouts they ask for.

    `reads[i][s]` is how strategy s reads operand i, as (layout, layout of the gradient or None);
    `writes[j][s]` how it delivers result j, as (layout, layout in which the gradient is wanted or None).
    """

    rule: Rule
    strategies: tuple[Strategy, ...]
    costs: IntArray
    work: Work
    reads: tuple[tuple[tuple[Layout, Layout | None], ...] | None, ...]
    writes: tuple[tuple[tuple[Layout, Layout | None], ...] | None, ...]


_Layouts = list[tuple[Layout | None, ...]]


def signatures(graph: Graph) -> dict[str, Hashable]:
    """Operator name → what its rule depends on: type, attributes, shapes, element types, constants read."""

    def describe(name: str) -> Hashable:
        if not name:
            return None
        t = graph.tensors[name]
        value = None if t.value is None else t.value.tobytes()
        fixed = t.role in (Role.PARAMETER, Role.CONSTANT)
        return t.shape, t.dtype, fixed, value

    def freeze(value: object) -> Hashable:
        if isinstance(value, np.ndarray):
            return value.shape, str(value.dtype), value.tobytes()
        return tuple(map(freeze, value)) if isinstance(value, list | tuple) else repr(value)

    return {
        op.name: (
            op.type,
            op.opset,
            tuple((k, freeze(v)) for k, v in sorted(op.attributes.items())),
            tuple(map(describe, op.inputs)),
            tuple(map(describe, op.outputs)),
        )
        for op in graph.ops
    }


def bind_rules(graph: Graph) -> tuple[dict[str, Rule], list[str]]:
    """A rule for every operator, and the sorted types that are replicated for want of one."""
    by_signature: dict[Hashable, Rule] = {}
    rules: dict[str, Rule] = {}
    missing: set[str] = set()
    keys = signatures(graph)
    for op in graph.ops:
        key = keys[op.name]
        if key not in by_signature:
            rule = rule_for(op, graph)
            if rule is None:
                missing.add(op.type)
                rule = replicated(op, graph)
            by_signature[key] = rule
        rules[op.name] = by_signature[key]
    return rules, sorted(missing)


def operator_tables(
    graph: Graph, rules: Mapping[str, Rule], active: frozenset[str], machine: Machine
) -> dict[str, OperatorTable]:
    """Operator name → its table; operators of one signature share the table."""
    by_signature: dict[Hashable, OperatorTable] = {}
    tables: dict[str, OperatorTable] = {}
    keys = signatures(graph)
    for op in graph.ops:
        carries = tuple(t in active for t in op.inputs), tuple(t in active for t in op.outputs)
        weights_only = _reads_weights_only(op, graph)
        key = (keys[op.name], carries, weights_only)
        if key not in by_signature:
            by_signature[key] = _table(op, graph, rules[op.name], active, machine, weights_only)
        tables[op.name] = by_signature[key]
    return tables


def _reads_weights_only(op: Op, graph: Graph) -> bool:
    """A transposed or cast weight: runtimes store it that way, so the operator costs nothing per step."""
    read = [graph.tensors[t] for t in op.inputs if t]
    return bool(read) and all(t.role in (Role.PARAMETER, Role.CONSTANT) for t in read)


def _table(
    op: Op, graph: Graph, rule: Rule, active: frozenset[str], machine: Machine, weights_only: bool
) -> OperatorTable:
    mesh = machine.mesh
    gradient_flows = any(t in active for t in op.outputs)
    found = strategies(rule, mesh, training=gradient_flows)
    # An operator that no gradient reaches contributes none either (the comparison of an activation, say).
    given = active if gradient_flows else frozenset[str]()
    reads = tuple(_placements(op.inputs, i, graph, given, found, "operand") for i in range(len(op.inputs)))
    writes = tuple(_placements(op.outputs, j, graph, active, found, "result") for j in range(len(op.outputs)))
    work = _work(op, graph, rule, active, machine, found, gradient_flows)
    if weights_only and rule.kind in ("layout", "free", "elementwise"):
        work = replace(work, forward=np.zeros_like(work.forward), backward=np.zeros_like(work.backward))
    costs = work.total
    if machine.profile.heavy_operators_must_split and rule.kind in _HEAVY:
        parallelism = np.array([s.parallelism for s in found])
        costs = np.where(parallelism < parallelism.max(), FORBIDDEN, costs)
    if machine.settings.target == "mindspore":
        costs = np.where([_mindspore_cannot(s) for s in found], FORBIDDEN, costs)
    return OperatorTable(rule, found, costs, work, reads, writes)


def _mindspore_cannot(strategy: Strategy) -> bool:
    """A strategy tuple says how operands are split: it cannot ask for operands that arrive as pending sums."""
    return any(r.kind == "linear" for r in strategy.roles)


def _placements(
    names: tuple[str, ...],
    index: int,
    graph: Graph,
    active: frozenset[str],
    found: tuple[Strategy, ...],
    side: str,
) -> tuple[tuple[Layout, Layout | None], ...] | None:
    name = names[index]
    if not name or graph.tensors[name].shape is None:
        return None
    whole = Layout.replicated(graph.tensors[name].rank)
    out = []
    for s in found:
        layout = s.operands[index] if side == "operand" else s.results[index]
        gradient = s.operand_gradients[index] if side == "operand" else s.result_gradients[index]
        out.append((layout or whole, (gradient or whole) if name in active else None))
    return tuple(out)


def _work(
    op: Op,
    graph: Graph,
    rule: Rule,
    active: frozenset[str],
    machine: Machine,
    found: tuple[Strategy, ...],
    gradient_flows: bool,
) -> Work:
    mesh, size = machine.mesh, machine.settings.tensor_bytes
    parallelism = np.array([s.parallelism for s in found], dtype=np.float64)

    def local(names: tuple[str, ...], layouts: _Layouts, keep: frozenset[int] | None) -> np.ndarray:
        total = np.zeros(len(found))
        for i, name in enumerate(names):
            if name and (keep is None or i in keep):
                placed = [row[i] for row in layouts]
                shards = np.array([1 if x is None else x.shards(mesh) for x in placed])
                total += size(graph.tensors[name]) / shards
        return total

    operands = [s.operands for s in found]
    results = [s.results for s in found]
    read, written = local(op.inputs, operands, None), local(op.outputs, results, None)
    if rule.kind == "gather":  # only the rows asked for are read, not the table
        read = written
    traffic = np.zeros(len(found)) if rule.kind == "free" else read + written
    forward = machine.compute(rule.kind, rule.flops / parallelism, traffic)
    backward = np.zeros_like(forward)
    if gradient_flows:
        wanted = frozenset(i for i in rule.differentiable if i < len(op.inputs) and op.inputs[i] in active)
        share = len(wanted) / len(rule.differentiable) if rule.differentiable else 0.0
        moved = (
            local(op.outputs, results, None)
            + local(op.inputs, operands, rule.saved_operands)
            + local(op.outputs, results, rule.saved_results)
            + local(op.inputs, operands, wanted)
        )
        if rule.kind == "free":
            moved = np.zeros(len(found))
        backward = machine.compute(rule.kind, share * rule.backward_flops / parallelism, moved)
    inner = [_inner(found, mesh, machine, backward=b) for b in (False, True)]
    return Work(forward, backward, inner[0], inner[1] if gradient_flows else np.zeros_like(backward))


def _inner(found: tuple[Strategy, ...], mesh: DeviceMesh, machine: Machine, *, backward: bool) -> IntArray:
    out = np.zeros(len(found), dtype=np.int64)
    for i, s in enumerate(found):
        for c in s.inner:
            if c.backward == backward:
                ranks = 1 if c.kind in ("all_reduce", "permute") else mesh.size(c.axes)
                out[i] += c.count * int(machine.collective(c.kind, c.axes, machine.settings.payload_bytes(c) * ranks))
    return out
