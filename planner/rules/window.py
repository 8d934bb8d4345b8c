"""Sliding windows over split space: which elements the windows of a shard read, and what of them its neighbours hold.

An operator with windows has two sides: elements (what windows read, or what a transposed convolution writes) and
positions (one per window).  Both are split together, as `(y u!)` elements and `(y v!)` positions for a common factor y:
n shards of y are n equal shards of either side.  What a shard reads beyond its own part is its halo.

How often y may be split depends on the halo, which must come from the direct neighbours and be less than all that
the others hold.  The size of y says so: it is a divisor d of both sides such that every divisor of d is a number of
shards with such a halo; among these the one with the largest power of two (devices come in such numbers), then the
largest.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Literal, Protocol

from planner.rules.rule import InnerCollective

__all__ = [
    "Range",
    "Reading",
    "Side",
    "Space",
    "Window",
    "needs",
    "received",
    "sent",
    "size",
    "transposed_windows",
    "windows",
]

Range = tuple[int, int]  # first, one after the last
Side = Literal["elements", "positions"]

_HALOS = 2  # dimensions offered with a halo: the volume's third one would add a role and little choice


class Reading(Protocol):
    """One dimension of an operator each position of which reads a range of elements; hashable.

    `tiles`: a shard's positions read its elements alone, by the very same local operator.
    """

    @property
    def elements(self) -> int: ...

    @property
    def positions(self) -> int: ...

    @property
    def tiles(self) -> bool: ...

    def read_by(self, positions: Range) -> Range:
        """The elements that these positions read; those outside the whole are padding."""

    def reading(self, elements: Range) -> Range:
        """The positions that read some of these elements."""

    def __hash__(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Window:
    """One dimension: the window at position p reads elements p·stride − begin + k·dilation, k < kernel.

    `begin` and `end` are the paddings.
    """

    elements: int
    positions: int
    kernel: int
    stride: int = 1
    dilation: int = 1
    begin: int = 0
    end: int = 0

    @property
    def span(self) -> int:
        """Elements from the first to the last that one window reads."""
        return (self.kernel - 1) * self.dilation + 1

    @property
    def tiles(self) -> bool:
        """Every window owns `stride` elements: space is split without a halo."""
        return (
            self.begin == self.end == 0 and self.elements == self.positions * self.stride and self.span <= self.stride
        )

    def read_by(self, positions: Range) -> Range:
        first, stop = positions
        return first * self.stride - self.begin, (stop - 1) * self.stride - self.begin + self.span

    def reading(self, elements: Range) -> Range:
        first, stop = elements
        before = -(-(first + self.begin - self.span + 1) // self.stride)
        after = (stop - 1 + self.begin) // self.stride + 1
        return max(before, 0), min(after, self.positions)


def _same_pads(mode: str, total: int) -> Range:
    """SAME_LOWER has the odd element at the beginning, everything else at the end."""
    total = max(total, 0)
    return (total - total // 2, total // 2) if mode == "SAME_LOWER" else (total // 2, total - total // 2)


def _stated(attributes: Mapping[str, Any], rank: int) -> tuple[str, Sequence[int], Sequence[int], Sequence[int]]:
    mode = attributes.get("auto_pad") or "NOTSET"
    pads = attributes.get("pads") or (0,) * (2 * rank)
    return (
        mode.decode() if isinstance(mode, bytes) else str(mode),
        (0,) * (2 * rank) if mode in ("VALID", b"VALID") else pads,
        attributes.get("strides") or (1,) * rank,
        attributes.get("dilations") or (1,) * rank,
    )


def windows(
    attributes: Mapping[str, Any], kernel: Sequence[int], elements: Sequence[int], positions: Sequence[int]
) -> tuple[Window, ...]:
    """The windows of a convolution or pool, per spatial dimension."""
    rank = len(kernel)
    mode, pads, strides, dilations = _stated(attributes, rank)
    found = []
    for d in range(rank):
        begin, end = pads[d], pads[d + rank]
        if mode.startswith("SAME"):
            total = (positions[d] - 1) * strides[d] + (kernel[d] - 1) * dilations[d] + 1 - elements[d]
            begin, end = _same_pads(mode, total)
        found.append(Window(elements[d], positions[d], kernel[d], strides[d], dilations[d], begin, end))
    return tuple(found)


def transposed_windows(
    attributes: Mapping[str, Any], kernel: Sequence[int], positions: Sequence[int], elements: Sequence[int]
) -> tuple[Window, ...]:
    """The windows of a transposed convolution: its operand has the positions, its result the elements."""
    rank = len(kernel)
    mode, pads, strides, dilations = _stated(attributes, rank)
    extra = attributes.get("output_padding") or (0,) * rank
    found = []
    for d in range(rank):
        begin, end = pads[d], pads[d + rank]
        if mode.startswith("SAME") or attributes.get("output_shape"):
            total = (positions[d] - 1) * strides[d] + (kernel[d] - 1) * dilations[d] + 1 + extra[d] - elements[d]
            begin, end = _same_pads("SAME_UPPER" if mode == "SAME_UPPER" else "SAME_LOWER", total)
        found.append(Window(elements[d], positions[d], kernel[d], strides[d], dilations[d], begin, end))
    return tuple(found)


def size(reading: Reading, side: Side) -> int:
    return reading.elements if side == "elements" else reading.positions


@lru_cache(maxsize=4096)
def needs(reading: Reading, shards: int, side: Side) -> tuple[Range, ...]:
    """Per shard the elements that its windows read, padding left out, or the positions that read its elements."""
    if side == "elements":
        own = reading.positions // shards
        read = (reading.read_by((j * own, (j + 1) * own)) for j in range(shards))
        return tuple((max(first, 0), min(stop, reading.elements)) for first, stop in read)
    own = reading.elements // shards
    return tuple(reading.reading((j * own, (j + 1) * own)) for j in range(shards))


def received(reading: Reading, side: Side, shards: int) -> int:
    """The largest halo of a shard."""
    own = size(reading, side) // shards
    return max(_beyond(r, (j * own, (j + 1) * own)) for j, r in enumerate(needs(reading, shards, side)))


def sent(reading: Reading, side: Side, shards: int) -> int:
    """The most that a shard gives to its neighbours' halos."""
    own = size(reading, side) // shards
    wanted = needs(reading, shards, side)
    return max(
        sum(_common(wanted[i], (j * own, (j + 1) * own)) for i in (j - 1, j + 1) if 0 <= i < shards)
        for j in range(shards)
    )


