"""The repeated layers of a network in a plan: which operators are whose, in which stage they run, which run again.

A layer is what stands below `PREFIX.NUMBER` in the module paths of operators; of several prefixes that is taken which
has the most operators.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from planner.errors import InputError
from planner.planning.document import PlanDocument

__all__ = ["Layers", "Recomputed", "Stages", "layers_of", "recomputed_layers", "stage_layers"]

_NUMBERED: Final = re.compile(r"(.*?)\.(\d+)(?:\.|$)")


@dataclass(frozen=True, slots=True)
class Layers:
    """`count` layers; `of`: operator → its layer, counted from 0, in the order of the plan.  Operators before, between
    and behind the layers are not in it."""

    prefix: str
    count: int
    of: Mapping[str, int]

    def operators(self, layer: int) -> list[str]:
        return [name for name, k in self.of.items() if k == layer]


def layers_of(plan: PlanDocument) -> Layers:
    found: dict[str, dict[str, int]] = defaultdict(dict)
    for name, op in plan.operators.items():
        path = "." + (op.module or name).replace("/", ".").lstrip(".")
        numbered = _NUMBERED.match(path)
        if numbered:
            found[numbered[1].lstrip(".")][name] = int(numbered[2])
    if not found:
        return Layers("", 0, {})
    prefix = max(found, key=lambda p: len(found[p]))
    numbers = {n: k for k, n in enumerate(sorted(set(found[prefix].values())))}
    return Layers(prefix, len(numbers), {name: numbers[n] for name, n in found[prefix].items()})


@dataclass(frozen=True, slots=True)
class Stages:
    """`layers` of every stage, or, where stages hold several chunks of the model, of every chunk from its beginning.
    `moved`: layers that the plan cuts, and parameters before or behind all layers that it has between the ends."""

    layers: Sequence[range]
    moved: Sequence[str]


def stage_layers(plan: PlanDocument, layers: Layers, target: str) -> Stages:
    """Stages of whole layers: each lies where the plan runs most of its operators.

    InputError where a stage is left without a layer, or the plan has no layers.
    """
    stages = plan.schedule.stages
    chunks = stages * plan.schedule.chunks
    if stages > 1 and not layers.count:
        raise InputError(
            f"plan: {stages} pipeline stages, and no layers (NAME.0, NAME.1, …) in the module paths of its operators; "
            f"{target} gives each stage a number of layers: search without --stages"
        )
    homes: list[int] = []
    moved = []
    for layer in range(layers.count):
        at = Counter(plan.chunk(name) for name in layers.operators(layer))
        home = min(at, key=lambda k: (-at[k], k))
        homes.append(max(home, homes[-1] if homes else 0))
        if len(at) > 1 or home != homes[-1]:
            moved.append(f"{layers.prefix}.{layer}")
    out = []
    for chunk in range(chunks):
        first = sum(h < chunk for h in homes)
        out.append(range(first, first + homes.count(chunk)))
        if chunks > 1 and not out[-1]:
            what = "stage" if chunks == stages else "chunk"
            raise InputError(
                f"plan: {what} {chunk} of {chunks} holds no whole layer of the {layers.count} below {layers.prefix}; "
                f"{target} cuts between layers: search with fewer --stages"
            )
    return Stages(out, [*moved, *_between_ends(plan, layers)])


def _between_ends(plan: PlanDocument, layers: Layers) -> list[str]:
    order = {name: i for i, name in enumerate(plan.operators)}
    first = min((order[n] for n in layers.of), default=0)
    out = []
    for name, p in plan.parameters.items():
        outside = [r.operator for r in p.readers if r.operator not in layers.of]
        last = plan.schedule.stages * plan.schedule.chunks - 1
        ends = {(plan.chunk(n), 0 if order[n] < first else last) for n in outside}
        if any(chunk != end for chunk, end in ends):
            out.append(name)
    return out


@dataclass(frozen=True, slots=True)
class Recomputed:
    """`layers` that run again in the backward pass; `exact`: whether their operators do, all of them and no others."""

    layers: Sequence[int]
    exact: bool


def recomputed_layers(plan: PlanDocument, layers: Layers) -> Recomputed:
    """A layer counts where at least half of its operators run again.

    InputError where operators do that are in no such layer, so that nothing could be said of them.
    """
    again = {name for block in plan.schedule.recompute for name in block}
    found = [k for k in range(layers.count) if 2 * len(again & set(layers.operators(k))) >= len(layers.operators(k))]
    if again and not found:
        raise InputError(
            f"plan: {len(plan.schedule.recompute)} blocks run again in the backward pass "
            f"({plan.schedule.recompute[0][0]}, …), which are no layers (NAME.0, NAME.1, …): "
            "search with --recompute none"
        )
    whole = {name for k in found for name in layers.operators(k)}
    return Recomputed(found, again == whole)
