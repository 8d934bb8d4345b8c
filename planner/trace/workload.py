"""What one rank does for one micro-batch: kernels and transfers, by unit of the model.  No machine, no seconds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from planner.cost_models.kernels import Kernel
from planner.ir import DeviceMesh

__all__ = ["Exchange", "Tied", "TracedCollective", "Unit", "Workload"]


@dataclass(frozen=True, slots=True)
class TracedCollective:
    """A collective over mesh axes; bytes as `planner.cost_models.link` counts them (the whole tensor of the group).

    `hidden` transfers may run beside the computing around them whatever the framework: rings of attention, and the
    gathering of a product's input again in the backward pass.  `of_products`: what is gathered feeds a product, or is
    the gradient that feeds one.
    """

    kind: str
    axes: tuple[str, ...]
    bytes: float
    hidden: bool = False
    of_products: bool = False


@dataclass(frozen=True, slots=True)
class Exchange:
    """A collective over mesh axes that parameters, or their gradients, of a unit take part in together.

    `count` parameters of `elements` each, those of the whole tensors of the group, whose width the configuration says;
    each is the fraction `share` of its unit (`planner.work.units.bucket_shares`).
    """

    kind: str
    axes: tuple[str, ...]
    elements: float
    share: float = 1.0
    count: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """A block of the model, or what stands before, between or after blocks.

    Attributes:
        forward, backward: kernels of the two passes → how often.
        of_weights: those of the backward kernels that make gradients of weights.
        core: kernels of the attention core in the forward pass, run again with selective recomputation.
        again: those that the program runs again in its backward pass, where `Workload.recomputed`.
        sent_forward, sent_backward, sent_core, sent_again: transfers → how often.
        gathers: how weights come from where they are stored to where they are read.
        sums: gradients the other way, once a step; scatters: the same where parts of gradients are added up over
            micro-batches, so that every pass scatters them and only sums of parts wait for the end of the step.
        saved_bytes: activations kept for the backward pass, a tensor that several units keep in the first of them;
            core_bytes: those of them that are made inside the core of an attention alone.
        over_bytes: how far, while the unit runs, a rank holds more activations, gradients of activations, copies and
            buffers than what it and the units before it keep (`planner.trace.lifetimes`).
        constant_bytes: constants, and what is computed from constants alone, that no other unit reads.
        entering_bytes: what units before hand over, as it lies on one rank; entering_axes: the mesh axes whose ranks
            all hold it.
        widest_weights: the most elements of weights that multiply one activation, whose gradients are made at once.
        result_bytes: results of products and of attention, the latter counted twice (see `Recompute`).
        score_bytes: what the loss reads: one value per class.
        weights, stored: elements of trained weights on one rank, as they are read and as they are stored.
        frozen_bytes, frozen_stored_bytes: what weights take that no optimizer changes (frozen ones; quantised ones,
            their scales).
    """

    forward: Mapping[Kernel, int]
    backward: Mapping[Kernel, int]
    core: Mapping[Kernel, int]
    of_weights: Mapping[Kernel, int]
    sent_forward: Mapping[TracedCollective, int]
    sent_backward: Mapping[TracedCollective, int]
    sent_core: Mapping[TracedCollective, int]
    again: Mapping[Kernel, int]
    sent_again: Mapping[TracedCollective, int]
    gathers: tuple[Exchange, ...]
    sums: tuple[Exchange, ...]
    scatters: tuple[Exchange, ...]
    saved_bytes: float
    core_bytes: float
    over_bytes: float
    constant_bytes: float
    entering_bytes: float
    entering_axes: tuple[str, ...]
    widest_weights: int
    result_bytes: float
    score_bytes: float
    weights: float
    stored: float
    frozen_bytes: float = 0.0
    frozen_stored_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class Tied:
    """A weight that several `units` read, of which the first counts it; elements on one rank, of a frozen one bytes, as
    it is read and as it is stored."""

    weights: float
    stored: float
    units: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Workload:
    """`units` in the order of the graph; `repeated[i]` says whether unit i is a block of a run of equal ones.

    `tied` are trained weights that several units read (an embedding used again by the output layer), `frozen_tied`
    those that are never trained; `parameters` are elements of the whole model, `samples` the first dimension of its
    first input; `stages[i]` is the stage of a pipeline that unit i is in, where there are several; `recomputed` whether
    units say what the program runs again in its backward pass; `trained` whether there is one.  `constant_bytes` are
    those of constants that several units read, of which every stage has its own.  `exchanged_over`: a mesh of the same
    ranks whose axes `gathers` and `sums` of units name, where it is not `mesh`; `like`: a workload of the same kernels,
    and of the same transfers where it is on the same mesh, whose prices are found once for both.
    """

    mesh: DeviceMesh
    units: tuple[Unit, ...]
    repeated: tuple[bool, ...]
    tied: tuple[Tied, ...]
    parameters: int
    samples: int
    stages: tuple[int, ...] = ()
    recomputed: bool = False
    trained: bool = True
    constant_bytes: float = 0.0
    exchanged_over: DeviceMesh | None = None
    like: Workload | None = None
    frozen_tied: tuple[Tied, ...] = ()

    @property
    def chunks(self) -> tuple[tuple[int, ...], ...]:
        """The units of each stage of a pipeline."""
        count = max(self.stages, default=0) + 1
        stages = self.stages or (0,) * len(self.units)
        return tuple(tuple(u for u, s in enumerate(stages) if s == stage) for stage in range(count))

    def spread(self, of: Sequence[int], repeated: tuple[bool, ...], parameters: int) -> Workload:
        """The workload of a model in which unit `of[u]` of this one stands for unit u."""
        places: dict[int, list[int]] = defaultdict(list)
        for u, s in enumerate(of):
            places[s].append(u)
        tied, frozen = (
            tuple(replace(t, units=tuple(sorted(u for s in t.units for u in places[s]))) for t in found)
            for found in (self.tied, self.frozen_tied)
        )
        units = tuple(self.units[s] for s in of)
        return replace(self, units=units, repeated=repeated, tied=tied, frozen_tied=frozen, parameters=parameters)
