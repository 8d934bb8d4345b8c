"""Privileges that a process gives up."""

from __future__ import annotations

import contextlib
import ctypes
from typing import Final

from planner.api.jobs.sandbox.kernel import prctl, syscall

__all__ = ["drop_capabilities", "gain_none"]

_PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT, _CLEAR_ALL = 24, 38, 47, 4
_CAPSET: Final = {"x86_64": 126, "aarch64": 91}
_HEADER = (ctypes.c_uint32 * 2)(0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3, of this process
_NOTHING = (ctypes.c_uint32 * 6)()


def gain_none() -> None:
    """From now on no program that is started brings privileges along.  OSError."""
    prctl(_PR_SET_NO_NEW_PRIVS, 1)


def drop_capabilities(machine: str) -> None:
    """Gives up what root may do beyond its own files; a process that has nothing of it stays as it is."""
    with contextlib.suppress(OSError):
        for number in range(64):
            prctl(_PR_CAPBSET_DROP, number)  # EINVAL behind the last
    with contextlib.suppress(OSError):
        prctl(_PR_CAP_AMBIENT, _CLEAR_ALL)
    if machine in _CAPSET:
        syscall(_CAPSET[machine], ctypes.addressof(_HEADER), ctypes.addressof(_NOTHING))
