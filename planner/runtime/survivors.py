"""Processes that outlive each other: where some end, the others give up what they wait for and can be called again.

They meet through a store that this process holds, so that they can meet again, as often as is necessary.  A process
that does not come back from a call that another one's end has broken off is ended as well: nobody waits for ever.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any, ClassVar

import torch.distributed as dist
from torch.distributed.distributed_c10d import _set_pg_timeout, _world

from planner.runtime.breaking import Breaker
from planner.runtime.quiet import Meter
from planner.runtime.workers import TIMEOUT, Context, WorkerError, Workers, answer, prepared, signal_text

__all__ = ["RanksLost", "Survivors", "lost_text"]

_HERE = "127.0.0.1"
_MEETING = timedelta(seconds=30)  # a peer that ends between its word and its connection is waited for so long
_MEETINGS = 3  # that are tried
_SEEN_S = 2.0  # in which a process whose peers failed is seen to have ended
_PATIENCE_S = 60.0  # for a process to come back from what was broken off, or three times its longest call


def lost_text(lost: Mapping[int, str], count: int) -> str:
    """Which ranks of so many have ended, and how."""
    by: dict[str, list[int]] = {}
    for rank, how in sorted(lost.items()):
        by.setdefault(how, []).append(rank)
    listed = [
        (f"ranks {', '.join(map(str, ranks))}", "were", how) if len(ranks) > 1 else (f"rank {ranks[0]}", "was", how)
        for how, ranks in by.items()
    ]
    return "; ".join(f"{who} of {count} {was} {how}" for who, was, how in listed)


class RanksLost(WorkerError):
    """Ranks have ended; the others have come back."""


class Survivors(Workers):
    """`Workers` of which some may end: a call then raises `RanksLost`, and `alive` ranks can be called one by one, to
    meet again and to take other ranks.

    `lost`: ranks that have ended, and how; `numbers`: of each rank the one that its process had at the start.
    """

    # What a store that is broken off says of it, with a trace of C++, is no news.
    environment: ClassVar = {"TORCH_CPP_LOG_LEVEL": "ERROR"}

    def __init__(self, count: int, *, device: str = "cpu", threads: int = 1) -> None:
        super().__init__(count, device=device, threads=threads)
        self.lost: dict[int, str] = {}
        self.numbers = list(range(count))
        self._breakers: list[Connection] = []
        self._meetings = 0
        self._longest, self._started = 0.0, False
        self._meeting_place = dist.TCPStore(_HERE, 0, is_master=True, wait_for_workers=False, timeout=TIMEOUT)

    @property
    def alive(self) -> list[int]:
        return [r for r in range(self.count) if r not in self.lost]

    def _served(self, rank: int, pipe: Connection) -> tuple[Callable[..., None], tuple[Any, ...]]:
        here, there = get_context("spawn").Pipe()
        self._breakers.append(here)
        port = self._meeting_place.port
        return _serve, (rank, self.count, self.device, self.threads, port, pipe, there)

    def __exit__(self, *problem: object) -> None:
        super().__exit__(*problem)
        for process in self._processes:
            process.join(timeout=_SEEN_S)
        for pipe in self._breakers:
            pipe.close()

    def call(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """As `Workers.call`.  RanksLost where ranks have ended, once the others have come back."""
        return list(self.each(function, dict.fromkeys(range(self.count), arguments)).values())

    def each(self, function: Callable[..., Any], arguments: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
        """`function(context, *arguments[rank])` on each of some ranks; what each returned.

        Raises:
            RanksLost: ranks have ended, and all others have come back.
            WorkerError: a rank failed by itself; all are ended.
        """
        meter, begin, computed = Meter(), time.perf_counter(), 0.0
        for rank in arguments:
            try:
                self._pipes[rank].send((function, arguments[rank]))
            except OSError:
                self._ended(rank)
        results: dict[int, Any] = dict.fromkeys(arguments)
        waiting = set(arguments) - self.lost.keys()
        while waiting and not self.lost.keys() & arguments.keys():
            for rank in self._ready(waiting):
                waiting.discard(rank)
                reply = self._reply(rank)
                if reply is None:
                    continue
                ok, results[rank], seconds = reply
                computed += seconds
                if not ok and not self._any_ended(arguments):
                    for process in self._processes:
                        process.kill()
                    raise WorkerError(f"rank {rank} of {self.count} failed in {function.__name__}: {results[rank]}")
        if self.lost.keys() & arguments.keys():
            self._break_off(waiting)
            raise RanksLost(self.said())
        if self._started:  # the first call waits for processes to start
            self._longest = max(self._longest, time.perf_counter() - begin)
        self._started = True
        self.disturbance = meter.disturbance(computed)
        return results

    def meet(self, ranks: Sequence[int]) -> None:
        """Puts some ranks into a process group, in this order; they are still called by the ranks that they have."""
        why = None
        for _ in range(_MEETINGS):
            self._meetings += 1
            port, number = self._meeting_place.port, self._meetings
            found = self.each(_meet, {rank: (port, number, place, len(ranks)) for place, rank in enumerate(ranks)})
            why = next((text for text in found.values() if text), None)
            if why is None:
                return
        raise WorkerError(f"the processes that are left did not meet {_MEETINGS} times: {why}")

    def keep(self, ranks: Sequence[int]) -> None:
        """Gives ranks the places that they have met in, and ends all other processes."""
        for rank in set(range(self.count)) - set(ranks):
            self._processes[rank].kill()
            self._processes[rank].join(timeout=_SEEN_S)
            self._pipes[rank].close()
            self._breakers[rank].close()
        self._processes = [self._processes[r] for r in ranks]
        self._pipes = [self._pipes[r] for r in ranks]
        self._breakers = [self._breakers[r] for r in ranks]
        self.numbers = [self.numbers[r] for r in ranks]
        self.count = len(ranks)
        self.lost = {ranks.index(r): how for r, how in self.lost.items() if r in ranks}

    def said(self) -> str:
        """Which ranks have ended, and how, in words."""
        return lost_text(self.lost, self.count)

    # What has ended

    def _ready(self, waiting: set[int], timeout: float | None = None) -> list[int]:
        found = wait([self._pipes[r] for r in waiting], timeout=timeout)
        return [r for r in sorted(waiting) if self._pipes[r] in found]

    def _reply(self, rank: int) -> tuple[bool, Any, float] | None:
        """None from one that has ended."""
        try:
            found: tuple[bool, Any, float] = self._pipes[rank].recv()
            return found
        except (EOFError, OSError):
            self._ended(rank)
            return None

    def _any_ended(self, among: Collection[int]) -> bool:
        """Whether one of some ranks has ended, or is about to: what a rank fails with may be known before."""
        there = {self._processes[r].sentinel: r for r in among if r not in self.lost}
        for sentinel in wait(list(there), timeout=_SEEN_S):
            self._ended(there[sentinel])
        return not self.lost.keys().isdisjoint(among)

    def _ended(self, rank: int, how: str | None = None) -> None:
        process = self._processes[rank]
        process.join(timeout=_SEEN_S)
        process.kill()
        process.join(timeout=_SEEN_S)
        code = process.exitcode
        ended = f"ended by {signal_text(-code)}" if code is not None and code < 0 else f"ended with the status {code}"
        self.lost.setdefault(rank, how or ended)

    def _break_off(self, waiting: set[int]) -> None:
        """Has all others give up what they wait for; those of `waiting` have not come back yet."""
        patience = max(_PATIENCE_S, 3 * self._longest)
        until = time.monotonic() + patience
        for rank in self.alive:
            try:
                self._breakers[rank].send("break off")
            except OSError:
                self._ended(rank)
        missing = waiting - self.lost.keys()
        while missing and (left := until - time.monotonic()) > 0:
            for rank in self._ready(missing, left):
                missing.discard(rank)
                self._reply(rank)
        for rank in missing:
            self._processes[rank].kill()
            self._ended(rank, f"ended, since it did not come back in {patience:.0f} s")
        for rank in self.alive:
            try:
                if self._breakers[rank].poll(_PATIENCE_S):
                    self._breakers[rank].recv()
                    continue
                self._processes[rank].kill()
                self._ended(rank, f"ended, since it did not answer in {_PATIENCE_S:.0f} s")
            except (EOFError, OSError):
                self._ended(rank)


# On the ranks


def _serve(
    rank: int, world: int, device: str, threads: int, port: int, pipe: Connection, breaking: Connection
) -> None:  # fmt: skip
    breaker = Breaker(breaking)
    context = Context(rank, world, prepared(rank, device, threads))
    _join(context, port, 0, TIMEOUT)
    answer(context, pipe, breaker.busy)


def _meet(context: Context, port: int, number: int, rank: int, world: int) -> str | None:
    """Leaves the process groups there are, and joins one of all that meet under this number; why it did not."""
    if dist.is_initialized():
        dist.destroy_process_group()
    # Groups are named by a count, which one that did not come about has moved on: ranks would meet under other names.
    _world.group_count = 0
    context.moved(rank, world)
    try:
        _join(context, port, number, _MEETING)
    except (RuntimeError, ValueError) as error:
        return next(iter(str(error).splitlines()), type(error).__name__)
    _set_pg_timeout(TIMEOUT)
    return None


def _join(context: Context, port: int, number: int, patience: timedelta) -> None:
    store = dist.PrefixStore(f"meeting {number}", dist.TCPStore(_HERE, port, is_master=False, timeout=patience))
    dist.init_process_group("gloo", store=store, rank=context.rank, world_size=context.world, timeout=patience)
