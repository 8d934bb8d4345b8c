"""Memory that is freed stays with a process that asks for that."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

_FAULTS = """
import resource, numpy as np
from planner.verify.allocation import keep_freed_memory
keep_freed_memory()
np.ones(1 << 21)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    np.ones(1 << 21)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "gnu_get_libc_version"), reason="the C library is not glibc")
def test_arrays_of_one_size_use_the_same_memory() -> None:
    done = subprocess.run([sys.executable, "-c", _FAULTS], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 100  # of 20 x 4096 pages
