"""Parameters that several stages read, as a table that stands at both ends of a language model.

Each of these stages holds the parameter with its state.  A stage's backward pass knows the part of the gradient that
its own operators make, so once a step, behind the last micro-batch and before the update, the parts are summed: an
all-reduce of the stored shard among the ranks at the same place of these stages (Narayanan et al. 2021, Megatron's
embedding group).  After it every copy is updated alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from planner.clock.links import Links
from planner.ir import Graph
from planner.planning.planner import Planned

__all__ = ["StageSum", "stage_sums", "stages_of_parameters"]


@dataclass(frozen=True, slots=True)
class StageSum:
    """The sum of a parameter's gradient over `stages`; `bytes` of the shard that each rank gives, `cost` in units of
    the profile's price resolution."""

    parameter: str
    stages: tuple[int, ...]
    bytes: int
    cost: int

    def groups(self, devices: int) -> Iterator[tuple[int, ...]]:
        """The ranks that sum with each other, where a stage has so many `devices`; ranks count stage by stage."""
        for rank in range(devices):
            yield tuple(stage * devices + rank for stage in self.stages)


def stages_of_parameters(graph: Graph, stage_of: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """Parameter → the stages whose operators read it, and which hold it therefore."""
    found = {t.name: {stage_of[op.name] for op, _ in graph.consumers.get(t.name, ())} for t in graph.parameters}
    return {name: tuple(sorted(stages)) for name, stages in found.items()}


def stage_sums(planned: Planned, stage_of: Mapping[str, int]) -> tuple[StageSum, ...]:
    """Of every trained parameter that more than one stage reads."""
    priced, mesh = planned.priced, planned.mesh
    settings = priced.machine.settings
    links = Links(mesh, 1, priced.machine.profile)
    found = []
    for name, stages in stages_of_parameters(priced.graph, stage_of).items():
        if len(stages) > 1 and name in priced.active:
            shards = planned.assignment.stored[name].shards(mesh)
            size = settings.tensor_bytes(priced.graph.tensors[name]) // shards
            cost = round(links.across(stages, size) / priced.machine.unit_s)
            found.append(StageSum(name, stages, size, cost))
    return tuple(found)
