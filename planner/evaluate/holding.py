"""What every unit holds: weights, what enters it, what it keeps; a tally becomes a `Workload`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields

from planner.evaluate.axis import WHOLE
from planner.evaluate.local import Local
from planner.evaluate.tally import Tally
from planner.evaluate.workload import AXES, Unit, Workload
from planner.ir import Tensor
from planner.work.activity import trained_parameters

__all__ = ["workload_of"]


def workload_of(tally: Tally, at: Local) -> Workload:
    """A tensor that several units keep counts in the first of them."""
    repeated = at.model.repeated
    weights, experts, frozen, tied, total = _weights(at)
    entering = _entering(at)
    first: dict[str, int] = {}
    for u, saved in enumerate(tally.saved):
        for t in saved:
            first.setdefault(t, u)
    units: list[Unit] = []
    known: dict[object, Unit] = {}  # blocks that do the same are one value
    for u in range(len(repeated)):
        core_bytes = sum(tally.core_saved[u].values())
        unit = Unit(
            forward=dict(tally.forward[u]),
            backward=dict(tally.backward[u]),
            of_weights=dict(tally.of_weights[u]),
            core=dict(tally.core[u]),
            sent_forward=dict(tally.sent["forward"][u]),
            sent_backward=dict(tally.sent["backward"][u]),
            sent_core=dict(tally.sent["core"][u]),
            saved_bytes=sum(size for t, size in tally.saved[u].items() if first[t] == u) + core_bytes,
            core_bytes=core_bytes,
            entering_bytes=entering[u],
            transient_bytes=tally.transient[u],
            widest_weights=max(tally.widest[u].values(), default=0),
            result_bytes=tally.results[u],
            score_bytes=tally.scores[u],
            weights=weights[u],
            expert_weights=experts[u],
            frozen_bytes=frozen[u],
        )
        units.append(known.setdefault(_value(unit), unit))
    graph = at.graph
    shapes = (graph.tensors[t].shape for t in graph.inputs)
    samples = next((shape[0] for shape in shapes if shape), 1)
    return Workload(tuple(units), repeated, tied, total, samples)


def _value(unit: Unit) -> tuple[object, ...]:
    values = (getattr(unit, f.name) for f in fields(unit))
    return tuple(tuple(v.items()) if isinstance(v, Mapping) else v for v in values)


def _entering(at: Local) -> list[float]:
    """Bytes that units before hand over to each unit, as they rest on one rank."""
    entering = [0.0] * len(at.model.repeated)
    for t, tensor in at.graph.tensors.items():
        producer = at.graph.producers.get(t)
        if producer is None or at.is_fixed(t) or t in at.model.weights or not tensor.is_float:
            continue
        here = at.unit(producer)
        readers = at.graph.consumers.get(t, ())
        for u in {at.unit(op) for op, _ in readers if op.name not in at.model.fixed}:
            if u > here:
                entering[u] += at.resting(t)
    return entering


def _weights(at: Local) -> tuple[list[int], list[int], list[float], int, int]:
    """Elements on one rank by unit, of ordinary weights and of experts', and bytes of those that are never trained;
    elements of weights that distant units share; elements of the whole model."""
    n = len(at.model.repeated)
    ordinary, experts, frozen = [0] * n, [0] * n, [0.0] * n
    tied = total = 0
    trained = trained_parameters(at.graph)
    for p in at.graph.parameters:
        users = _users(at, p)
        if not users or p.shape is None:
            continue
        elements = math.prod(p.shape)
        total += elements
        # Context-parallel ranks hold weights whole, of positions too, of which each reads a part.
        divided = [a for a in AXES if a in at.axes and a != "context" and at.axes[a].rest.get(p.name, WHOLE) >= 0]
        if p.name not in trained:
            frozen[min(users)] += at.bytes(p.name) / math.prod(at.axes[a].size for a in divided)
            continue
        for a in divided:
            elements = -(-elements // at.axes[a].size)
        (experts if "expert" in divided else ordinary)[min(users)] += elements
        if max(users) - min(users) > 1:
            tied += elements
    return ordinary, experts, frozen, tied, total


def _users(at: Local, p: Tensor) -> set[int]:
    """Units that read the weight, as it is or rearranged."""
    users: set[int] = set()
    names = [p.name]
    while names:
        for op, _ in at.graph.consumers.get(names.pop(), ()):
            made = [t for t in op.outputs if t]
            if all(t in at.model.weights for t in made):
                names += made
            else:
                users.add(at.unit(op))
    return users
