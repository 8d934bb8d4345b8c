"""Which ranks talk to each other: tensor-parallel ones innermost, then context, data, pipeline (Megatron's order)."""

from __future__ import annotations

from typing import Literal, cast

from cost_models import Collective, CollectiveModel, GroupShape, HardwareProfile
from planner.evaluate.configuration import Configuration

__all__ = ["Group", "Ranks"]

Group = Literal["tensor", "context", "expert", "data", "expert_data", "shard", "replica", "pipeline"]


class Ranks:
    """Prices of collectives over the groups of a configuration.

    `data` are the ranks that hold the same weights (data and context parallel ones); `expert_data` those that hold
    the same experts; `shard` those that divide the weights' state and `replica` those that repeat it.
    """

    def __init__(self, c: Configuration, profile: HardwareProfile) -> None:
        self.model = CollectiveModel(profile)
        data = c.dp * c.cp
        shard = c.shard_ranks or data
        plain, experts, shards = (
            (c.pp, c.dp, c.cp, c.tp),
            (c.pp, data // c.ep, c.ep, c.tp),
            (c.pp, data // shard, shard, c.tp),
        )
        self.groups: dict[Group, GroupShape] = {
            "tensor": self.model.group(plain, (3,)),
            "context": self.model.group(plain, (2,)),
            "data": self.model.group(plain, (1, 2)),
            "pipeline": self.model.group(plain, (0,)),
            "expert": self.model.group(experts, (2,)),
            "expert_data": self.model.group(experts, (1,)),
            "shard": self.model.group(shards, (2,)),
            "replica": self.model.group(shards, (1,)),
        }
        self._known: dict[tuple[str, Group, float], float] = {}

    def seconds(self, kind: str, group: Group, size: float) -> float:
        """Of one collective; bytes in the convention of `cost_models.link`.  A group of one exchanges nothing."""
        if size <= 0 or self.groups[group].ranks == 1:
            return 0.0
        key = (kind, group, size)
        if key not in self._known:
            self._known[key] = float(self.model.seconds(cast(Collective, kind), size, self.groups[group]))
        return self._known[key]
