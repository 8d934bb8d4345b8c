"""Streams of one device: one that computes, others that communicate beside it, each in its own order.

A piece of a stream begins when the piece before it in the stream has ended and all that it needs is there.  While any
stream communicates, computing takes `contention` times as long; communication is not slowed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["COMPUTE", "Piece", "run"]

COMPUTE = 0


@dataclass(slots=True)
class Piece:
    """`stream`: `COMPUTE`, or the number of one that communicates; what takes no time needs none (-1).

    `needs` are the numbers of pieces that must have ended; `after` those that it waits for as well, unless everything
    else waits for it.
    """

    stream: int
    duration: float
    needs: Sequence[int] = ()
    after: int = -1


def run(pieces: Sequence[Piece], contention: float = 1.0) -> tuple[list[float], list[float]]:
    """Begin and end of every piece, from 0 on.

    ValueError: pieces that wait for each other, or a contention below 1.
    """
    if not contention >= 1:
        raise ValueError(f"contention: expected a factor of at least 1, found {contention}")
    return _Run(pieces, contention).run()


class _Run:
    def __init__(self, pieces: Sequence[Piece], contention: float) -> None:
        self.pieces, self.contention = pieces, contention
        count = len(pieces)
        self.begins, self.ends = [math.nan] * count, [math.nan] * count
        self.waiting = [len(set(p.needs)) for p in pieces]
        self.dependents: list[list[int]] = [[] for _ in pieces]
        streams = max((p.stream for p in pieces), default=COMPUTE) + 1
        self.queue: list[list[int]] = [[] for _ in range(streams)]
        for number, piece in enumerate(pieces):
            for needed in set(piece.needs):
                self.dependents[needed].append(number)
            if piece.stream >= 0:
                self.queue[piece.stream].append(number)
        self.head = [0] * streams
        self.running: list[int] = [-1] * streams  # piece by stream
        self.left = [0.0] * streams
        self.now = 0.0

    def run(self) -> tuple[list[float], list[float]]:
        for number, piece in enumerate(self.pieces):
            if piece.stream < 0 and not self.waiting[number] and math.isnan(self.ends[number]):
                self._instant(number)
        while self._start():
            self._advance()
        missing = next((n for n, end in enumerate(self.ends) if math.isnan(end)), None)
        if missing is not None:
            raise ValueError(f"streams: piece {missing} waits for one that waits for it")
        return self.begins, self.ends

    def _start(self) -> bool:
        """Starts what can be; whether anything runs."""
        blocked = -1
        for stream, queue in enumerate(self.queue):
            if self.running[stream] >= 0 or self.head[stream] == len(queue):
                continue
            number = queue[self.head[stream]]
            if self.waiting[number]:
                continue
            after = self.pieces[number].after
            if after >= 0 and math.isnan(self.ends[after]):
                blocked = stream
                continue
            self._begin(stream)
        if blocked >= 0 and all(n < 0 for n in self.running):
            self._begin(blocked)
        return any(n >= 0 for n in self.running)

    def _begin(self, stream: int) -> None:
        number = self.queue[stream][self.head[stream]]
        self.head[stream] += 1
        self.running[stream] = number
        self.left[stream] = self.pieces[number].duration
        self.begins[number] = self.now

    def _advance(self) -> None:
        """To the next end."""
        others = any(n >= 0 for n in self.running[1:])
        slowed = self.contention if others and self.running[COMPUTE] >= 0 else 1.0
        least, first = math.inf, -1
        for stream, number in enumerate(self.running):
            if number >= 0:
                left = self.left[stream] * (slowed if stream == COMPUTE else 1.0)
                if left < least:
                    least, first = left, stream
        self.now += least
        for stream, number in enumerate(self.running):
            if number >= 0 and stream != first:
                passed = least / slowed if stream == COMPUTE else least
                self.left[stream] = max(0.0, self.left[stream] - passed)
        number, self.running[first] = self.running[first], -1
        self._end(number)

    def _end(self, number: int) -> None:
        self.ends[number] = self.now
        pending = list(self.dependents[number])
        while pending:
            other = pending.pop()
            self.waiting[other] -= 1
            if not self.waiting[other] and self.pieces[other].stream < 0:
                self.begins[other] = self.ends[other] = self.now
                pending += self.dependents[other]

    def _instant(self, number: int) -> None:
        self.begins[number] = self.now
        self._end(number)
