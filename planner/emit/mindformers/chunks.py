"""Layers by chunk and stage, as MindFormers counts them.

LayerSetting (mindformers 2.1, parallel_core/training_graph/transformer/utils.py) takes `offset` and the lists of
`recompute` as [chunk][stage]: `offset` is what a stage has beyond layers // (stages · chunks); of every chunk and stage
the first so many layers run again.  A chunk is a walk from the first stage to the last; more than one is an interleaved
schedule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from planner.emit.layers import Layers
from planner.errors import InputError
from planner.planning.document import PlanDocument

__all__ = ["Chunks", "chunks_of"]


@dataclass(frozen=True, slots=True)
class Chunks:
    """`counts`: [chunk][stage] → layers.  `moved`: layers that the plan cuts, and operators before or behind all layers
    that it does not have on the first or last stage."""

    counts: Sequence[Sequence[int]]
    moved: Sequence[str]

    def offset(self) -> list[list[int]]:
        """InputError where a stage between the ends has no layer, which MindFormers refuses."""
        stages = len(self.counts[0])
        flat = [n for row in self.counts for n in row]
        if 0 in flat[1:-1]:
            raise InputError(
                f"plan: stage {(flat[1:-1].index(0) + 1) % stages} holds no whole layer; MindFormers wants one on "
                "every stage between the first and the last: search with fewer --stages"
            )
        each = sum(flat) // len(flat)
        return [[n - each for n in row] for row in self.counts]

    def first(self, chosen: Collection[int]) -> tuple[list[list[int]], bool]:
        """How many of the chosen layers each chunk and stage has, and whether they are the first ones there."""
        out: list[list[int]] = []
        exact, number = True, 0
        for row in self.counts:
            out.append([])
            for held in row:
                found = [number + i in chosen for i in range(held)]
                out[-1].append(sum(found))
                exact &= found == sorted(found, reverse=True)
                number += held
        return out, exact


def chunks_of(plan: PlanDocument, layers: Layers) -> Chunks:
    """Every layer lies where the plan runs most of its operators.  InputError where it has stages and no layers."""
    stages = plan.schedule.stages
    if stages > 1 and not layers.count:
        raise InputError(
            f"plan: {stages} pipeline stages, and no layers (NAME.0, NAME.1, …) in the module paths of its operators; "
            "MindFormers gives each stage a number of layers: search without --stages"
        )
    counts, moved, last = [[0] * stages], [], 0
    for layer in range(layers.count):
        at = Counter(plan.operators[name].stage for name in layers.operators(layer))
        home = min(at, key=lambda s: (-at[s], s))
        if home < last:
            counts.append([0] * stages)
        counts[-1][home] += 1
        last = home
        if len(at) > 1:
            moved.append(f"{layers.prefix}.{layer}")
    if plan.schedule.chunks > 1 and len(counts) != plan.schedule.chunks:
        raise InputError(
            f"plan: {plan.schedule.chunks} chunks of the model per stage, of which not all hold a whole layer; "
            "MindFormers cuts between layers: search with fewer chunks (vpp)"
        )
    order = list(plan.operators)
    places = [i for i, n in enumerate(order) if n in layers.of]
    for i, name in enumerate(order if places else []):
        end = 0 if i < places[0] else stages - 1 if i > places[-1] else None
        if end is not None and plan.operators[name].stage != end:
            moved.append(name)
    return Chunks(counts, moved)
