"""Pins as masks: which states of which nodes of a priced problem they leave."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.ir import DeviceMesh, Layout, Op
from planner.planning.constraints.resolve import Pins, Restriction
from planner.planning.constraints.values import LayoutPin, StrategyPin, split_of
from planner.pricing import PricedProblem
from planner.pricing.optimizer_parallel import divided_further
from planner.pricing.tables import Allowed
from planner.rules.expansion import Choices
from planner.rules.strategy import Strategy
from planner.search.problem import FORBIDDEN

__all__ = ["Demand", "Unoffered", "demands_of", "needed", "unoffered"]

Mask = NDArray[np.bool_]
MOST_OFFERED = 6


@dataclass(frozen=True, slots=True, eq=False)
class Demand:
    """`allowed[s]`: whether the restriction leaves state s of the node, among those that the problem itself allows."""

    restriction: Restriction
    node: int
    allowed: Mask


@dataclass(frozen=True, slots=True)
class Unoffered:
    """A restriction that leaves no state on a mesh, with the reason."""

    restriction: Restriction
    reason: str


class _Masks:
    """Arrays are made once per distinct case: layers that look alike share theirs."""

    def __init__(self, pins: Pins, priced: PricedProblem) -> None:
        self.pins, self.priced = pins, priced
        self.mesh = priced.machine.mesh
        self._memo: dict[object, Any] = {}

    def _once(self, key: object, make: Callable[[], Any]) -> Any:
        if key not in self._memo:
            self._memo[key] = make()
        return self._memo[key]

    def finite(self, node: int) -> Mask:
        costs = self.priced.problem.nodes[node].costs
        return self._once(("finite", id(costs)), lambda: costs < FORBIDDEN)

    def _demand(self, r: Restriction, node: int, key: object, make: Callable[[], Sequence[bool] | Mask]) -> Demand:
        costs = self.priced.problem.nodes[node].costs
        whole = (key, id(costs))
        return Demand(r, node, self._once(whole, lambda: self.finite(node) & np.array(make(), dtype=bool)))

    def of(self, r: Restriction) -> Iterable[Demand]:
        priced, mesh, pin = self.priced, self.mesh, r.pin
        if isinstance(pin, StrategyPin):
            table = priced.tables[r.name]
            yield self._demand(
                r,
                priced.op_nodes[r.name],
                (id(table), pin),
                partial(_playing, pin, table.choices),
            )
        elif isinstance(pin, LayoutPin) and r.kind == "stored":
            layouts = priced.stored_layouts[r.name]
            node = priced.parameter_nodes[r.name]
            yield self._demand(r, node, (id(layouts), pin), partial(_admitted, pin, layouts, mesh))
        elif isinstance(pin, LayoutPin) and r.kind == "produced":
            op = priced.graph.producers[r.name]
            writes = priced.tables[op.name].writes[op.outputs.index(r.name)] or ()
            yield self._demand(
                r, priced.op_nodes[op.name], (id(writes), pin), partial(_admitted, pin, [w[0] for w in writes], mesh)
            )
        elif isinstance(pin, LayoutPin):
            yield from self._readers(r, pin)

    def _readers(self, r: Restriction, pin: LayoutPin) -> Iterable[Demand]:
        """Every operand slot that reads the tensor, and the graph's output where it is one."""
        priced, mesh = self.priced, self.mesh
        for op, slot in priced.graph.consumers.get(r.name, ()):
            reads = None if op.name in priced.fixed else priced.tables[op.name].reads[slot]
            if reads is not None:
                yield self._demand(
                    r,
                    priced.op_nodes[op.name],
                    (id(reads), pin),
                    partial(_admitted, pin, [x[0] for x in reads], mesh),
                )
        for reader in priced.readers.get(r.name, ()):
            if not reader.name:
                layouts = [reader.combinations[k][0][0] for k in reader.rows]
                yield self._demand(r, reader.node, ("output", reader.key, pin), partial(_admitted, pin, layouts, mesh))

    def rest(self) -> Iterable[Demand]:
        pins, priced, mesh = self.pins, self.priced, self.mesh
        axes = pins.data_axes(mesh) if pins.batch is not None else ()
        where, text = pins.rest.where, f"rest: {pins.rest}"
        for op in priced.graph.ops:
            if op.name in pins.rest_operators:
                batch = frozenset() if pins.batch is None else pins.batch.factors.get(op.name, frozenset())
                node = priced.op_nodes[op.name]
                table = priced.tables[op.name]
                finite = self.finite(node)
                mask = self._once(
                    ("rest", id(table), batch, id(finite)),
                    partial(_most_batch, table.strategies, batch, axes, mesh, finite, table.rule.members),
                )
                yield Demand(Restriction("rest", op.name, where, None, f"({op.type}) {text}"), node, mask)
        over = axes if pins.rest.kind == "zero" else ()
        # MindSpore has one way to divide what operators read whole; which axes it takes is no choice of the user's.
        divides = bool(over) and pins.rest.axes is None and priced.machine.settings.target == "mindspore"
        for name, node in priced.parameter_nodes.items():
            if name in pins.rest_parameters:
                layouts = priced.stored_layouts[name]
                make = partial(_divided, layouts, mesh) if divides else partial(_most_split, layouts, over, mesh)
                mask = self._once(("rest", id(layouts)), make)
                yield Demand(Restriction("rest", name, where, None, f"stored {text}"), node, mask)


def _playing(pin: StrategyPin, choices: Choices) -> Mask:
    if pin.only_roles and all(a in choices.mesh.sizes for a, _ in pin.roles):
        return choices.playing(pin.roles)
    return np.array(_admitted(pin, choices.strategies, choices.mesh), dtype=bool)


