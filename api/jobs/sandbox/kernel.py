"""System calls that Python has no function for."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from typing import Final

__all__ = ["MACHINE", "prctl", "syscall"]

# What the numbers of system calls depend on; empty where this is another system than Linux of 64 bits.
MACHINE: Final = platform.machine() if sys.platform == "linux" and sys.maxsize > 2**32 else ""

_libc = ctypes.CDLL(None, use_errno=True)


def syscall(number: int, *arguments: int) -> int:
    """What the kernel returns.  OSError."""
    return _checked(_libc.syscall(ctypes.c_long(number), *(ctypes.c_long(a) for a in arguments)))


def prctl(what: int, *arguments: int) -> int:
    """As `syscall`."""
    given = [*arguments, *([0] * (4 - len(arguments)))]
    return _checked(_libc.prctl(ctypes.c_int(what), *(ctypes.c_ulong(a) for a in given)))


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
