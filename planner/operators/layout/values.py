"""What operators that move elements ask of their values: what is asked of the result."""

from __future__ import annotations

import dataclasses
from itertools import accumulate

from planner.verify.uses import Reading, Uses, hands_on, reads

__all__: list[str] = []

hands_on("Expand", "Flatten", "Pad", "Reshape", "Squeeze", "Tile", "Trilu", "Unsqueeze")


@reads("Slice", "Split")
def _part(r: Reading) -> Uses:
    return {0: r.moved(rows=False)}


@reads("Transpose")
def _transpose(r: Reading) -> Uses:
    perm = r.op.attributes.get("perm") or tuple(reversed(range(len(r.result_shape))))
    return {0: r.moved(rows=False, terms=tuple(perm[d] for d in r.result.terms))}


@reads("Concat")
def _concat(r: Reading) -> Uses:
    """Components of the last dimension go to the operands that they come from."""
    use = dataclasses.replace(r.result, terms=())
    operands = range(len(r.op.inputs))
    last = use.below is not None and r.result_shape[-1:] == (len(use.below),)
    if use.below is None or not last or r.attr("axis", 0) not in (-1, len(r.result_shape) - 1):
        return dict.fromkeys(operands, use)
    ends = list(accumulate(((r.shape(i) or (1,))[-1] for i in operands), initial=0))
    return {i: dataclasses.replace(use, below=use.below[ends[i] : ends[i + 1]]) for i in operands}
