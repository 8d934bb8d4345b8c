"""The optimizer's slots in strategy files, which `transform_checkpoints` moves with their parameters.

MindSpore's optimizers clone their parameters, each under a prefix (mindspore/nn/optim), and its front end lays the
clones out as the parameters, the optimizer's shards included (`SetClonedTensorShapeForOptimizer`).  A slot that a
strategy file does not name is copied from one rank as it is, without an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from planner.cost_models.memory import Optimizer
from planner.emit.mindspore.strategy_map import ParameterLayout, StrategyMap
from planner.emit.names import Name
from planner.planning.document import PlanDocument

__all__ = ["PREFIXES", "with_slots"]

# A plan names no class: of Adam there are the slots of nn.Adam, and those of nn.AdamWeightDecay.
PREFIXES: Final[Mapping[Optimizer, tuple[str, ...]]] = {
    "adam": ("moment1", "moment2", "adam_m", "adam_v"),
    "momentum": ("moments",),
    "sgd": ("accum", "stat"),
}


def with_slots(strategies: StrategyMap, plan: PlanDocument, names: Mapping[str, Name]) -> StrategyMap:
    """The file of a plan, or of one of its stages, with the layouts of the slots of every parameter that is trained
    behind those of all parameters."""
    own = strategies.parameters
    trained = {names[n].name for n, p in plan.parameters.items() if p.optimizer is not None}
    slots: dict[str, ParameterLayout] = {}
    for prefix in PREFIXES[plan.schedule.optimizer]:
        slots |= {f"{prefix}.{n}": p for n, p in own.items() if n in trained}
    # A parameter that the network itself calls so stays what it is.
    return replace(strategies, parameters={**own, **{n: p for n, p in slots.items() if n not in own}})
