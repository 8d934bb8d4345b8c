"""Which dimensions of a Reshape's result carry the dimensions that changed."""

from __future__ import annotations

import math
from collections.abc import Sequence

from planner.frontends.resized.carry import Factors

__all__ = ["reshaped"]


def reshaped(parts: Sequence[Factors], old_out: Sequence[int]) -> tuple[Factors, ...] | None:
    """Factors of each dimension of the result, from those of the operand and the result's old sizes.

    Factors are laid out in row-major order over the result's old dimensions.  One that straddles a boundary
    is cut there; if it changed, the change goes to its outermost piece.  Those that no dimension of the result is made
    of, as where relative positions are shifted (31 × 16 → 16 × 31), may not have changed.  None where there is no such
    result.
    """
    queue = [f for part in parts for f in part if f != (1, 1)]
    if math.prod(o for o, _ in queue) != math.prod(old_out):
        return None
    out: list[Factors] = []
    for j, size in enumerate(old_out):
        if j < len(out):  # one of several that were found together
            continue
        together = _mixed(queue, old_out[j:])
        if together:
            out.extend(((n, n),) for n in together)
            continue
        rest = size
        mine: list[tuple[int, int]] = []
        while queue:
            old, new = queue[0]
            if old == 1:  # a dimension of one that grew: it belongs to the first place it can stand, alone if it can
                if rest == 1 and mine and list(old_out[j + 1 : j + 2]) == [1]:
                    break
                mine.append(queue.pop(0))
                if rest == 1:
                    break
            elif rest == 1:
                break
            elif rest % old == 0:
                mine.append(queue.pop(0))
                rest //= old
            elif old % rest == 0:
                inner = old // rest
                if old == new:
                    queue[0] = (inner, inner)
                    mine.append((rest, rest))
                elif new % inner == 0:
                    queue[0] = (inner, inner)
                    mine.append((rest, new // inner))
                elif new % rest == 0 and rest <= new:
                    queue[0] = (inner, new // rest)
                    mine.append((rest, rest))
                else:
                    return None
                rest = 1
            else:
                return None
        if rest != 1:
            return None
        if j == len(old_out) - 1:
            mine.extend(queue)
            queue = []
        out.append(tuple(mine) or ((1, 1),))
    return None if queue else tuple(out)


def _mixed(queue: list[tuple[int, int]], sizes: Sequence[int]) -> Sequence[int]:
    """The sizes that come first, where as many elements as theirs are unchanged factors of which none is one of them;
    takes these factors away.  Nothing where the first size and the first factor lie within each other."""
    if not queue or queue[0][0] == 1 or queue[0][0] % sizes[0] == 0 or sizes[0] % queue[0][0] == 0:
        return ()
    elements, taken = queue[0][0], 1
    product, count = sizes[0], 1
    while elements != product:
        if elements < product and taken < len(queue):
            elements *= queue[taken][0]
            taken += 1
        elif elements > product and count < len(sizes):
            product *= sizes[count]
            count += 1
        else:
            return ()
    if any(old != new for old, new in queue[:taken]):
        return ()
    del queue[:taken]
    return sizes[:count]
