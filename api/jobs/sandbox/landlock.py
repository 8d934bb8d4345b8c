"""Landlock: a process gives up, for itself and all that it starts, every file that it is not granted.

It cannot be undone, needs no privilege, and processes outside can be neither traced nor, from ABI 6 on, sent signals.
What has no rule of its own here: a file's attributes can be read wherever it lies, and changed where the owner is the
same (the filter of system calls forbids that).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from planner.api.jobs.sandbox.kernel import MACHINE, syscall

__all__ = ["FILES_ABI", "SIGNALS_ABI", "abi", "restrict"]

FILES_ABI: Final = 3  # the first that forbids files to be truncated
SIGNALS_ABI: Final = 6  # the first that keeps signals inside

# linux/landlock.h; the numbers of the calls are the same on all machines
_CREATE, _ADD, _RESTRICT = 444, 445, 446
_VERSION_FLAG, _PATH_BENEATH = 1, 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _REMOVE_DIR, _REMOVE_FILE = (1 << k for k in range(6))
_MAKE_DIR, _MAKE_REGULAR = 1 << 7, 1 << 8
_REFER, _TRUNCATE, _IOCTL_DEVICE = 1 << 13, 1 << 14, 1 << 15
_ALL_OF_ABI_1 = (1 << 13) - 1
_FILE = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEVICE  # what applies to a file that is no folder
_TCP = 0b11  # bind and connect, ABI 4
_SCOPES = 0b11  # abstract sockets and signals, ABI 6

_READ = _READ_FILE | _READ_DIR
_RUN = _READ | _EXECUTE
_WORK = _READ | _WRITE_FILE | _TRUNCATE | _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_REGULAR | _REFER


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32))


def abi() -> int:
    """The version that the kernel offers; 0 where it offers none."""
    if not MACHINE:
        return 0
    try:
        return syscall(_CREATE, 0, 0, _VERSION_FLAG)
    except OSError:
        return 0


def restrict(*, run: Iterable[Path], read: Iterable[Path], write: Iterable[Path]) -> None:
    """Leaves to this thread, which is to be the only one, the files and folders given, and what lies in them: to be
    read and executed, to be read, and to be read and written.  OSError where the kernel refuses.

    What does not exist is left out: nothing is granted by it.
    """
    version = abi()
    handled = _ALL_OF_ABI_1
    for least, right in ((2, _REFER), (3, _TRUNCATE), (5, _IOCTL_DEVICE)):
        handled |= right if version >= least else 0
    rules = _Ruleset(handled, _TCP if version >= 4 else 0, _SCOPES if version >= SIGNALS_ABI else 0)
    size = 24 if version >= SIGNALS_ABI else 16 if version >= 4 else 8  # older kernels refuse a longer one
    ruleset = syscall(_CREATE, ctypes.addressof(rules), size, 0)
    try:
        for paths, rights in ((run, _RUN), (read, _READ), (write, _WORK)):
            for path in paths:
                _allow(ruleset, path, rights & handled)
        syscall(_RESTRICT, ruleset, 0)
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: Path, rights: int) -> None:
    try:
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not path.is_dir():
            rights &= _FILE
        rule = _Beneath(rights, handle)
        syscall(_ADD, ruleset, _PATH_BENEATH, ctypes.addressof(rule), 0)
    finally:
        os.close(handle)
