"""How the C library hands out memory while a plan is executed.

Large arrays come and go by the thousand.  Unless told otherwise, the C library asks the system for the memory of each
and gives it back, and the system fills every page with zeros anew, which takes a third of the time of a run.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from typing import Final

__all__ = ["keep_freed_memory"]

# Parameters of glibc's mallopt: what lies free at the end of the heap before it is given back, and the size from which
# an array is memory of its own.
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_MOST: Final = (1 << 31) - 1
_NEVER: Final = -1


def keep_freed_memory() -> None:
    """Memory that is freed stays with this process, for the next array.  Only where the C library is glibc."""
    with suppress(AttributeError, OSError, TypeError):
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version  # noqa: B018  others' mallopt, where there is one, numbers its parameters otherwise
        library.mallopt(_MMAP_THRESHOLD, _MOST)
        library.mallopt(_TRIM_THRESHOLD, _NEVER)