def needed(pins: Pins) -> dict[str, Allowed]:
    """By operator, the strategies that its pins leave; equal pins share what says so."""
    ways: dict[StrategyPin, Allowed] = {}
    found: dict[str, Allowed] = {}
    for r in pins.restrictions:
        if isinstance(r.pin, StrategyPin):
            found[r.name] = ways.setdefault(r.pin, partial(_playing, r.pin))
    return found


def _admitted(pin: Any, states: Sequence[Strategy | Layout], mesh: DeviceMesh) -> list[bool]:
    return [pin.admits(s, mesh) for s in states]


def _most_batch(
    strategies: Sequence[Strategy],
    batch: frozenset[str],
    axes: tuple[str, ...],
    mesh: DeviceMesh,
    finite: Mask,
    members: Callable[[str], tuple[str, ...]],
) -> Mask:
    """Strategies that split nothing but the batch, over `axes` alone, and of these the ones that split it furthest.

    All that are allowed where there is none: a profile may forbid heavy operators to be replicated.
    """
    shards = np.zeros(len(strategies), dtype=np.int64)
    for i, s in enumerate(strategies):
        split = split_of(s, mesh)
        if finite[i] and all(batch.issuperset(members(f)) and set(over) <= set(axes) for f, over in split.items()):
            shards[i] = mesh.size(a for over in split.values() for a in over)
    return (shards == shards.max()) & (shards > 0) if shards.any() else finite


def _most_split(layouts: Sequence[Layout], axes: tuple[str, ...], mesh: DeviceMesh) -> Mask:
    """Layouts that no other axes split than these, and of them the ones in most shards."""
    shards = np.array([x.shards(mesh) if set(x.split_axes) <= set(axes) else 0 for x in layouts])
    return shards == shards.max()


def _divided(layouts: Sequence[Layout], mesh: DeviceMesh) -> Mask:
    """What optimizer parallel makes of a parameter that every rank computes with: whole where it cannot divide it."""
    whole = Layout.replicated(len(layouts[0].dims))
    further = divided_further(whole, mesh)
    wanted = further if further in layouts else whole
    return np.array([x == wanted for x in layouts])


def demands_of(pins: Pins, priced: PricedProblem) -> list[Demand]:
    """What every pin and the rest leave of the nodes they bear on.  A pin may bear on several nodes."""
    masks = _Masks(pins, priced)
    return [*(d for r in pins.restrictions for d in masks.of(r)), *masks.rest()]


def unoffered(demands: Sequence[Demand], priced: PricedProblem) -> list[Unoffered]:
    """The demands that leave no state of their node, with what is offered instead, nearest first."""
    mesh = priced.machine.mesh
    operators = {node: op for op in priced.graph.ops if (node := priced.op_nodes.get(op.name)) is not None}
    found = []
    for d in demands:
        if not d.allowed.any():
            pin = d.restriction.pin
            assert pin is not None, "the rest always leaves a state"
            reason = pin.misfit(mesh) or _offered(d, priced, operators.get(d.node), mesh)
            found.append(Unoffered(d.restriction, reason))
    return found


def _offered(d: Demand, priced: PricedProblem, op: Op | None, mesh: DeviceMesh) -> str:
    pin, name = d.restriction.pin, d.restriction.name
    finite = priced.problem.nodes[d.node].costs < FORBIDDEN
    shown: list[tuple[int, str]] = []
    if isinstance(pin, StrategyPin) and op is not None:
        what = f"{op.type} offers"
        for s, ok in zip(priced.tables[op.name].strategies, finite, strict=True):
            if ok:
                shown.append((pin.distance(s, mesh), _strategy_text(s, pin, mesh)))
    elif isinstance(pin, LayoutPin):
        layouts: Iterable[Layout]
        if d.restriction.kind == "stored":
            what, layouts = "it may be stored as", priced.stored_layouts[name]
        elif d.restriction.kind == "produced" and op is not None:
            what = f"{op.name} ({op.type}) delivers it as"
            layouts = [w[0] for w in priced.tables[op.name].writes[op.outputs.index(name)] or ()]
        elif op is not None:
            what = f"{op.name} ({op.type}) reads it as"
            layouts = [x[0] for x in priced.tables[op.name].reads[op.inputs.index(name)] or ()]
        else:
            reader = next(r for r in priced.readers[name] if r.node == d.node)
            what, layouts = "the output is left as", [reader.combinations[k][0][0] for k in reader.rows]
        shown = [
            (pin.distance(x, mesh), _layout_text(x, pin, mesh)) for x, ok in zip(layouts, finite, strict=True) if ok
        ]
    texts = list(dict.fromkeys(text for _, text in sorted(shown, key=lambda pair: pair[0])))
    more = f" and {len(texts) - MOST_OFFERED} more" if len(texts) > MOST_OFFERED else ""
    return f"on mesh {mesh} {what} {'; '.join(texts[:MOST_OFFERED])}{more}, nearest first"


def _strategy_text(s: Strategy, pin: StrategyPin, mesh: DeviceMesh) -> str:
    if pin.roles:
        return s.text(mesh)
    if pin.factors is None:
        return f"({', '.join(_counts(x, mesh) for x in (s.operands if pin.shard else s.results) if x is not None)})"
    return " ".join(f"{f}={'.'.join(axes)}" for f, axes in split_of(s, mesh).items()) or "replicated"


def _layout_text(layout: Layout, pin: LayoutPin, mesh: DeviceMesh) -> str:
    return _counts(layout, mesh) if pin.counts is not None else str(layout)


def _counts(layout: Layout, mesh: DeviceMesh) -> str:
    return f"({', '.join(str(mesh.size(d)) for d in layout.dims)})"
