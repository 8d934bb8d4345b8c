"""Which uniform configurations there are for a job.

Degrees divide the devices, micro-batches the samples of a data-parallel rank, chunks of the pipeline the layers.  As
everywhere in the search, gradients are kept and summed in the width of activations; how a step is run (the vendor's
attention, what overlaps) is what frameworks do by default (`planner.planning.schemes`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Literal

from planner.clock import CONTEXTS, Configuration, Context
from planner.cost_models import HardwareProfile
from planner.planning.schemes import SCHEMES

__all__ = [
    "FRACTIONS", "Space", "configurations", "copied", "every", "group_sizes", "groups", "levels", "scheduled",
    "schedules",
]  # fmt: skip

_MOST_TENSOR: Final = 16  # tensor-parallel ranks; beyond a server they exchange over the network
_MOST_CONTEXT: Final = 8
_MOST_STAGES: Final = 64
FRACTIONS: Final = (0.25, 0.5, 0.75, 1.0)  # of the blocks that are run again, or whose activations wait elsewhere
_ZERO: Final = (3, 2, 1, 0)
_BESIDE_GROUPS: Final = 1  # of expert, context and tensor parallelism, beside groups of data-parallel ranks
_RUN: Final = (  # fields that say how a step is run, and nothing of what is divided, kept or computed again
    "precision", "matrix_type", "cast_gathers", "parameter_bytes", "gradient_bytes", "attention", "frozen", "loss",
    "fuse", "overlap_gradients", "overlap_parameters", "overlap_tensor", "overlap_pipeline", "optimizer",
)  # fmt: skip

Precision = Literal["bf16", "fp16", "fp32"]
Optimizer = Literal["adam", "momentum", "sgd"]


@dataclass(frozen=True, slots=True)
class Space:
    """`batch` samples of a step; `layers` that a pipeline may be cut between; `stages`, `micro_batches` and
    `recompute`: where these are prescribed; `experts`: whether there are any to divide; `unsupported`: what of a
    configuration the framework that it is for cannot express, empty where it can express all; None: any will do.
    `copies`: how many micro-batches may pass together, interleaved, where ranks exchange activations; `offload`:
    whether activations may wait in the host's memory; `usual`: a configuration whose way to run a step (types, widths,
    kernels, what overlaps) all have in place of the default, `precision` and `optimizer` among it, while what the space
    varies counts for nothing in it; `contexts`: the ways for attention to go about positions that ranks divide."""

    devices: int
    batch: int
    layers: int
    precision: Precision = "bf16"
    optimizer: Optimizer = "adam"
    stages: int | None = None
    micro_batches: int | None = None
    recompute: Literal["none", "blocks"] | None = None
    experts: bool = True
    unsupported: Callable[[Configuration], str] | None = None
    copies: tuple[int, ...] = (1,)
    offload: bool = False
    usual: Configuration | None = None
    contexts: tuple[Context, ...] = CONTEXTS


def configurations(space: Space, profile: HardwareProfile) -> Iterator[Configuration]:
    """One for each way to lay tensors out and to cut the model and the batch; `schedules` and `levels` have the others
    of each."""
    server = profile.devices_per_server or space.devices
    widest = max(_MOST_TENSOR, server)
    usual = _usual(space)
    for tp in _divisors(space.devices, widest):
        for cp in _divisors(space.devices // tp, _MOST_CONTEXT):
            for pp in _stages(space, space.devices // (tp * cp)):
                dp = space.devices // (tp * cp * pp)
                if space.batch % dp:
                    continue
                for ep in _divisors(dp, dp) if space.experts else [1]:
                    for micro in _divisors(space.batch // dp, space.batch):
                        count = space.batch // dp // micro
                        if space.micro_batches not in (None, count):
                            continue
                        c = Configuration(
                            **usual,
                            dp=dp,
                            tp=tp,
                            cp=cp,
                            ep=ep,
                            pp=pp,
                            sequence_parallel=tp > 1,
                            micro_batch=micro,
                            micro_batches=count,
                        )
                        for context in space.contexts if cp > 1 else CONTEXTS[:1]:
                            # Heads that are exchanged among ranks do not go together with sequence parallelism.
                            if tp == 1 or context != "all-to-all":
                                yield c.with_(context=context)
                            if tp > 1:
                                yield c.with_(context=context, sequence_parallel=False)


def _usual(space: Space) -> dict[str, Any]:
    """What all configurations have in common, by field."""
    if space.usual is not None:
        return {name: getattr(space.usual, name) for name in _RUN}
    gradients = 4 if space.precision == "fp32" else 2
    run = {"precision": space.precision, "optimizer": space.optimizer, "gradient_bytes": gradients}
    return {**SCHEMES["megatron"], **run, "zero": 0}


def schedules(space: Space, c: Configuration, fractions: Sequence[float] = FRACTIONS) -> Iterator[Configuration]:
    """The configuration with every number of copies, schedule, and way to keep activations or compute them again, of
    the blocks or of these fractions of them."""
    ways = _of_activations(space, fractions)
    for one in copied(space, c):
        for schedule, chunks in _schedules(space, one):
            scheduled = one.with_(schedule=schedule, virtual_stages=chunks)
            yield from (scheduled.unchecked(activations) for activations in ways)


def copied(space: Space, c: Configuration) -> Iterator[Configuration]:
    """The configuration with every number of copies."""
    return (c.with_(copies=n) if n != c.copies else c for n in space.copies if _may_copy(c, n))


def _may_copy(c: Configuration, copies: int) -> bool:
    """Whether so many micro-batches may pass together: one copy hides nothing where ranks exchange no activations."""
    return copies == 1 or (c.tp * c.cp * c.ep > 1 and c.micro_batches % copies == 0)


def levels(space: Space, c: Configuration) -> Iterator[Configuration]:
    """The configuration with every ZeRO level that there is for it, the one that divides most first."""
    for zero in _levels(c):
        level = c.unchecked({"zero": zero})
        if space.unsupported is None or not space.unsupported(level):
            yield level


def scheduled(space: Space, c: Configuration, fractions: Sequence[float] = FRACTIONS) -> Iterator[Configuration | None]:
    """As `schedules`, each at the ZeRO level that divides most of those that there are for it; None where there is
    none."""
    if space.unsupported is None:
        yield from schedules(space, c.unchecked({"zero": _levels(c)[0]}), fractions)
    else:
        yield from (next(levels(space, s), None) for s in schedules(space, c, fractions))


def _levels(c: Configuration) -> tuple[int, ...]:
    """Of ZeRO, whatever a target has words for."""
    return _ZERO if c.dp * c.cp > 1 else _ZERO[-1:]


def groups(space: Space, c: Configuration) -> Iterator[Configuration]:
    """The configuration with ZeRO over every smaller group of its data- and context-parallel ranks: the largest first.

    A group holds all ranks that divide experts or positions.  Beside several of these kinds there are none: a layout on
    so many axes of a mesh takes long to find.
    """
    for shards in group_sizes(c):
        group = c.unchecked({"shard_ranks": shards})
        if space.unsupported is None or not space.unsupported(group):
            yield group


def group_sizes(c: Configuration) -> tuple[int, ...]:
    """Ranks of each of these groups, whatever a target has words for."""
    if not c.zero or (c.ep > 1) + (c.cp > 1) + (c.tp > 1) > _BESIDE_GROUPS:
        return ()
    return _group_sizes(c.dp * c.cp, c.ep * c.cp)


@lru_cache
def _group_sizes(ranks: int, inside: int) -> tuple[int, ...]:
    return tuple(n for n in range(ranks // 2, max(2, inside) - 1, -1) if ranks % n == 0 and n % inside == 0)


def every(space: Space, profile: HardwareProfile) -> Iterator[Configuration]:
    """All there are, one by one: some hundred thousand for a large job."""
    for laid_out in configurations(space, profile):
        for scheduled in schedules(space, laid_out):
            for level in levels(space, scheduled):
                yield level
                yield from groups(space, level)


def _of_activations(space: Space, fractions: Sequence[float]) -> list[dict[str, Any]]:
    """What becomes of activations, by field; the one that keeps least on the device is the last."""
    again = [{"recompute": "full", "recompute_blocks": f} for f in fractions]
    if space.recompute == "blocks":
        return again[-1:]
    plain: list[dict[str, Any]] = [{"recompute": "none"}, {"recompute": "selective"}]
    if space.recompute == "none":
        return plain
    return [*plain, *({"offload": f} for f in fractions if space.offload), *again]


def _schedules(space: Space, c: Configuration) -> Iterator[tuple[str, int]]:
    if c.pp == 1:
        yield "1f1b", 1
        return
    yield "1f1b", 1
    if c.passes % c.pp == 0:
        yield from (("1f1b", v) for v in range(2, space.layers // c.pp + 1) if space.layers % (c.pp * v) == 0)
    yield "zb-h1", 1
    if space.layers >= 2 * c.pp:
        yield "zb-v", 2


def _stages(space: Space, ranks: int) -> list[int]:
    if space.stages is not None:
        return [space.stages] if ranks % space.stages == 0 else []
    return _divisors(ranks, min(_MOST_STAGES, max(1, space.layers)))


def _divisors(number: int, most: int) -> list[int]:
    return [d for d in range(1, min(number, most) + 1) if number % d == 0]
