"""What ranks that hold the same weights exchange: sums of gradients, and weights that are gathered."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Literal

from planner.clock.configuration import Configuration
from planner.clock.passes import Passes
from planner.clock.stages import alike_chunks, chunks_of
from planner.cost_models.pipeline import GradientBucket, gradient_sync, zero3_backward, zero3_forward
from planner.trace import Exchange, Unit, Workload

__all__ = ["Exchanges"]

_What = Literal["gather", "scatter", "sum"]


class Exchanges:
    """Seconds of the exchange, beyond what hides behind computing."""

    def __init__(
        self,
        workload: Workload,
        c: Configuration,
        passes: Passes,
        chunks: Sequence[Sequence[int]],
        across: Callable[[Sequence[int], float], float] | None = None,
    ) -> None:
        """`across`: seconds of a sum over stages of so many bytes; None: by the links of the passes."""
        self.w, self.c, self.passes, self.chunks = workload, c, passes, chunks
        self.links = passes.exchanging(workload)
        self.across = across or self.links.across
        self.contention = passes.profile.framework.contention
        self._known: dict[tuple[_What, int], float] = {}  # blocks that do the same are one value
        self._after: dict[tuple[int, ...], float] = {}
        # What tells chunks, and ranks, apart.
        self.alike = alike_chunks(workload, c, chunks)
        self.alike_ranks = [sum((self.alike[k] for k in chunks_of(c, d)), ()) for d in range(c.pp)]

    def gathered_pass(self, chunk: int, *, backward: bool) -> float:
        """ZeRO 3: a pass through a chunk whose weights are gathered ahead and whose gradients are scattered after."""
        order = list(self.chunks[chunk])
        gather = [self.gather(self.w.units[i]) for i in order]
        if not backward:
            times = [self.passes.units[i].forward.seconds for i in order]
            if not self.passes.overlapped:
                return sum(times) + sum(gather)
            return zero3_forward(times, gather, contention=self.contention).total_s
        return self._scattered(order[::-1], gather[::-1], overlapped=self.passes.overlapped)

    def scattered_pass(self, chunk: int) -> float:
        """ZeRO 2 under accumulation: a backward pass through a chunk whose gradients are scattered after."""
        order = self.chunks[chunk][::-1]
        return self._scattered(order, [0.0] * len(order), overlapped=self.c.overlap_gradients)

    def _scattered(self, order: Sequence[int], gather: Sequence[float], *, overlapped: bool) -> float:
        """The backward pass through these units, whose weights take so long to gather, gradients scattered after."""
        times = [self.passes.units[i].back for i in order]
        scatter = [0.0 if self.c.frozen else self.scatter(self.w.units[i]) for i in order]
        if not overlapped:
            return sum(times) + sum(gather) + sum(scatter)
        return zero3_backward(times, gather, scatter, contention=self.contention).total_s

    def gather(self, u: Unit) -> float:
        """Gathering the weights of a unit."""
        return self._once("gather", u)

    def scatter(self, u: Unit) -> float:
        """What every micro-batch does to gradients that are scattered in every pass."""
        return self._once("scatter", u)

    def summed(self, u: Unit) -> float:
        """What is left once a step, which is not scattered within the passes: sums of the parts over replicas."""
        return self._once("sum", u)

    def _once(self, what: _What, u: Unit) -> float:
        known = self._known.get((what, id(u)))
        if known is None:
            known = self._known[what, id(u)] = self._priced(what, u)
        return known

    def _priced(self, what: _What, u: Unit) -> float:
        """Kept with the links, which other schedules and levels of ZeRO share."""
        width = self.c.weight_bytes if what == "gather" else self.c.gradient_bytes
        key = what, id(u), width, self.c.scatters_every_pass
        if key not in self.links.exchanged:
            if what == "gather":
                parts = u.gathers
            elif what == "scatter":
                parts = tuple(x for x in u.scatters if x.kind != "all_reduce")
            elif self.c.scatters_every_pass:
                parts = tuple(x for x in u.scatters if x.kind == "all_reduce")
            else:
                parts = u.sums
            self.links.exchanged[key] = self._seconds(parts, width)
        return self.links.exchanged[key]

    def _seconds(self, exchanges: Iterable[Exchange], width: int) -> float:
        return sum(x.count * self.links.seconds(x.kind, x.axes, x.elements * width, x.share) for x in exchanges)

    def after(self, device: int) -> float:
        """Seconds that sums of gradients and gathering of updated weights add to a step, on a pipeline rank."""
        if self.c.frozen:
            return 0.0
        alike = self.alike_ranks[device]
        if alike not in self._after:
            self._after[alike] = self._gradients(device) + self._weights(device)
        return self._after[alike] + self._tied(device)

    def _tied(self, device: int) -> float:
        """Weights that several stages read, as an embedding that is the output layer, too: they sum its gradients."""
        seconds = 0.0
        for tied in self.w.tied:
            stages = sorted({self._stage[i] for i in tied.units})
            if device in stages:
                seconds += self.across(stages, tied.stored * self.c.gradient_bytes)
        return seconds

    @cached_property
    def _stage(self) -> dict[int, int]:
        """The pipeline rank of each unit."""
        return {i: d for d in range(self.c.pp) for k in chunks_of(self.c, d) for i in self.chunks[k]}

    def _gradients(self, device: int) -> float:
        c = self.c
        units = self.units(device)[::-1]
        sizes = [self.w.units[i].weights * c.gradient_bytes for i in units]
        seconds = [self.summed(self.w.units[i]) for i in units]
        buckets = [GradientBucket(n, size) for n, size in enumerate(sizes, 1)]
        back = [self.passes.units[i].back for i in units]
        run = gradient_sync(back, buckets, seconds, overlapped=c.overlap_gradients, contention=self.contention)
        return run.exposed_s

    def units(self, device: int) -> list[int]:
        """Those of a pipeline rank, in the order of the graph within each of its chunks."""
        return [i for k in chunks_of(self.c, device) for i in self.chunks[k]]

    def _weights(self, device: int) -> float:
        """Gathering the weights that each rank updated a part of."""
        c = self.c
        if c.zero == 3:
            return 0.0
        units = self.units(device)
        gather = [self.gather(self.w.units[i]) for i in units]
        if not c.overlap_parameters:
            return sum(gather)
        times = [self.passes.units[i].forward.seconds for i in units]
        return zero3_forward(times, gather, prefetch=len(units), contention=self.contention).exposed_s
