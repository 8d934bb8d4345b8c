"""Peak bytes of a training step on each pipeline rank."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Final

from planner.clock.configuration import Configuration
from planner.clock.stages import alike_ranks, chunks_of, each_once, in_chunk
from planner.trace import Workload

__all__ = [
    "STATE_BYTES",
    "Held",
    "chunk_activation_bytes",
    "chunk_offloaded_bytes",
    "elements",
    "fullest",
    "held_as_made",
    "held_by_rank",
    "held_bytes",
    "made_bytes",
    "state_bytes",
]

STATE_BYTES: Final[Mapping[str, int]] = {"adam": 8, "momentum": 4, "sgd": 0}
# Bytes per score beyond the scores: in single precision, their log-softmax and its gradient (softmax); the first alone,
# worked on in place (operators); besides the first three a copy and the labels spread out (one_hot).
LOSS_HELD_BYTES: Final[Mapping[str, int]] = {"fused": 0, "softmax": 12, "operators": 4, "one_hot": 20}


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes on one device at its fullest moment, by what they are for.

    weights: as they are computed with; gradients: of weights; optimizer: its state, and the master copy of weights.
    activations: those that wait between their passes, of all micro-batches in flight; inputs: constants, and what is
        computed from constants alone, the same at every step.
    transient: what comes and goes beside all this: gradients of activations, copies, buffers, what runs again.
    """

    weights: float
    gradients: float
    optimizer: float
    activations: float
    inputs: float
    transient: float

    @property
    def total(self) -> float:
        return sum(getattr(self, f.name) for f in fields(self))

    @property
    def peak(self) -> int:
        """The total, in whole bytes."""
        return round(self.total)

    @property
    def parts(self) -> dict[str, int]:
        """Whole bytes by what they are for, which add up to the peak: what rounding leaves is the largest part's."""
        named = {f.name: getattr(self, f.name) for f in fields(self)}
        found = {name: round(size) for name, size in named.items()}
        found[max(found, key=found.__getitem__)] += self.peak - sum(found.values())
        return found


def state_bytes(c: Configuration) -> int:
    """Bytes that are held of an element of trained weights as it is stored, beside gradients and the weights that are
    computed with: the optimizer's state, and the copy of weights that it updates, in single precision.

    Weights in single precision are updated themselves, but where ranks store parts and gather all once a step (ZeRO 1
    and 2): then both are there.  Megatron's distributed optimizer alone has its parts inside of the gathered weights.
    """
    apart = c.zero in (1, 2) and (c.shard_ranks or c.dp * c.cp) > 1
    return STATE_BYTES[c.optimizer] + (4 if c.weight_bytes != 4 or apart else 0)


def elements(workload: Workload, c: Configuration, chunks: Sequence[Sequence[int]], device: int) -> tuple[float, float]:
    """Elements of trained weights on a pipeline rank: as they are read, and as they are stored."""
    mine = chunks_of(c, device)
    units = [workload.units[i] for k in mine for i in chunks[k]]
    read, stored = sum(u.weights for u in units), sum(u.stored for u in units)
    held = {i for k in mine for i in chunks[k]}
    copies = [t for t in workload.tied if t.units[0] not in held and not held.isdisjoint(t.units)]
    return read + sum(t.weights for t in copies), stored + sum(t.stored for t in copies)


def chunk_activation_bytes(workload: Workload, c: Configuration, chunk: Sequence[int]) -> float:
    """Activations that one micro-batch keeps on the device in a chunk between its passes."""
    return sum(_kept_of_unit(workload, c, i) for i in chunk)


def chunk_offloaded_bytes(workload: Workload, c: Configuration, chunk: Sequence[int]) -> float:
    """Activations of one micro-batch in a chunk that the host holds between its passes."""
    return sum(_saved_of_unit(workload, c, i) * c.offload for i in chunk if workload.repeated[i])


def _saved_of_unit(workload: Workload, c: Configuration, i: int) -> float:
    """Bytes that unit i keeps for its backward pass.

    With full recomputation a block keeps what enters it; with selective recomputation what the core of attention
    alone keeps is dropped.  A program that runs blocks again says itself what it keeps.
    """
    u = workload.units[i]
    if workload.recomputed:
        return u.saved_bytes
    if c.recompute == "full" and workload.repeated[i]:
        return c.recompute_blocks * u.entering_bytes + (1 - c.recompute_blocks) * u.saved_bytes
    if c.recompute == "products" and workload.repeated[i]:
        return min(u.saved_bytes, u.entering_bytes + u.result_bytes / 2)
    if c.recompute == "selective":
        return u.saved_bytes - u.core_bytes
    return u.saved_bytes


