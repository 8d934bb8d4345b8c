"""A filter of system calls (seccomp), as the kernel's small programs are written.

On a machine whose numbers are not known there is no filter: one of other numbers would forbid what is needed and allow
what is not.
"""

from __future__ import annotations

import ctypes
import errno
import struct
from collections.abc import Iterable
from typing import Final

from planner.api.jobs.sandbox.calls import (
    CLONE,
    CLONE3,
    FORBIDDEN,
    IOCTL,
    KILL,
    MACHINES,
    NEWEST,
    PRLIMIT,
    SCHED_SETAFFINITY,
    UTIMENSAT,
)
from planner.api.jobs.sandbox.kernel import MACHINE, prctl

__all__ = ["available", "forbid", "program"]

_PR_GET_SECCOMP, _PR_SET_SECCOMP, _FILTER = 21, 22, 2
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # linux/bpf_common.h
_NUMBER_AT, _MACHINE_AT, _ARGUMENTS_AT = 0, 4, 16  # struct seccomp_data
_ALLOW: Final = 0x7FFF0000
_REFUSE: Final = 0x00050000 | errno.EPERM
_UNKNOWN: Final = 0x00050000 | errno.ENOSYS  # the C library takes the older call
_KILL: Final = 0x80000000
_X32: Final = 0x40000000  # numbers of another set of calls on x86_64
_EVERYTHING: Final = 0xFFFFFFFF  # -1, in the place of one process
# CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
_NAMESPACES: Final = 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000
# FS_IOC_SETFLAGS, its form of 32 bits, FS_IOC_FSSETXATTR, FS_IOC_SETVERSION, FS_IOC_ENABLE_VERITY (linux/fs.h): a file
# that is open to be read is enough for them.
_ATTRIBUTES: Final = (0x40086602, 0x40046602, 0x401C5820, 0x40087602, 0x40806685)


def available(machine: str = MACHINE) -> bool:
    """Whether this kernel filters, and this machine's numbers are known."""
    if machine not in MACHINES:
        return False
    try:
        prctl(_PR_GET_SECCOMP)
    except OSError:
        return False
    return True


def forbid(program: bytes) -> None:
    """Puts this thread, which is to be the only one and can gain no privileges, under the filter.  OSError."""
    code = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("@HxxxxxxP", len(program) // 8, ctypes.addressof(code))
    holder = ctypes.create_string_buffer(header, len(header))
    prctl(_PR_SET_SECCOMP, _FILTER, ctypes.addressof(holder))


def program(machine: str = MACHINE, forbidden: Iterable[int] | None = None) -> bytes:
    """The filter of a child: what is not refused is allowed.  `forbidden`: numbers, in place of the usual ones."""
    lines = [
        _line(_LOAD, _MACHINE_AT),
        _line(_EQUAL, MACHINES[machine], 1, 0),
        _line(_RETURN, _KILL),  # calls by other numbers than this program knows
        _line(_LOAD, _NUMBER_AT),
    ]
    if machine == "x86_64":
        lines += [_line(_AT_LEAST, _X32, 0, 1), _line(_RETURN, _KILL)]
    for number in FORBIDDEN[machine] if forbidden is None else forbidden:
        lines += [_line(_EQUAL, number, 0, 1), _line(_RETURN, _REFUSE)]
    if forbidden is None:
        lines += [_line(_AT_LEAST, NEWEST + 1, 0, 1), _line(_RETURN, _UNKNOWN)]
        lines += [_line(_EQUAL, CLONE3, 0, 1), _line(_RETURN, _UNKNOWN)]  # its flags lie where no filter can look
        lines += _on(CLONE[machine], [_argument(0), _line(_ANY_BIT, _NAMESPACES, 0, 1), _line(_RETURN, _REFUSE)])
        lines += _on(KILL[machine], [_argument(0), _line(_EQUAL, _EVERYTHING, 0, 1), _line(_RETURN, _REFUSE)])
        # Of this process itself, not of another by its number.
        lines += _on(PRLIMIT[machine], [_argument(0), _line(_EQUAL, 0, 1, 0), _line(_RETURN, _REFUSE)])
        lines += _on(SCHED_SETAFFINITY[machine], [_argument(0), _line(_EQUAL, 0, 1, 0), _line(_RETURN, _REFUSE)])
        lines += _on(IOCTL[machine], [_argument(1), *(line for what in _ATTRIBUTES for line in _refused(what))])
        # Of an open file, not of one by its path.
        for half in (0, 4):
            path = _line(_LOAD, _ARGUMENTS_AT + 8 + half)
            lines += _on(UTIMENSAT[machine], [path, _line(_EQUAL, 0, 1, 0), _line(_RETURN, _REFUSE)])
    return b"".join([*lines, _line(_RETURN, _ALLOW)])


def _refused(value: int) -> tuple[bytes, bytes]:
    """The lines that refuse what was loaded, where it is this."""
    return _line(_EQUAL, value, 0, 1), _line(_RETURN, _REFUSE)


def _on(number: int, lines: list[bytes]) -> list[bytes]:
    """The lines for one call, after which its number is at hand again."""
    again = [_line(_LOAD, _NUMBER_AT)]
    return [_line(_EQUAL, number, 0, len(lines) + len(again)), *lines, *again]


def _argument(k: int) -> bytes:
    return _line(_LOAD, _ARGUMENTS_AT + 8 * k)  # the lower half, on machines of this byte order


def _line(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("@HBBI", code, if_true, if_false, value)
