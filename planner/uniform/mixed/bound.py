"""What a configuration takes at least on stages of several kinds of devices, wherever its layers are cut.

Of 1F1B the stage at place i passes all M micro-batches; before its first one that has passed the stages before it, and
behind its last one that goes back through them.  With t_i the seconds that stage i takes for a micro-batch, there and
back,

    step >= t_0 + … + t_(i-1) + M t_i           for every i

Units of the model are dealt to stages in some way.  If unit u takes x_u(k) on devices of kind k, and all units together
U(k), then with weights 1/U(k) the stages have

    sum over i of t_i / U(kind of i) >= C = sum over u of the least x_u(k) / U(k)

So step >= C / (y_0 + y_1 + …) for every y >= 0 with M y_i + y_(i+1) + … >= 1 / U(kind of i): multiply the first line by
y_i and add up (duality of linear programmes).  Small y are found from the last stage backwards.  Where gradients of
weights, which nobody waits for, are what a stage does last, only what goes forward counts of the stages before: at
least the share of a pass that is forward in any unit of weight, times t_j.

And layers are whole: with the least seconds of a layer, and as many of them on a stage as fit at most, the slowest
stage passes its own M times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from planner.clock import Configuration
from planner.clock.memory import chunk_activation_bytes, state_bytes
from planner.clock.passes import passes_of
from planner.clock.stages import layers_of
from planner.trace import Workload
from planner.uniform.mixed.cluster import Cluster, Kind
from planner.uniform.mixed.cut import waiting

__all__ = ["Alone"]

_ESTIMATED = 0.1  # of activations: a micro-batch of another size may be laid out so that it holds less per sample
_OF_WEIGHT = 0.005  # of all passes: units that take less do not count for what share is forward


@dataclass(frozen=True, slots=True)
class _Times:
    """By kind: seconds of all units, and of the shortest layer; `least`: C, `of_weight`: C of the units of weight
    alone, which spend at least the share `forward` going forward."""

    whole: dict[int, float]
    layer: dict[int, float]
    least: float
    of_weight: float
    forward: float


@dataclass(frozen=True, eq=False)
class Alone:
    """A micro-batch of `samples` samples of a rank, passed by as few ranks as there may be (`configuration`)."""

    workload: Workload
    configuration: Configuration
    cluster: Cluster
    samples: int
    _times: dict[object, _Times] = field(default_factory=dict)
    _saved: dict[object, float] = field(default_factory=dict)

    def step(self, c: Configuration, stages: Sequence[Kind]) -> float:
        """Seconds that the step of `c` takes at least, with such devices under its stages."""
        overhead = max(k.profile.host.step_overhead_s for k in stages)
        times = self._passes(c.recompute, c.recompute_blocks)
        if times.least <= 0:
            return overhead
        back = c.order == "1f1b"
        work, share = (times.least, 1.0) if back else (times.of_weight, times.forward)
        behind = 0.0
        for kind in reversed(stages):
            behind += max(0.0, 1 / times.whole[id(kind)] - share * behind) / c.passes
        return work / behind * c.micro_batch / self.samples + overhead

    def whole_layers(self, c: Configuration, stages: Sequence[Kind]) -> float:
        """The same, of stages that hold whole layers, as many as they have memory for; inf where that is too few."""
        layers, most = len(self._layers), self._room(c, stages)
        if sum(most) < layers:
            return float("inf")
        times = self._passes(c.recompute, c.recompute_blocks).layer
        each = np.array([times[id(k)] for k in stages])
        slowest = np.unique(np.outer(np.arange(1, layers + 1), np.unique(each)))
        held = np.minimum(np.floor(slowest[:, None] / each * (1 + 1e-9)), most).sum(axis=1)
        first = int(np.argmax(held >= layers))
        overhead = max(k.profile.host.step_overhead_s for k in stages)
        return float(slowest[first]) * c.passes * c.micro_batch / self.samples + overhead

    def may_fit(self, c: Configuration, stages: Sequence[Kind]) -> bool:
        """Whether the devices may hold all layers, each stage as many as its own can."""
        return sum(self._room(c, stages)) >= len(self._layers)

    def _room(self, c: Configuration, stages: Sequence[Kind]) -> list[int]:
        """Layers that each stage has memory for at most."""
        static, saved = self._held(c), self._saved_bytes(c) * c.micro_batch / self.samples
        found = []
        for kind, count in zip(stages, waiting(c.order, c.pp, c.passes), strict=True):
            each = static + count * saved
            unlimited = kind.memory_limit is None or each <= 0
            found.append(len(self._layers) if unlimited else int((kind.memory_limit or 0) // each))
        return found

    def _passes(self, recompute: str, blocks: float) -> _Times:
        key = recompute, blocks
        if key not in self._times:
            found = {id(k): self._units(k, recompute, blocks) for k in self.cluster.kinds}
            times = {k: both.sum(axis=0) for k, both in found.items()}
            whole = {k: float(t.sum()) for k, t in times.items()}
            layer = {k: float(t[self._layers].min()) for k, t in times.items()}
            if not all(whole.values()):
                self._times[key] = _Times(whole, layer, 0.0, 0.0, 0.0)
            else:
                shares = np.min([t / whole[k] for k, t in times.items()], axis=0)
                heavy = shares >= _OF_WEIGHT
                forward = min(
                    float((found[k][0][heavy] / t[heavy]).min()) if heavy.any() else 0.0 for k, t in times.items()
                )
                self._times[key] = _Times(whole, layer, float(shares.sum()), float(shares[heavy].sum()), forward)
        return self._times[key]

    def _units(self, kind: Kind, recompute: str, blocks: float) -> np.ndarray:
        """Seconds of each pass through each unit: (2, units)."""
        again = 1.0
        if recompute == "full":
            # Where the program runs whole blocks again, it leaves out what nothing reads.
            again = blocks if blocks < 1 else 0.5
        run = self.configuration.with_(recompute=recompute)
        units = passes_of(self.workload, run, kind.profile).units
        backward = [u.backward.seconds + again * u.again.seconds for u in units]
        return np.array([[u.forward.seconds for u in units], backward])

    @cached_property
    def _layers(self) -> list[int]:
        return layers_of(self.workload)

    def _held(self, c: Configuration) -> float:
        """Bytes of the smallest layer's weights, with all that belongs to them."""
        elements = min(self.workload.units[u].weights for u in self._layers)
        state = state_bytes(c)
        parts = zip((3, 2, 1), (c.weight_bytes, c.gradient_bytes, state), strict=True)
        return sum(elements * size / (c.dp * c.cp if c.zero >= level else 1) for level, size in parts)

    def _saved_bytes(self, c: Configuration) -> float:
        """Bytes of activations that the smallest layer keeps."""
        key = c.recompute, c.recompute_blocks
        if key not in self._saved:
            least = min(chunk_activation_bytes(self.workload, c, [u]) for u in self._layers)
            self._saved[key] = (1 - _ESTIMATED) * least
        return self._saved[key]
