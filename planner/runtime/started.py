"""Ranks that something else has started, torchrun or mpirun, seen from one of them."""

from __future__ import annotations

import os
import re
import socket
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from planner.errors import PlannerError, UsageError
from planner.runtime.freed import keep_freed_memory
from planner.runtime.workers import WorkerError, device_of, join_group

__all__ = ["Elsewhere", "Ranks", "Started", "started"]

_PORT = "29500"  # torchrun's own
# Starter, and its variables of rank, number of ranks, rank on the host and number of ranks there.
_MPI = (
    ("mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"),  # Open MPI
    ("mpirun", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),  # MPICH, Intel MPI
)  # fmt: skip


class Elsewhere(PlannerError):
    """Something went wrong that another rank reports; `exit_status` is that of what it reports."""

    def __init__(self, error: PlannerError) -> None:
        super().__init__(str(error))
        self.exit_status = error.exit_status


@dataclass(frozen=True, slots=True)
class Started:
    """This process among those that `by` has started; `host`, `port`: where they meet."""

    by: str
    rank: int
    world: int
    local_rank: int

    @property
    def reports(self) -> bool:
        """Whether this rank speaks for all."""
        return self.rank == 0

    def expect(self, count: int) -> None:
        """UsageError where another number of processes was started; on ranks that do not report, `Elsewhere`."""
        if self.world != count:
            how = "--nproc-per-node, --nnodes" if self.by == "torchrun" else "-n"
            error = UsageError(
                f"the plan is for {count} devices, and {self.by} started {self.world}; start {count} ({how})"
            )
            raise error if self.reports else Elsewhere(error)


def started() -> Started | None:
    """How this process was started; None where nothing but a person did.

    UsageError where variables are there that say nothing, or where ranks on several hosts do not know where to meet.
    """
    if all(v in os.environ for v in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")):
        if not all(os.environ[v].isdecimal() for v in ("RANK", "WORLD_SIZE", "MASTER_PORT")):
            raise UsageError(
                "RANK, WORLD_SIZE and MASTER_PORT: expected numbers, as torchrun sets them; unset them otherwise"
            )
        rank = os.environ["RANK"]
        local = os.environ.get("LOCAL_RANK", rank)
        return Started("torchrun", int(rank), int(os.environ["WORLD_SIZE"]), int(local if local.isdecimal() else rank))
    for by, *names in _MPI:
        rank, world, local, here = (os.environ.get(n, "") for n in names)
        if rank.isdecimal() and world.isdecimal():
            if "MASTER_ADDR" not in os.environ and here != world:
                raise UsageError(
                    f"{by} started {world} processes, {here or 'not all'} of them here, which do not know where to "
                    f"meet; hand them MASTER_ADDR, the host of rank 0 (mpirun -x MASTER_ADDR=HOST, mpiexec -genv "
                    f"MASTER_ADDR HOST), and MASTER_PORT where it is not to be {_PORT}"
                )
            os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
            os.environ.setdefault("MASTER_PORT", _PORT)
            os.environ.update(RANK=rank, WORLD_SIZE=world)
            return Started(by, int(rank), int(world), int(local if local.isdecimal() else rank))
    return None


class Ranks:
    """The ranks that were started, as `planner.runtime.workers.Workers`: a call is carried out here, its result
    gathered; use it as a context manager."""

    def __init__(self, here: Started, device: str, threads: int) -> None:
        torch.set_num_threads(threads)
        where = device_of(device, here.local_rank)
        if where.type == "cpu":
            keep_freed_memory()
        try:
            self.context = join_group(where, here.rank, here.world, "env://")
        except (RuntimeError, ValueError) as error:
            meeting = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
            raise WorkerError(
                f"rank {here.rank} of {here.world} on {socket.gethostname()} did not meet the others at {meeting}: "
                f"{_line(error)}; start all ranks, and let MASTER_ADDR be the host of rank 0"
            ) from None
        self.count, self.here = here.world, here
        self.disturbance = 0.0

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None or dist.get_world_size() == 1:
            dist.destroy_process_group()

    def call(self, function: Any, *arguments: Any) -> list[Any]:
        """`function(context, *arguments)` on every rank; what each returned.

        WorkerError where another rank has ended: its own message says why.
        """
        found: list[Any] = [None] * self.count
        try:
            dist.all_gather_object(found, function(self.context, *arguments))
        except RuntimeError as error:
            if not _is_of_others(error):
                raise
            raise WorkerError(
                f"rank {self.here.rank} of {self.count} waits for a rank that has ended: {_line(error)}"
            ) from None
        return found


def _is_of_others(error: RuntimeError) -> bool:
    """Whether a collective failed since another rank went away."""
    text = str(error)
    return isinstance(error, dist.DistError) or any(
        s in text for s in ("Connection closed by peer", "Connection reset by peer", "gloo", "Broken pipe", "NCCL")
    )


def _line(error: BaseException) -> str:
    """The first line, without where in torch's sources it is from, and what torch guesses."""
    found = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return re.sub(r"^\[[^\]]*\]\s*", "", found).partition(" This is typically")[0].strip()