def _again(workload: Workload, c: Configuration, i: int, saved: float) -> float:
    """Bytes that unit i holds beside what is `saved` once its backward pass has computed the rest again."""
    u = workload.units[i]
    whole = c.recompute == "full" and workload.repeated[i] and c.recompute_blocks > 0 and not workload.recomputed
    return max(0.0, u.saved_bytes - (u.entering_bytes if whole else saved))


def held_by_rank(
    workload: Workload,
    c: Configuration,
    chunks: Sequence[Sequence[int]],
    activations: Sequence[float],
    *,
    as_made: bool = False,
) -> list[Held]:
    """Of every pipeline rank; `activations` in flight as the schedule's simulation says; `as_made`: gradients are there
    from when they are made (`held_as_made`), else throughout, as most frameworks lay them out in buffers."""
    ranks = each_once(alike_ranks(workload, c, chunks), lambda device: held_bytes(workload, c, chunks, device, 0.0))
    found = [replace(held, activations=size) for held, size in zip(ranks, activations, strict=True)]
    if not as_made:
        return found
    return [_in_stage_as_made(workload, c, chunks[rank], rank, held) for rank, held in enumerate(found)]


def fullest(held: Sequence[Held]) -> Held:
    """Of pipeline ranks, the first that holds most."""
    return max(held, key=lambda h: h.total)


def held_bytes(
    workload: Workload, c: Configuration, chunks: Sequence[Sequence[int]], device: int, activations: float
) -> Held:
    """Peak of one pipeline rank; `activations` are those in flight, by the schedule.

    Weights, their gradients and the optimizer's state are there throughout, as frameworks lay them out in buffers.
    Copies that pass together work at once, each on its own.
    """
    read, stored = elements(workload, c, chunks, device)

    def divided(level: int) -> float:
        return stored if c.zero >= level else read

    parts = [(in_chunk(workload, c, chunks[k], k), chunks[k]) for k in chunks_of(c, device)]
    mine = [workload.units[i] for _, part in parts for i in part]
    blocks = [i for _, part in parts for i in part if workload.repeated[i]]
    transient = c.copies * max((_working(workload, own, part) for own, part in parts), default=0.0)
    if c.zero == 3 and workload.trained:
        # The weights of the unit that runs and of the next one, and the gradient of the one before.
        transient += max(u.weights * (2 * c.weight_bytes + c.gradient_bytes) + 2 * u.frozen_bytes for u in mine)
    hosted = (
        _saved_of_unit(workload, own, i) for own, part in parts if own.offload for i in part if workload.repeated[i]
    )
    # One block's activations on their way to or from the host beside those of the block that computes.
    transient += 2 * c.copies * max(hosted, default=0.0)
    if not c.frozen:
        transient += _widest(workload, blocks) * made_bytes(c)
    frozen = _frozen_bytes(workload, c, (i for _, part in parts for i in part))
    return Held(
        divided(3) * c.weight_bytes + frozen,
        0.0 if c.frozen else divided(2) * c.gradient_bytes,
        0.0 if c.frozen else divided(1) * state_bytes(c),
        activations,
        workload.constant_bytes + sum(u.constant_bytes for u in mine),
        transient,
    )


def held_as_made(workload: Workload, c: Configuration) -> Held:
    """Peak of a device that runs one micro-batch through all of the model, where gradients of weights are there from
    when they are made: the backward pass frees activations while it makes them, and at no moment are all of both
    there.  Those of the step before are to be gone when it begins (`zero_grad` before the module is called).
    """
    whole = tuple(range(len(workload.units)))
    held = held_bytes(workload, c, (whole,), 0, chunk_activation_bytes(workload, c, whole))
    return _as_made(workload, c, whole, held)


def _in_stage_as_made(workload: Workload, c: Configuration, part: Sequence[int], device: int, held: Held) -> Held:
    """Peak of a stage whose gradients are there from when the first backward pass makes them: at that pass, or at a
    later one, where fewer micro-batches may be in flight.  `held`: with those of the first pass, and all gradients."""
    if c.order not in ("1f1b", "gpipe") or c.virtual_stages > 1 or c.copies > 1:
        return held
    first = c.passes if c.order == "gpipe" else min(c.passes, c.pp - device)
    later = min(c.passes - 1, first)
    then = replace(held, activations=held.activations * later / first)
    now = _as_made(workload, in_chunk(workload, c, part, device), part, held)
    return max(now, then, key=lambda h: h.total) if later else now


