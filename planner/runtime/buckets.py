"""Parameters and their gradients that are communicated together: a collective for megabytes, not one for each tensor.

What a step, or a pass under ZeRO 2 and 3, does with parameters, gathering them before they are read and bringing their
gradients to where they are stored, is for most of them the same sequence of collectives over the same axes.
Neighbours of one type go together, up to so many bytes, as DistributedDataParallel's buckets do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from planner.lowering import Redistribute, Run
from planner.lowering.program import StageInstruction
from planner.runtime.collectives import TOGETHER

__all__ = ["BUCKET_BYTES", "buckets"]

BUCKET_BYTES = 25 << 20  # DistributedDataParallel's own


def buckets(
    instructions: Sequence[StageInstruction],
    size_of: Callable[[Redistribute], int],
    type_of: Callable[[Redistribute], torch.dtype],
) -> dict[int, list[int]]:
    """Number of an instruction → those that are carried out in its place, itself the last; others go alone.

    `size_of`: bytes of the tensor of a redistribution, 0 of one that goes alone.  A bucket ends before what reads a
    tensor that it makes; what operators read is whatever was gathered before them.
    """
    found: list[list[int]] = []
    last: dict[tuple[Any, ...], tuple[list[int], int]] = {}  # kind → the one that is being filled, its bytes
    made: dict[tuple[str, object, bool], tuple[Any, ...]] = {}
    for n, i in enumerate(instructions):
        if isinstance(i, Run):
            last = {kind: bucket for kind, bucket in last.items() if kind[0]}  # gradients of weights are not read
        if not isinstance(i, Redistribute) or not i.steps or not size_of(i):
            continue
        last.pop(made.get((i.tensor, i.source, i.gradient), ()), None)
        if not all(s.kind in TOGETHER and not s.in_parts and not _extreme(s) for s in i.steps):
            continue
        kind = i.gradient, type_of(i), tuple((s.kind, s.axes) for s in i.steps)
        members, held = last.get(kind, ([], 0))
        size = size_of(i)
        if not members or held + size > BUCKET_BYTES:
            members, held = [], 0
            found.append(members)
        members.append(n)
        last[kind] = members, held + size
        made[i.tensor, i.target, i.gradient] = kind
    return {members[-1]: members for members in found if len(members) > 1}


def _extreme(step: object) -> bool:
    """Whether it reduces by something else than a sum."""
    source = getattr(step, "source", None)
    return source is not None and any(str(op) != "sum" for _, op in source.partial)
