"""Processes that end with the one that started them, whatever ends that."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

__all__ = ["die_with"]

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with(parent: int) -> None:
    """Has the kernel kill this process once the thread that started it ends; `parent` is that thread's process.  Where
    the kernel is another than Linux this does nothing."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # it ended before we asked
        os._exit(1)
