"""The strategy files of a plan, one for each pipeline stage: what the emitter writes, and how MindSpore's checkpoints
of the plan lie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from planner.emit.mindspore.optimizer import Wanted, shard_size
from planner.emit.mindspore.slots import with_slots
from planner.emit.mindspore.strategy import Strategies, strategies_of_plan, wanted_of_plan
from planner.emit.mindspore.strategy_map import StrategyMap
from planner.emit.names import Name
from planner.emit.stages import stage_of_plan
from planner.planning.document import PlanDocument

__all__ = ["Staged", "staged"]


@dataclass(frozen=True, slots=True)
class Staged:
    """`maps`: the files, with slots; `strategies`: of what they are made; `wanted`: each parameter as the plan has it;
    `size` of optimizer parallel."""

    maps: tuple[StrategyMap, ...]
    strategies: tuple[Strategies, ...]
    wanted: Mapping[str, Wanted]
    size: int


def staged(plan: PlanDocument, names: Mapping[str, Name]) -> Staged:
    """InputError where the plan cannot be said in MindSpore's terms."""
    parts = [stage_of_plan(plan, s) if len(plan.stages) > 1 else plan for s in range(len(plan.stages))]
    wanted = [wanted_of_plan(part, names) for part in parts]
    size = shard_size([w for each in wanted for w in each.values()])
    stages = tuple(
        strategies_of_plan(part, names, s, w, size) for s, (part, w) in enumerate(zip(parts, wanted, strict=True))
    )
    maps = tuple(with_slots(x.map, plan, names) for x in stages)
    return Staged(maps, stages, {n: w for each in wanted for n, w in each.items()}, size)
