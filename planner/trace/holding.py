"""What every unit holds of weights, and what enters it; what was counted becomes a `Workload`."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Final

from planner.ir import Layout, Tensor
from planner.lowering import Redistribute
from planner.redistribute.steps import FREE
from planner.trace.lifetimes import Levels
from planner.trace.placed import Placed
from planner.trace.totals import WorkloadTotals
from planner.trace.workload import Tied, Unit, Workload
from planner.work.units import parameter_elements

__all__ = ["workload_of"]


def workload_of(totals: WorkloadTotals, at: Placed, levels: Levels, *, recomputed: bool) -> Workload:
    """What was counted, and what units hold."""
    repeated = at.facts.repeated
    held = _held(at)
    entering = _entering(at)
    exchanges = [totals.exchanges.of(u) for u in range(len(repeated))]
    units: list[Unit] = []
    known: dict[object, Unit] = {}  # blocks that do the same are one value
    for u in range(len(repeated)):
        unit = Unit(
            forward=dict(totals.forward[u]),
            backward=dict(totals.backward[u]),
            of_weights=dict(totals.of_weights[u]),
            core=dict(totals.core[u]),
            sent_forward=dict(totals.sent["forward"][u]),
            sent_backward=dict(totals.sent["backward"][u]),
            sent_core=dict(totals.sent["core"][u]),
            again=dict(totals.again[u]),
            sent_again=dict(totals.sent["again"][u]),
            gathers=exchanges[u].gathers,
            sums=exchanges[u].sums,
            scatters=exchanges[u].scatters,
            saved_bytes=float(levels.units[u].saved),
            core_bytes=float(levels.units[u].core),
            over_bytes=float(levels.units[u].over),
            constant_bytes=float(levels.units[u].constants),
            entering_bytes=entering[u][0],
            entering_axes=entering[u][1],
            widest_weights=max(totals.widest[u].values(), default=0),
            result_bytes=totals.results[u],
            score_bytes=totals.scores[u],
            weights=held.weights[u],
            stored=held.stored[u],
            frozen_bytes=held.frozen[u],
            frozen_stored_bytes=held.frozen_stored[u],
        )
        units.append(known.setdefault(_value(unit), unit))
    shapes = (at.graph.tensors[t].shape for t in at.graph.inputs)
    samples = next((shape[0] for shape in shapes if shape), 1)
    return Workload(
        at.mesh,
        tuple(units),
        repeated,
        tuple(held.tied),
        parameter_elements(at.graph),
        samples,
        at.facts.stages,
        recomputed=recomputed,
        trained=bool(at.active),
        constant_bytes=float(levels.resident - sum(u.constants for u in levels.units)),
        frozen_tied=tuple(held.frozen_tied),
    )


_FIELDS: Final = attrgetter(*(f.name for f in fields(Unit)))


def _value(unit: Unit) -> tuple[object, ...]:
    return tuple(tuple(v.items()) if isinstance(v, dict) else v for v in _FIELDS(unit))


def _entering(at: Placed) -> list[tuple[float, tuple[str, ...]]]:
    """Bytes that units before hand over to each unit, as they rest on one rank, and the axes whose ranks all hold the
    largest of them."""
    entering = [0.0] * len(at.facts.repeated)
    largest: list[tuple[float, tuple[str, ...]]] = [(0.0, ())] * len(at.facts.repeated)
    for t, tensor in at.graph.tensors.items():
        producer = at.graph.producers.get(t)
        if producer is None or at.is_fixed(t) or t in at.facts.weights or not tensor.is_float:
            continue
        here = at.unit(producer)
        readers = at.graph.consumers.get(t, ())
        for u in {at.unit(op) for op, _ in readers if op.name not in at.facts.fixed}:
            if u > here:
                size, layout = at.resting(t), at.rest.get(t)
                split = () if layout is None else (*layout.split_axes, *layout.partial_axes)
                whole = tuple(a.name for a in at.mesh.axes if a.size > 1 and a.name not in split)
                entering[u] += size
                largest[u] = max(largest[u], (size, whole))
    return [(size, axes) for size, (_, axes) in zip(entering, largest, strict=True)]


@dataclass(slots=True)
class _Held:
    """Of weights, by unit: elements as read and as stored, and bytes of those that are never trained; and weights
    that several units share."""

    weights: list[float]
    stored: list[float]
    frozen: list[float]
    frozen_stored: list[float]
    tied: list[Tied]
    frozen_tied: list[Tied]


def _held(at: Placed) -> _Held:
    n = len(at.facts.repeated)
    held = _Held([0.0] * n, [0.0] * n, [0.0] * n, [0.0] * n, [], [])
    copied = _copied(at)
    for p in at.graph.parameters:
        users = _users(at, p)
        if not users or p.shape is None:
            continue
        elements = math.prod(p.shape)
        rest = at.rest.get(p.name)
        stored = elements / (1 if rest is None else rest.shards(at.mesh))
        # What ranks read a part of without storing it so (a table of positions, of which each reads its own) is whole.
        used = max(stored, elements / _read_layout(at, p).shards(at.mesh), copied.get(p.name, 0.0))
        first = min(users)
        if p.name not in at.facts.trained:
            each = at.bytes(p.name) / elements
            held.frozen[first] += each * used
            held.frozen_stored[first] += each * stored
            if len(users) > 1:
                held.frozen_tied.append(Tied(each * used, each * stored, tuple(sorted(users))))
            continue
        held.weights[first] += used
        held.stored[first] += stored
        if len(users) > 1:
            held.tied.append(Tied(used, stored, tuple(sorted(users))))
    return held


def _copied(at: Placed) -> dict[str, float]:
    """Parameter → elements of all the copies of it that one rank gathers, in whatever layouts it is read."""
    found: dict[str, set[tuple[str, Layout]]] = defaultdict(set)
    for c in at.program.instructions:
        if not isinstance(c, Redistribute) or c.gradient or c.tensor not in at.facts.weights:
            continue
        if any(s.kind not in FREE for s in c.steps):
            found[_parameter(at, c.tensor)].add((c.tensor, c.target))
    tensors = at.graph.tensors
    return {p: sum(tensors[t].elements / x.shards(at.mesh) for t, x in copies) for p, copies in found.items()}


def _parameter(at: Placed, tensor: str) -> str:
    """The largest parameter that the weight is made of."""
    names, found = [tensor], list[str]()
    while names:
        producer = at.graph.producers.get(name := names.pop())
        if producer is not None:
            names += [t for t in producer.inputs if t in at.facts.weights]
        else:
            found.append(name)
    return max(found, key=lambda name: at.graph.tensors[name].elements)


def _read_layout(at: Placed, p: Tensor) -> Layout:
    """As the first reader reads it."""
    for op, i in at.graph.consumers.get(p.name, ()):
        layout = at.strategy(op).operands[i]
        if layout is not None:
            return layout
    return Layout.replicated(p.rank)


def _users(at: Placed, p: Tensor) -> set[int]:
    """Units that read the weight, as it is or rearranged."""
    users: set[int] = set()
    names = [p.name]
    while names:
        for op, _ in at.graph.consumers.get(names.pop(), ()):
            made = [t for t in op.outputs if t]
            if all(t in at.facts.weights for t in made):
                names += made
            else:
                users.add(at.unit(op))
    return users
