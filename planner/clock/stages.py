"""Cutting a workload into the chunks of a pipeline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar
from weakref import WeakKeyDictionary

from planner.clock.configuration import Configuration
from planner.errors import UsageError
from planner.trace import Workload

__all__ = [
    "alike_chunks",
    "alike_ranks",
    "chunks", "chunks_of", "counted_kinds", "counted_layers", "each_once", "in_chunk", "in_one_chunk", "kinds_of",
    "layers_of", "rank_of_last_chunk",
]  # fmt: skip

T = TypeVar("T")


def chunks(workload: Workload, count: int, layers: Sequence[int] | None = None) -> tuple[tuple[int, ...], ...]:
    """Units of each of `count` chunks, in order; `layers` says how many layers each has.

    Else layers are dealt evenly.  Where they do not divide, the first and the last chunk, which also hold what stands
    before and after them, get one fewer (Megatron-LM's accounting for embedding and loss), and the rest goes to the
    earliest of the others.

    Raises:
        UsageError: fewer layers than chunks; `layers` that do not add up to the model's.
    """
    units = range(len(workload.units))
    if count == 1:
        return (tuple(units),)
    blocks = layers_of(workload)
    if len(blocks) < count:
        raise UsageError(
            f"strategy: pp * virtual_stages = {count} chunks: the model has {len(blocks)} layers to cut between; "
            "use fewer stages"
        )
    if layers is not None and sum(layers) != len(blocks):
        raise UsageError(
            f"strategy: stage_layers={'-'.join(map(str, layers))}: expected {len(blocks)} layers in all, the model's, "
            f"found {sum(layers)}"
        )
    sizes = _sizes(len(blocks), count) if layers is None else list(layers)
    ends = []
    taken = 0
    for size in sizes[:-1]:
        taken += size
        ends.append(blocks[taken - 1] + 1)
    starts = [0, *ends]
    return tuple(tuple(range(a, b)) for a, b in zip(starts, [*ends, len(workload.units)], strict=True))


def chunks_of(c: Configuration, device: int) -> tuple[int, ...]:
    """Chunks of a pipeline rank: every pp-th one, or, in the V of `zb-v`, one on the way down and one on the way up."""
    if c.order == "zb-v":
        return device, 2 * c.pp - 1 - device
    return tuple(range(device, c.pp * c.virtual_stages, c.pp))


def rank_of_last_chunk(c: Configuration) -> int:
    """The pipeline rank of the last chunk: the first one where the V of `zb-v` comes back to it."""
    return 0 if c.order == "zb-v" else c.pp - 1


def in_chunk(workload: Workload, c: Configuration, part: Sequence[int], k: int) -> Configuration:
    """The configuration with what it says of chunk k, of these units, in place of what it says by chunk."""
    return _with_shares(
        workload, c, part, *(None if n is None else n[k] for n in (c.recompute_layers, c.offload_layers))
    )


def in_one_chunk(workload: Workload, c: Configuration) -> Configuration:
    """The same of all units together."""
    every = range(len(workload.units))
    counts = (None if n is None else sum(n) for n in (c.recompute_layers, c.offload_layers))
    return _with_shares(workload, c, every, *counts)


def _with_shares(
    workload: Workload, c: Configuration, part: Sequence[int], again: int | None, hosted: int | None
) -> Configuration:
    if again is None and hosted is None:
        return c
    blocks = sum(workload.repeated[i] for i in part)
    changes: dict[str, object] = {}
    if again is not None:
        changes |= {"recompute_layers": None, "recompute_blocks": again / blocks if blocks else 0.0}
    if hosted is not None:
        changes |= {"offload_layers": None, "offload": hosted / blocks if blocks else 0.0}
    for name, count in (("recompute_layers", again), ("offload_layers", hosted)):
        if count is not None and count > blocks:
            raise UsageError(f"strategy: {name}: expected at most the {blocks} blocks of a chunk, found {count}")
    return c.with_(**changes)


_KINDS: WeakKeyDictionary[Workload, list[int]] = WeakKeyDictionary()
_LAYERS: WeakKeyDictionary[Workload, list[int]] = WeakKeyDictionary()
_COUNTED: WeakKeyDictionary[Workload, dict[int, int]] = WeakKeyDictionary()
_COUNTED_LAYERS: WeakKeyDictionary[Workload, dict[int, int]] = WeakKeyDictionary()


def kinds_of(workload: Workload) -> list[int]:
    """A number for each unit, the same for units that do the same: in a long pipeline most ranks do."""
    if workload not in _KINDS:
        numbers: dict[tuple[int, bool], int] = {}
        pairs = zip(workload.units, workload.repeated, strict=True)
        _KINDS[workload] = [numbers.setdefault((id(unit), repeated), len(numbers)) for unit, repeated in pairs]
    return _KINDS[workload]


def counted_kinds(workload: Workload) -> dict[int, int]:
    """One unit of each kind, and how many there are of it."""
    if workload not in _COUNTED:
        _COUNTED[workload] = _counted(workload, range(len(workload.units)))
    return _COUNTED[workload]


def _counted(workload: Workload, units: Iterable[int]) -> dict[int, int]:
    """The first of each kind among these units, and how many there are of it."""
    kinds, first = kinds_of(workload), dict[int, int]()
    return dict(Counter(first.setdefault(kinds[u], u) for u in units))


def alike_chunks(workload: Workload, c: Configuration, chunks: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """What tells chunks apart: what they hold, and what of it runs again or waits in the host's memory."""
    kinds = kinds_of(workload)
    by_chunk = [n for n in (c.recompute_layers, c.offload_layers) if n is not None]
    return [(*(kinds[i] for i in part), *(-1 - n[k] for n in by_chunk)) for k, part in enumerate(chunks)]


def alike_ranks(workload: Workload, c: Configuration, chunks: Sequence[Sequence[int]]) -> list[Hashable]:
    """What tells pipeline ranks apart: their chunks, and the weights in them that other units read as well."""
    alike = alike_chunks(workload, c, chunks)
    ranks: list[Hashable] = []
    for device in range(c.pp):
        mine = chunks_of(c, device)
        several = (*workload.tied, *workload.frozen_tied)
        held = {i for k in mine for i in chunks[k]} if several else set()
        tied = tuple(n for n, t in enumerate(several) if not held.isdisjoint(t.units))
        ranks.append((tied, *(alike[k] for k in mine)))
    return ranks


def each_once(kinds: Sequence[Hashable], make: Callable[[int], T]) -> list[T]:
    """`make` of every place; where the kind is that of an earlier one, what was made there."""
    known: dict[Hashable, T] = {}
    for k, kind in enumerate(kinds):
        if kind not in known:
            known[kind] = make(k)
    return [known[kind] for kind in kinds]


def layers_of(workload: Workload) -> list[int]:
    """Units that count as layers: blocks, and what stands before the last block and computes about as much as one."""
    if workload not in _LAYERS:
        _LAYERS[workload] = _found_layers(workload)
    return _LAYERS[workload]


def counted_layers(workload: Workload) -> dict[int, int]:
    """One layer of each kind that does the same, and how many there are of it."""
    if workload not in _COUNTED_LAYERS:
        _COUNTED_LAYERS[workload] = _counted(workload, layers_of(workload))
    return _COUNTED_LAYERS[workload]


def _found_layers(workload: Workload) -> list[int]:
    blocks = [u for u, repeated in enumerate(workload.repeated) if repeated]
    if not blocks:
        return list(range(len(workload.units)))
    each = {id(unit): unit for unit in workload.units}  # blocks that do the same are one value
    known = {i: sum(k.flops * n for k, n in unit.forward.items()) for i, unit in each.items()}
    work = [known[id(unit)] for unit in workload.units]
    typical = sorted(work[u] for u in blocks)[len(blocks) // 2]
    return [u for u in range(blocks[-1] + 1) if workload.repeated[u] or work[u] > typical / 2]


def _sizes(blocks: int, count: int) -> list[int]:
    base, extra = divmod(blocks, count)
    if not extra:
        return [base] * count
    if (blocks + 2) % count == 0 and (blocks + 2) // count > 1:
        full = (blocks + 2) // count
        return [full - 1, *[full] * (count - 2), full - 1]
    sizes = [base] * count
    middle = [*range(1, count - 1), 0, count - 1]
    for i in middle[:extra]:
        sizes[i] += 1
    return sizes