def _as_made(workload: Workload, c: Configuration, part: Sequence[int], held: Held) -> Held:
    """The fullest moment of the first backward pass of a part of the model, which `held` counts with all gradients."""
    if c.frozen or not workload.trained:
        return held
    made = {i: workload.units[i].stored if c.zero >= 2 else workload.units[i].weights for i in part}
    for t in workload.tied:  # the last unit that reads a weight makes its gradient first
        if not (mine := [i for i in t.units if i in made]):
            continue
        size = t.stored if c.zero >= 2 else t.weights
        if t.units[0] in made:
            made[t.units[0]] -= size
        made[max(mine)] += size
    beside = held.transient - c.copies * max(0.0, _working(workload, c, part))
    moments, kept, gradients = [], held.activations, 0.0
    # Of one micro-batch they are widened when the backward pass is over, and the weights that it read are gone.
    narrow = c.passes == 1 and c.weight_bytes < 4
    width = min(c.gradient_bytes, c.activation_bytes) if narrow else c.gradient_bytes
    if narrow:
        beside -= _widest(workload, [i for i in part if workload.repeated[i]]) * made_bytes(c)
    for i in reversed(part):
        gradients += made[i] * width
        working = _working_of_unit(workload, c, i)
        moments.append(replace(held, activations=kept, gradients=gradients, transient=beside + working))
        kept -= _kept_of_unit(workload, c, i)
    if narrow:
        widened = sum(made.values()) * c.gradient_bytes
        frozen = _frozen_bytes(workload, c, part)
        moments.append(replace(held, weights=frozen, activations=0.0, gradients=widened, transient=0.0))
    return max(moments, key=lambda h: h.total)


def _frozen_bytes(workload: Workload, c: Configuration, units: Iterable[int]) -> float:
    """What a device that runs these units holds of weights that no optimizer changes."""
    mine = list(units)
    held = [workload.units[i] for i in mine]
    copies = [t for t in workload.frozen_tied if t.units[0] not in mine and not set(mine).isdisjoint(t.units)]
    if c.zero == 3:
        return sum(u.frozen_stored_bytes for u in held) + sum(t.stored for t in copies)
    return sum(u.frozen_bytes for u in held) + sum(t.weights for t in copies)


def _widest(workload: Workload, units: Sequence[int]) -> int:
    """Elements of the largest weight in some units."""
    return max((workload.units[i].widest_weights for i in units), default=0)


def _kept_of_unit(workload: Workload, c: Configuration, i: int) -> float:
    """Bytes that unit i keeps on the device between its passes."""
    return _saved_of_unit(workload, c, i) * (1 - c.offload * workload.repeated[i])


def _working_of_unit(workload: Workload, c: Configuration, i: int) -> float:
    """Bytes that unit i holds beside what is kept while it runs.  At the end of the model losses are computed in single
    precision."""
    u = workload.units[i]
    loss = u.score_bytes / c.activation_bytes * LOSS_HELD_BYTES[c.loss]
    return max(_again(workload, c, i, _saved_of_unit(workload, c, i)) + u.over_bytes, loss)


def _working(workload: Workload, c: Configuration, part: Sequence[int]) -> float:
    """The most that passes through the units of a chunk hold beyond what all of it keeps: while a unit runs, what those
    behind it keep is not there yet, or not any more."""
    most = later = 0.0
    for i in reversed(part):
        most = max(most, _working_of_unit(workload, c, i) - later)
        later += _kept_of_unit(workload, c, i)
    return most


def made_bytes(c: Configuration) -> int:
    """Bytes of an element of a weight's gradient while it is added to the sum.

    It is made in the activations' width, and cast where the sum is wider; of one micro-batch in the width of the sum it
    is the gradient itself.  It counts at the fullest moment, whichever that is: so the peaks recorded of SimuMax's runs
    are predicted within 0.9 %, and without it 1.3 to 6.0 % too low.  Why it is there at that moment is not known.
    """
    if c.gradient_bytes != c.activation_bytes:
        return c.activation_bytes + c.gradient_bytes
    return c.activation_bytes if c.micro_batches > 1 else 0
