"""Where a graph is cut into stages.

Stages are runs of operators in graph order, so that data flows from each to later ones only.  What is computed from
weights alone stands with its first reader.  Layers stay whole where that leaves enough places, else modules (a product
and its bias): frameworks put these into stages.  Of all ways to cut between the places where the fewest bytes
cross, that is taken whose slowest stage is the fastest (a stage's own work, and what it receives and sends back); among
these, that where the fewest seconds are spent crossing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.errors import InputError
from planner.ir import Graph, Role
from planner.planning.readers import readers_of

__all__ = ["boundaries", "crossing_bytes", "cut_points", "cuts_between", "stage_of_operators"]

_LAYER: Final = re.compile(r"(.*?[./]\d+)(?:[./]|$)")
_MOST_PLACES: Final = 512
_TIE: Final = 1e-6  # of the slowest stage: a second crossing counts this much of one computing

Floats = NDArray[np.float64]


def flowing(graph: Graph) -> frozenset[str]:
    """Operators that data reaches; the others are computed from weights and constants alone."""
    fed = {t for t in graph.inputs if graph.tensors[t].role is Role.INPUT}
    found = set()
    for op in graph.ops:
        if any(t in fed for t in op.inputs):
            found.add(op.name)
            fed.update(t for t in op.outputs if t)
    return frozenset(found)


def crossing_bytes(graph: Graph, local_bytes: Mapping[str, float]) -> Floats:
    """Bytes that cross before each operator of `graph.ops`: made by data before it, read at it or behind.  A stage
    passes on what later ones read.  Shape: (operators,)."""
    position = {op.name: i for i, op in enumerate(graph.ops)}
    moves = flowing(graph)
    change = np.zeros(len(graph.ops) + 1)
    for op in graph.ops:
        if op.name not in moves:
            continue
        for t in op.outputs:
            last = max((position[c.name] for c, _ in graph.consumers.get(t, ())), default=-1)
            if t and last > position[op.name]:
                change[position[op.name] + 1] += local_bytes[t]
                change[last + 1] -= local_bytes[t]
    return np.cumsum(change)[:-1]


def boundaries(graph: Graph) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Whether each operator begins another layer, and another module, than the one before it, of those that data
    reaches.  A layer is what stands below NAME.NUMBER in the module paths."""
    moves = flowing(graph)
    layers, modules = np.zeros((2, len(graph.ops)), dtype=np.bool_)
    last: tuple[str, str] | None = None
    for i, op in enumerate(graph.ops):
        if op.name in moves:
            numbered = _LAYER.match(op.module)
            here = (numbered[1] if numbered else "", op.module)
            layers[i] = last is None or here[0] != last[0]
            modules[i] = last is None or not op.module or here[1] != last[1]
            last = here
    return layers, modules


def cut_points(
    work_s: Sequence[float], crossing_s: Floats, stages: int, preferred: Sequence[NDArray[np.bool_]] = ()
) -> tuple[int, ...]:
    """Indices of the operators that stages 1, 2, … begin with.

    `work_s`: seconds of each operator for one micro-batch, forward and backward; `crossing_s`: seconds to send what
    crosses before each, there and back; `preferred`: where cuts go if these are enough places, the best first.

    InputError where there are fewer places to cut than needed.
    """
    if stages == 1:
        return ()
    done = np.concatenate([[0.0], np.cumsum(np.asarray(work_s, dtype=np.float64))])
    inside = [i for i in range(1, len(work_s)) if done[i] > 0 and done[-1] > done[i]]
    distinct: list[int] = []
    for allowed in (*preferred, np.ones(len(work_s), dtype=np.bool_)):
        if len(distinct) < stages - 1:
            distinct = _one_per_run([i for i in inside if allowed[i]], done, crossing_s)
    if len(distinct) < stages - 1:
        raise InputError(
            f"--stages {stages}: the graph has {len(distinct) + 1} operators in sequence that compute something; "
            "use fewer"
        )
    places = np.array(sorted(sorted(distinct, key=lambda i: (crossing_s[i], i))[: max(_MOST_PLACES, stages)]))
    before, cross = done[places], crossing_s[places]
    # slowest[j]: of the best way to cut whose last stage so far ends at places[j]; spent: crossing on that way.
    slowest, spent = before.copy(), np.zeros(len(places))
    chosen: list[NDArray[np.int64]] = []
    for _ in range(stages - 2):
        stage = before[None, :] - before[:, None] + cross[:, None]
        worst = np.maximum(slowest[:, None], stage)
        worst[np.tril_indices(len(places))] = np.inf
        total = worst + _TIE * (spent + cross)[:, None]
        best = np.argmin(total, axis=0)
        columns = np.arange(len(places))
        chosen.append(best)
        slowest, spent = worst[best, columns], (spent + cross)[best]
    last = np.maximum(slowest, done[-1] - before + cross) + _TIE * (spent + cross)
    at = int(np.argmin(last))
    if not np.isfinite(last[at]):
        raise InputError(
            f"--stages {stages}: the graph cannot be cut into as many that all compute something; use fewer"
        )
    ends = [at]
    for best in reversed(chosen):
        ends.append(int(best[ends[-1]]))
    return tuple(int(places[i]) for i in reversed(ends))


def cuts_between(
    graph: Graph, held: Mapping[str, int], stages: int, crossing_s: Floats, preferred: Sequence[NDArray[np.bool_]]
) -> tuple[int, ...]:
    """Indices of the operators that stages 1, 2, … begin with, where `held` says which stage each parameter is in: of
    the places between the readers of one stage's parameters and of the next one's, that where the fewest bytes cross.

    InputError where a parameter of a later stage is read before one of an earlier, or a stage holds nothing of its own.
    """
    position = {op.name: i for i, op in enumerate(graph.ops)}
    reads = sorted((position[r.operator], stage, n) for n, stage in held.items() for r in readers_of(graph, n))
    points: list[int] = []
    lacking = sorted(set(range(stages)) - set(held.values()))
    if lacking:
        raise InputError(f"stage {lacking[0]} of {stages} holds no parameter of its own, so where it ends is not said")
    for stage in range(1, stages):
        last = max((p, n) for p, s, n in reads if s < stage)
        first = min((p, n) for p, s, n in reads if s >= stage)
        if last[0] >= first[0]:
            raise InputError(
                f"parameter {first[1]!r} is in stage {stage} or later, and is read no later than {last[1]!r} of an "
                "earlier one: data would flow back"
            )
        places = range(max([last[0], *points[-1:]]) + 1, first[0] + 1)
        points.append(min(places, key=lambda i: (*(not allowed[i] for allowed in preferred), crossing_s[i], i)))
    return tuple(points)


def _one_per_run(places: Sequence[int], done: Floats, crossing_s: Floats) -> list[int]:
    """Of places with equal work before them, that where the fewest bytes cross: stages between them would be empty."""
    best: dict[float, int] = {}
    for i in places:
        other = best.get(float(done[i]))
        if other is None or crossing_s[i] < crossing_s[other]:
            best[float(done[i])] = i
    return sorted(best.values())


def stage_of_operators(graph: Graph, points: Sequence[int]) -> dict[str, int]:
    """Operator → stage, for cuts before the operators with these indices."""
    moves = flowing(graph)
    out: dict[str, int] = {}
    for i, op in reversed(list(enumerate(graph.ops))):
        own = sum(i >= p for p in points)
        readers = [out[c.name] for t in op.outputs if t for c, _ in graph.consumers.get(t, ())]
        out[op.name] = own if op.name in moves else min(readers, default=own)
    return {op.name: out[op.name] for op in graph.ops}