def _common(a: Range, b: Range) -> int:
    return max(min(a[1], b[1]) - max(a[0], b[0]), 0)


def _beyond(a: Range, own: Range) -> int:
    return a[1] - a[0] - _common(a, own)


def _neighbourly(reading: Reading, shards: int, side: Side) -> bool:
    """No shard is without work, none needs more than its neighbours hold, nor as much as all others hold."""
    whole = size(reading, side)
    own = whole // shards
    return all(
        first < stop
        and first >= (j - 1) * own
        and stop <= (j + 2) * own
        and _beyond((first, stop), (j * own, (j + 1) * own)) < whole - own
        for j, (first, stop) in enumerate(needs(reading, shards, side))
    )


@lru_cache(maxsize=4096)
def _parts(reading: Reading) -> int:
    """The size of y: see the module."""
    common = max(math.gcd(reading.elements, reading.positions), 1)
    if reading.tiles:
        return common
    divisors = [n for n in range(1, common + 1) if common % n == 0]
    sides: tuple[Side, Side] = ("elements", "positions")
    fine = {n for n in divisors if n == 1 or all(_neighbourly(reading, n, side) for side in sides)}
    return max((d for d in divisors if all(n in fine for n in divisors if d % n == 0)), key=lambda d: (d & -d, d))


@dataclass(frozen=True, slots=True)
class Space:
    """The spatial dimensions of an operator; `parts[d]` is the size of factor y{d}."""

    windows: tuple[Reading, ...]
    parts: tuple[int, ...]

    @classmethod
    def of(cls, windows: Iterable[Reading]) -> Space:
        found = tuple(windows)
        parts, halos = [], 0
        for w in found:
            n = _parts(w)
            halos += n > 1 and not w.tiles
            parts.append(n if w.tiles or halos <= _HALOS else 1)
        return cls(found, tuple(parts))

    @property
    def elements(self) -> str:
        """Notation of the dimensions that windows read."""
        return " ".join(f"(y{d} u{d}!)" for d in range(len(self.windows)))

    @property
    def positions(self) -> str:
        """Notation of the dimensions that count windows."""
        return " ".join(f"(y{d} v{d}!)" for d in range(len(self.windows)))

    @property
    def sizes(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for d, (w, n) in enumerate(zip(self.windows, self.parts, strict=True)):
            found |= {f"y{d}": n, f"u{d}": w.elements // n, f"v{d}": w.positions // n}
        return found

    @property
    def factors(self) -> tuple[str, ...]:
        """The factors that may be split."""
        return tuple(f"y{d}" for d, n in enumerate(self.parts) if n > 1)

    @property
    def aware(self) -> tuple[str, ...]:
        """Those whose split needs a halo."""
        return tuple(f"y{d}" for d in self._with_halo)

    @property
    def _with_halo(self) -> tuple[int, ...]:
        return tuple(d for d, n in enumerate(self.parts) if n > 1 and not self.windows[d].tiles)

    def halo(
        self, side: Side, rest: Sequence[str], item_bytes: int, *, back: bool = False, backward: bool = False
    ) -> tuple[InnerCollective, ...]:
        """Fetching the halo of a tensor whose further dimensions are `rest`; `back`: giving its gradient back.

        Dimensions are fetched one after the other, so that corners travel twice where both are split.
        """
        inner = "u" if side == "elements" else "v"
        traffic = received if back else sent
        found: list[InnerCollective] = []
        for at, d in enumerate(self._with_halo):
            others = [f for e in range(len(self.windows)) if e != d for f in (f"y{e}", f"{inner}{e}")]
            extent = partial(traffic, self.windows[d], side)
            dims = (*rest, *others)
            found.append(InnerCollective(f"y{d}", "permute", dims, item_bytes, backward, extent=extent))
            for e in self._with_halo[:at]:
                grown = partial(received, self.windows[e], side)
                dims = (*rest, *(f for f in others if f not in (f"y{e}", f"{inner}{e}")))
                corner = f"y{e}", grown
                found.append(
                    InnerCollective(f"y{d}", "permute", dims, item_bytes, backward, extent=extent, corner=corner)
                )
        return tuple(found)
