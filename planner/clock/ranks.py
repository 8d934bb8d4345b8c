"""The machines that the ranks of a pipeline are: one kind of devices for all, or several kinds of devices.

Each rank of the pipeline (a stage with all its data-, context- and tensor-parallel devices) stands on devices of one
kind.  So what its devices exchange among themselves goes over the links of that kind, as everywhere; the devices of a
kind fill its servers one after the other.  Two kinds share no server: what passes between a stage of one and a stage of
another crosses the network, at the price of the slower of both ends, and waits for the slower host.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import cached_property

from planner.clock.configuration import Configuration
from planner.clock.exchange import Exchanges
from planner.clock.links import PIPELINE, Links
from planner.clock.passes import Passes, passes_of
from planner.clock.stages import chunks_of, in_chunk
from planner.cost_models import HardwareProfile
from planner.trace import Unit, Workload

__all__ = ["Ranks", "handover_seconds"]


def handover_seconds(workload: Workload, entered: Unit, copies: int, passes: Passes) -> float:
    """Seconds to hand what enters a unit on to another rank of the pipeline, of devices of one kind."""
    entering, links = copies * entered.entering_bytes, passes.links
    sent = entering / workload.mesh.size(entered.entering_axes)
    gathered = links.seconds("all_gather", entered.entering_axes, entering)
    return links.seconds("permute", (PIPELINE,), sent) + gathered + passes.profile.host.handover_s


class Ranks:
    """`exchanges`: of each rank, by its own machine; ranks on one kind of devices share theirs."""

    def __init__(
        self,
        workload: Workload,
        c: Configuration,
        machine: HardwareProfile | Sequence[HardwareProfile],
        chunks: Sequence[Sequence[int]],
        *,
        overlapped: bool = True,
    ) -> None:
        """`machine`: of all ranks, or of each; profiles are told apart as objects, not by what they say."""
        self.workload, self.c, self.chunks = workload, c, chunks
        if isinstance(machine, HardwareProfile):
            passes = self._again(passes_of(workload, c, machine, overlapped=overlapped))
            self._kinds = 1
            self.exchanges = [Exchanges(workload, c, passes, chunks)] * c.pp
            return
        if len(machine) != c.pp:
            raise ValueError(f"machines: expected one for each of {c.pp} pipeline ranks, found {len(machine)}")
        found: dict[int, Exchanges] = {}
        for profile in machine:
            if id(profile) not in found:
                stages = sum(p is profile for p in machine)
                alone = c.with_(pp=stages, stage_layers=None, recompute_layers=None, offload_layers=None)
                passes = self._again(passes_of(workload, alone, profile, overlapped=overlapped))
                found[id(profile)] = Exchanges(workload, c, passes, chunks, self._across)
        self._kinds = len(found)
        self.exchanges = [found[id(profile)] for profile in machine]

    def _again(self, passes: Passes) -> Passes:
        """With as much computed again as the configuration says of each chunk."""
        if self.c.recompute_layers is None or self.workload.recomputed:
            return passes
        shares = [1.0] * len(self.workload.units)
        for k, part in enumerate(self.chunks):
            share = in_chunk(self.workload, self.c, part, k).recompute_blocks
            for i in part:
                shares[i] = share
        return passes.again_by_unit(shares)

    @cached_property
    def _rank_of(self) -> dict[int, int]:
        """The rank that holds each chunk."""
        return {k: d for d in range(self.c.pp) for k in chunks_of(self.c, d)}

    def of_chunk(self, k: int) -> Exchanges:
        """Of the rank that holds chunk k."""
        return self.exchanges[0] if self._kinds == 1 else self.exchanges[self._rank_of[k]]

    @property
    def alike(self) -> Sequence[Hashable]:
        """What tells chunks apart: what they hold, and where."""
        held = self.exchanges[0].alike
        return held if self._kinds == 1 else [(id(self.of_chunk(k)), units) for k, units in enumerate(held)]

    @property
    def alike_ranks(self) -> Sequence[Hashable]:
        """What tells ranks apart."""
        held = self.exchanges[0].alike_ranks
        return held if self._kinds == 1 else [(id(self.exchanges[d]), units) for d, units in enumerate(held)]

    @property
    def step_overhead_s(self) -> float:
        """Seconds that pass once a step outside the model, on the slowest host."""
        return max(x.passes.profile.host.step_overhead_s for x in self.exchanges)

    def handover(self, k: int) -> float:
        """Seconds to hand activations on to chunk k, or their gradients back from it.

        Ranks that all hold them send a part each and gather it on the other side.
        """
        giver, taker = self.of_chunk(k - 1).passes, self.of_chunk(k).passes
        entered = self.workload.units[self.chunks[k][0]]
        if giver is taker:
            return handover_seconds(self.workload, entered, self.c.copies, taker)
        entering = self.c.copies * entered.entering_bytes
        sent = entering / self.workload.mesh.size(entered.entering_axes)
        ends: tuple[Passes, Passes] = (giver, taker)
        return (
            max(p.links.apart("permute", sent) for p in ends)
            + max(p.links.seconds("all_gather", entered.entering_axes, entering) for p in ends)
            + max(p.profile.host.handover_s for p in ends)
        )

    def _across(self, stages: Sequence[int], size: float) -> float:
        """Of a sum over these stages of what ranks at the same place hold."""
        links: dict[int, Links] = {id(self.exchanges[d]): self.exchanges[d].links for d in stages}
        if len(links) == 1:
            first = next(d for d, x in enumerate(self.exchanges) if id(x) in links)
            return next(iter(links.values())).across([d - first for d in stages], size)
        return max(x.apart("all_reduce", size, len(stages)) for x in links.values()) if len(stages) > 1 else 0.0
