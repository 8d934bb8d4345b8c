"""Figures that add up as they are printed: rounded together, by largest remainders."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

__all__ = ["Scale", "columns", "rounded", "scale"]

_UNITS: Final = (("s", 12), ("ms", 9), ("us", 6), ("ns", 3), ("ps", 0))
_SIGNIFICANT: Final = 4  # of the largest figure
_OF_DIFFERENCE: Final = 2


@dataclass(frozen=True, slots=True)
class Scale:
    """A unit of time of 10^`power` picoseconds, and so many decimals of it."""

    unit: str
    power: int
    decimals: int

    @property
    def quantum(self) -> int:
        """Picoseconds of the last digit printed."""
        return 10 ** (self.power - self.decimals)

    def text(self, quanta: int, *, sign: bool = False) -> str:
        shown = f"{Fraction(quanta, 10**self.decimals).__float__():.{self.decimals}f}"
        return f"+{shown}" if sign and quanta > 0 else shown


def scale(largest: int, difference: int = 0) -> Scale:
    """For figures of up to `largest` picoseconds, such that a `difference` of theirs shows."""
    unit, power = next(((u, p) for u, p in _UNITS if abs(largest) >= 10**p), _UNITS[-1])
    whole = len(str(abs(largest) // 10**power))
    decimals = max(0, _SIGNIFICANT - whole)
    if difference:
        decimals = max(decimals, _OF_DIFFERENCE - 1 - math.floor(math.log10(abs(difference)) - power))
    return Scale(unit, power, min(decimals, power))


def rounded(values: Sequence[int | Fraction], quantum: int) -> list[int]:
    """In quanta.  Their sum is that of the values, rounded."""
    exact = [Fraction(v) / quantum for v in values]
    down = [math.floor(x) for x in exact]
    missing = round(sum(exact, Fraction())) - sum(down)
    order = sorted(range(len(exact)), key=lambda i: down[i] - exact[i])
    for i in order[:missing]:
        down[i] += 1
    return down


def columns(values: Sequence[Sequence[int]], quantum: int) -> list[list[int]]:
    """Columns of a table in quanta, each of which adds up to its sum, rounded.

    What is equal in two columns is printed alike in both: what rounding leaves goes to the largest figure that no other
    column shares, if it is a quantum or more, else to the largest of all.
    """
    out = []
    for column in values:
        counts = [rounded([x], quantum)[0] for x in column]
        left = rounded([sum(column)], quantum)[0] - sum(counts)
        shared = {i for i, x in enumerate(column) if sum(other[i] == x for other in values) > 1}
        if left:
            own = [i for i, x in enumerate(column) if i not in shared and x >= quantum and counts[i] + left >= 0]
            own = own or list(range(len(column)))
            largest = max(own, key=lambda i: column[i])
            if counts[largest] + left < 0 <= column[largest]:  # many small figures
                counts = rounded(column, quantum)
            else:
                counts[largest] += left
        out.append(counts)
    return out
