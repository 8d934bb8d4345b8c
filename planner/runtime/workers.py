"""Processes of one process group that carry out the same calls in step.

A call is a function of this package's modules (found by its import path, so that it can be sent) whose first argument
is the rank's `Context`.  Threads and the allocator are set through the environment, which the C runtime reads when a
process starts.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import torch
import torch.distributed as dist

from planner.errors import PlannerError
from planner.ir import DeviceMesh
from planner.runtime import groups
from planner.runtime.groups import TIMEOUT
from planner.runtime.quiet import Meter

__all__ = [
    "TIMEOUT", "Context", "Ledger", "WorkerError", "Workers", "answer", "device_of", "join_group", "prepared",
    "signal_text",
]  # fmt: skip

# Freed memory stays with the process, as device allocators keep it: without this every large tensor of a step is mapped
# and cleared anew by the kernel, with a page fault for each 4 KiB.
_ALLOCATOR = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "MALLOC_TOP_PAD_": str(1 << 26),
    "MALLOC_ARENA_MAX": "1",
}
_GRACE_S = 1.0  # in which a process that was ended is seen to have ended
_RESERVE_BYTES = 1 << 30  # touched and freed at the start, so that the first steps do not pay for it;
_RESERVE_SHARE = 16  # of what is free, at most, since other processes do the same


class WorkerError(PlannerError):
    """A rank failed; the message holds its traceback."""


@dataclass(slots=True)
class Ledger:
    """Collectives that were carried out, by kind: how many, and the bytes of the tensors they worked on, in the
    convention of `RedistributionStep.group_bytes`.  Those of steps between operators stand apart from those inside
    operators."""

    steps: dict[str, tuple[int, int]] = field(default_factory=dict)
    inside: dict[str, tuple[int, int]] = field(default_factory=dict)

    def clear(self) -> None:
        self.steps.clear()
        self.inside.clear()

    @staticmethod
    def add(table: dict[str, tuple[int, int]], kind: str, size: int) -> None:
        count, total = table.get(kind, (0, 0))
        table[kind] = (count + 1, total + size)


@dataclass
class Context:
    """Where a rank stands: its number, its device, and what it has communicated.

    `state` is for what calls leave behind for later ones; `base` is the first rank of the pipeline stage.  `draw`: a
    whole number that random operators draw for, beside the places of elements; where it is None they draw what the
    kernels that prove plans draw.
    """

    rank: int
    world: int
    device: torch.device
    state: dict[str, Any] = field(default_factory=dict)
    ledger: Ledger = field(default_factory=Ledger)
    base: int = 0
    draw: torch.Tensor | None = None

    def enter(self, mesh: DeviceMesh) -> int:
        """Makes the process a rank of the pipeline stage whose mesh this is; the number of the stage."""
        stage = self.rank // mesh.devices
        self.base = stage * mesh.devices
        return stage

    @property
    def place(self) -> int:
        """The rank within the mesh of its stage."""
        return self.rank - self.base

    def group(self, mesh: DeviceMesh, axes: tuple[str, ...]) -> tuple[Any, tuple[int, ...]]:
        """The process group over `axes` that this rank belongs to, and its ranks in the order of their shards."""
        mine = next(ranks for ranks in mesh.groups(axes) if self.place in ranks)
        ranks = tuple(self.base + r for r in mine)
        return self.group_of(ranks), ranks

    def group_of(self, ranks: tuple[int, ...], use: str = "") -> Any:
        """The process group of these ranks, this one among them, for some `use`; see `groups.group_of`."""
        if not use and ranks == tuple(range(self.world)):
            return dist.group.WORLD
        return groups.group_of(ranks, use)

    def moved(self, rank: int, world: int) -> None:
        """Stands at another place, in other process groups."""
        self.rank, self.world, self.base = rank, world, 0
        groups.forget_groups()
        self.ledger.clear()

    def synchronize(self) -> None:
        """Waits until the device has done what it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


