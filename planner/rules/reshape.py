"""Reshapes as composite factors.

A reshape keeps the row-major order of elements.  Where a prefix product of the operand's shape equals
one of the result's, everything before it and after it is reshaped on its own.  Inside such a group the
dimensions are refined to a common chain of divisors of the group's size; each dimension is then a
composite of consecutive factors.  (6, 4) -> (4, 6) has no such chain, but a leading factor of
gcd(6, 4) = 2 still cuts both into halves of the same elements.
"""

from __future__ import annotations

import math

from planner.rules.notation import Shape

__all__ = ["reshape_text"]


def reshape_text(source: Shape, target: Shape) -> tuple[str, str, dict[str, int]]:
    """Notation of operand and result, and the sizes of the factors.

    Of tensors without elements only the dimensions that lead both, equal, are split.
    """
    if 0 in source or 0 in target:
        pairs = enumerate(zip(source, target, strict=False))
        same = next((i for i, (a, b) in pairs if a != b or a == 0), min(len(source), len(target)))
        lead = [f"r{i}" for i in range(same)]
        texts = (" ".join([*lead, *["*..."] * (len(shape) > same)]) for shape in (source, target))
        return next(texts), next(texts), dict(zip(lead, source, strict=False))
    sizes: dict[str, int] = {}
    left: list[list[str]] = [[] for _ in source]
    right: list[list[str]] = [[] for _ in target]
    i = j = 0
    while i < len(source) or j < len(target):
        # The smallest group of dimensions on either side with equal products; ones join no factor.
        i0, j0 = i, j
        a = source[i] if i < len(source) else 1
        b = target[j] if j < len(target) else 1
        i, j = min(i + 1, len(source)), min(j + 1, len(target))
        while a != b:
            if a < b:
                a, i = a * source[i], i + 1
            else:
                b, j = b * target[j], j + 1
        _group(source[i0:i], target[j0:j], left[i0:i], right[j0:j], sizes)
    return _text(left, sizes), _text(right, sizes), {f.rstrip("!"): n for f, n in sizes.items()}


def _text(dims: list[list[str]], sizes: dict[str, int]) -> str:
    return " ".join("1" if not d else d[0] if len(d) == 1 else f"({' '.join(d)})" for d in dims)


def _group(source: Shape, target: Shape, left: list[list[str]], right: list[list[str]], sizes: dict[str, int]) -> None:
    """Fill in the factors of one group, whose two sides have the same product."""
    rest_left, rest_right = list(source), list(target)
    i = j = 0
    while i < len(rest_left) and j < len(rest_right):
        a, b = rest_left[i], rest_right[j]
        if a == 1:
            i += 1
        elif b == 1:
            j += 1
        elif a % b == 0 or b % a == 0:
            common = min(a, b)
            name = _fresh(sizes, common)
            left[i].append(name)
            right[j].append(name)
            rest_left[i] //= common
            rest_right[j] //= common
        else:
            _uneven(rest_left[i:], rest_right[j:], left[i:], right[j:], sizes)
            return


def _uneven(
    source: list[int], target: list[int], left: list[list[str]], right: list[list[str]], sizes: dict[str, int]
) -> None:
    """Neither leading dimension divides the other: their common divisor leads, all that follows stays whole."""
    common = math.gcd(source[0], target[0])
    if common > 1:
        name = _fresh(sizes, common)
        left[0].append(name)
        right[0].append(name)
    for side, dims in ((source, left), (target, right)):
        for k, size in enumerate(side):
            remaining = size // common if k == 0 else size
            if remaining > 1:
                dims[k].append(_fresh(sizes, remaining) + "!")


def _fresh(sizes: dict[str, int], size: int) -> str:
    name = f"r{len(sizes)}"
    sizes[name] = size
    return name
