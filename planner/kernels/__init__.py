"""Execution of one operator on arrays: alone (`run_local`), or on all virtual ranks in step (`spmd`)."""

from planner.kernels.local import local_kernel, run_local
from planner.kernels.session import NoKernelError
from planner.kernels.split import kernel, spmd_backward, spmd_forward
from planner.kernels.spmd import (
    AllGather,
    AllReduce,
    Exchange,
    Performed,
    ShardContext,
    SpmdBackward,
    SpmdForward,
    run_ranks,
)

__all__ = [
    "AllGather",
    "AllReduce",
    "Exchange",
    "NoKernelError",
    "Performed",
    "ShardContext",
    "SpmdBackward",
    "SpmdForward",
    "kernel",
    "local_kernel",
    "run_local",
    "run_ranks",
    "spmd_backward",
    "spmd_forward",
]
