"""What data-parallel ranks exchange: sums of gradients, and weights that are gathered."""

from __future__ import annotations

from collections.abc import Sequence

from cost_models.pipeline import GradientBucket, gradient_sync, zero3_backward, zero3_forward
from planner.evaluate.configuration import Configuration
from planner.evaluate.passes import Passes
from planner.evaluate.ranks import Ranks
from planner.evaluate.stages import chunks_of
from planner.evaluate.workload import Unit, Workload

__all__ = ["Exchange"]


class Exchange:
    """Seconds of the exchange, beyond what hides behind computing."""

    def __init__(
        self, workload: Workload, c: Configuration, passes: Passes, ranks: Ranks, chunks: Sequence[Sequence[int]]
    ) -> None:
        self.w, self.c, self.passes, self.ranks, self.chunks = workload, c, passes, ranks, chunks
        self.width = c.weight_bytes
        self.contention = 1 / (1 - passes.device.collective_interference)

    def gathered_pass(self, chunk: int, *, backward: bool) -> float:
        """ZeRO 3: a pass through a chunk whose weights are gathered ahead and whose gradients are scattered after."""
        order = list(self.chunks[chunk])
        gather = [self._gather(self.w.units[i]) for i in order]
        if not backward:
            times = [self.passes.units[i].forward.seconds for i in order]
            return zero3_forward(times, gather, contention=self.contention).total_s
        order.reverse()
        gather.reverse()
        scatter = [0.0 if self.c.frozen else self._scatter(self.w.units[i]) for i in order]
        times = [self.passes.units[i].back for i in order]
        return zero3_backward(times, gather, scatter, contention=self.contention).total_s

    def _gather(self, u: Unit) -> float:
        return self.ranks.seconds("all_gather", "shard", u.weights * self.width) + self.ranks.seconds(
            "all_gather", "expert_data", u.expert_weights * self.width
        )

    def _scatter(self, u: Unit) -> float:
        return self.ranks.seconds("reduce_scatter", "shard", u.weights * self.c.gradient_bytes) + self.ranks.seconds(
            "reduce_scatter", "expert_data", u.expert_weights * self.c.gradient_bytes
        )

    def after(self) -> float:
        """Seconds that sums of gradients and gathering of updated weights add to a step, on the slowest rank."""
        c = self.c
        if c.frozen:
            return 0.0
        return max(self._gradients(d) + self._weights(d) for d in range(c.pp)) + self._tied()

    def _tied(self) -> float:
        """The embedding that the first and the last stage share: both add up its gradient."""
        if len(self.chunks) - 1 in chunks_of(self.c, 0) or not self.w.tied_weights:
            return 0.0
        return self.ranks.seconds("permute", "pipeline", self.w.tied_weights * self.c.gradient_bytes)

    def _gradients(self, device: int) -> float:
        c = self.c
        units = self._units(device)[::-1]
        kind = "reduce_scatter" if c.zero else "all_reduce"
        sizes, seconds = [], []
        for i in units:
            u = self.w.units[i]
            sizes.append((u.weights + u.expert_weights) * c.gradient_bytes)
            if c.zero == 3:  # scattered within the passes; what is left are sums of the parts over the replicas
                part = u.weights * c.gradient_bytes / self.ranks.groups["shard"].ranks
                seconds.append(self.ranks.seconds("all_reduce", "replica", part))
                continue
            seconds.append(
                self._sum(u.weights * c.gradient_bytes)
                + self.ranks.seconds(kind, "expert_data", u.expert_weights * c.gradient_bytes)
            )
        buckets = [GradientBucket(n, size) for n, size in enumerate(sizes, 1)]
        back = [self.passes.units[i].back for i in units]
        run = gradient_sync(back, buckets, seconds, overlapped=c.overlap_gradients, contention=self.contention)
        return run.exposed_s

    def _units(self, device: int) -> list[int]:
        return [i for k in chunks_of(self.c, device) for i in self.chunks[k]]

    def _sum(self, size: float) -> float:
        """Seconds to sum ordinary gradients: whole, or each rank's part, then that part over the replicas."""
        if not self.c.zero:
            return self.ranks.seconds("all_reduce", "data", size)
        part = size / self.ranks.groups["shard"].ranks
        scattered = self.ranks.seconds("reduce_scatter", "shard", size)
        return scattered + self.ranks.seconds("all_reduce", "replica", part)

    def _weights(self, device: int) -> float:
        """Gathering the weights that each rank updated a part of."""
        c = self.c
        if c.zero in (0, 3):
            return 0.0
        units = self._units(device)
        gather = [
            self.ranks.seconds("all_gather", "shard", self.w.units[i].weights * self.width)
            + self.ranks.seconds("all_gather", "expert_data", self.w.units[i].expert_weights * self.width)
            for i in units
        ]
        if not c.overlap_parameters:
            return sum(gather)
        times = [self.passes.units[i].forward.seconds for i in units]
        return zero3_forward(times, gather, prefetch=len(units), contention=self.contention).exposed_s