class Workers:
    """`count` processes; use it as a context manager.  `threads` per process (CPU operators)."""

    environment: ClassVar[Mapping[str, str]] = {}  # that they have beside this process's

    def __init__(self, count: int, *, device: str = "cpu", threads: int = 1) -> None:
        self.count, self.device, self.threads = count, device, threads
        self.disturbance = 0.0  # of the last call: what others computed on this machine, per second
        self._processes: list[Any] = []
        self._pipes: list[Connection] = []
        self._store = ""

    def __enter__(self) -> Workers:
        spawn = multiprocessing.get_context("spawn")
        handle, self._store = tempfile.mkstemp(prefix="planner-store-")
        os.close(handle)
        with _environment(self.threads, self.environment):
            for rank in range(self.count):
                here, there = spawn.Pipe()
                target, arguments = self._served(rank, there)
                process = spawn.Process(target=target, args=arguments, daemon=True)
                process.start()
                there.close()
                self._processes.append(process)
                self._pipes.append(here)
        return self

    def _served(self, rank: int, pipe: Connection) -> tuple[Callable[..., None], tuple[Any, ...]]:
        """What the process of a rank carries out."""
        return _serve, (rank, self.count, self.device, self.threads, self._store, pipe)

    def __exit__(self, *_: object) -> None:
        for pipe in self._pipes:
            try:
                pipe.send(None)
            except OSError:  # it has ended by itself
                continue
        for process in self._processes:
            process.join(timeout=5)
            if process.is_alive():
                process.kill()
        Path(self._store).unlink(missing_ok=True)

    def call(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """`function(context, *arguments)` on every rank; what each returned.

        WorkerError where a rank fails: the others, which may wait for it for ever, are ended.
        """
        meter = Meter()
        for rank, pipe in enumerate(self._pipes):
            try:
                pipe.send((function, arguments))
            except OSError:
                self._end(f"rank {rank} of {self.count} ended before {function.__name__}")
        results: list[Any] = [None] * self.count
        computed = 0.0
        waiting = set(range(self.count))
        while waiting:
            ready = wait([self._pipes[r] for r in waiting])
            for rank in [r for r in waiting if self._pipes[r] in ready]:
                waiting.remove(rank)
                try:
                    ok, results[rank], seconds = self._pipes[rank].recv()
                except (EOFError, OSError):
                    ok, results[rank], seconds = False, "its process ended", 0.0
                computed += seconds
                if not ok:
                    self._end(f"rank {rank} of {self.count} failed in {function.__name__}: {results[rank]}")
        self.disturbance = meter.disturbance(computed)
        return results

    def _end(self, what: str) -> NoReturn:
        """Ends all processes.  WorkerError: of one that was ended from outside, which others then miss, or `what`."""
        ending = wait([p.sentinel for p in self._processes], timeout=_GRACE_S)
        for process in (p for p in self._processes if p.sentinel in ending):
            process.join(timeout=_GRACE_S)  # its files are closed before it has ended
        gone = [(r, p.exitcode) for r, p in enumerate(self._processes) if p.exitcode is not None]
        for process in self._processes:
            process.kill()
        killed = sorted((-code != signal.SIGKILL, r, -code) for r, code in gone if code < 0)
        if killed:
            _, rank, number = killed[0]
            what = f"rank {rank} of {self.count} was ended by {signal_text(number)}; so were the others then"
        raise WorkerError(what)


def signal_text(number: int) -> str:
    """The name of a signal that ended a process, and where it comes from."""
    why = " (from outside, or by the system where memory ran out)" if number == signal.SIGKILL else ""
    return f"{signal.Signals(number).name}{why}"


@contextmanager
def _environment(threads: int, more: Mapping[str, str]) -> Iterator[None]:
    """The environment that the processes are started with."""
    wanted = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), **_ALLOCATOR, **more}
    before = {k: os.environ.get(k) for k in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for k, v in before.items():
            if v is None:
                del os.environ[k]
            else:
                os.environ[k] = v


def device_of(kind: str, local_rank: int) -> torch.device:
    """The device of a process, made the current one.

    What is written in single precision computes in it: PyTorch would run convolutions on a GPU with operands cut to ten
    bits (TF32) unless told not to.
    """
    if kind != "cuda":
        return torch.device("cpu")
    where = torch.device("cuda", local_rank % torch.cuda.device_count())
    torch.cuda.set_device(where)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    return where


def join_group(where: torch.device, rank: int, world: int, meeting: str) -> Context:
    """Joins the process group that meets at `meeting` (NCCL between GPUs, gloo between CPUs)."""
    backend = "nccl" if where.type == "cuda" else "gloo"
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if meeting == "env://" and attempt != "0":
        # torchrun's ranks may meet in the store of their first attempt, where addresses of the dead still stand.
        found, rank, world = next(dist.rendezvous(meeting, rank, world, timeout=TIMEOUT))
        store = dist.PrefixStore(f"attempt {attempt}", found)
        dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=TIMEOUT)
    else:
        dist.init_process_group(backend, init_method=meeting, rank=rank, world_size=world, timeout=TIMEOUT)
    return Context(rank, world, where)


def _serve(rank: int, world: int, device: str, threads: int, store: str, pipe: Connection) -> None:
    """One process: joins the group and answers calls until told to end."""
    context = join_group(prepared(rank, device, threads), rank, world, f"file://{store}")
    answer(context, pipe)


def prepared(rank: int, device: str, threads: int) -> torch.device:
    """Sets a process up for its work; its device."""
    torch.set_num_threads(threads)
    torch.set_num_interop_threads(1)
    where = device_of(device, rank)
    if where.type == "cpu":
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        torch.ones(min(_RESERVE_BYTES, free // _RESERVE_SHARE) // 4)
    return where


def answer(context: Context, pipe: Connection, busy: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
    """Answers calls until told to end; each within `busy()`."""
    try:
        while (message := pipe.recv()) is not None:
            function, arguments = message
            begin = time.process_time()
            with busy():
                try:
                    result = function(context, *arguments)
                    pipe.send((True, result, time.process_time() - begin))
                except PlannerError as error:  # its message says all
                    pipe.send((False, str(error), time.process_time() - begin))
                except (KeyboardInterrupt, SystemExit):
                    raise
                except BaseException:  # checkpoints of torch fail with what is no Exception
                    pipe.send((False, traceback.format_exc(), time.process_time() - begin))
    except (EOFError, KeyboardInterrupt):
        pass
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
