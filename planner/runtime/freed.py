"""Memory that a step frees stays with the process, for the next step.

glibc hands large buffers back to the system as soon as they are freed, and asks for them anew in the next step: the
system then clears each page where it is first touched.  A step on processors frees and allocates the same buffers every
time, and spent 6 % of its processor time so where it was measured.  Source: mallopt(3).
"""

from __future__ import annotations

import ctypes
import functools
import os
from typing import Final

__all__ = ["keep_freed_memory"]

# M_TRIM_THRESHOLD, M_TOP_PAD and M_MMAP_MAX: as the environment of processes that are started here has them
# (`planner.runtime.workers`).
_KEPT: Final = ((-1, (1 << 31) - 1), (-2, 1 << 26), (-4, 0))
_SETTINGS: Final = (
    "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES",
    "LD_PRELOAD",
)  # fmt: skip


@functools.cache
def keep_freed_memory() -> bool:
    """Tells the C library to keep what is freed.  Whether it did: other libraries, and who has set it otherwise in the
    environment, are left as they are."""
    if any(os.environ.get(name) for name in _SETTINGS):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # not glibc
        return False
    return all(mallopt(setting, value) for setting, value in _KEPT)
