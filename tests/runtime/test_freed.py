"""Buffers that are freed and allocated again are not mapped anew."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

_STEPS = """
import resource, sys
import numpy as np
from planner.runtime.freed import keep_freed_memory
kept = len(sys.argv) > 1 and keep_freed_memory()
for _ in range(3):
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        a, b = np.ones(1 << 22), np.ones(1 << 22)
        del a, b
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults)
"""


def faults(*arguments: str) -> tuple[bool, int]:
    found = subprocess.run(
        [sys.executable, "-c", _STEPS, *arguments], capture_output=True, text=True, check=True, timeout=120
    )
    kept, count = found.stdout.split()
    return kept == "True", int(count)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library is left as it is")
def test_pages_of_a_step_are_those_of_the_step_before(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_TOP_PAD_",
                 "GLIBC_TUNABLES", "LD_PRELOAD"):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    kept, count = faults("keep")
    assert kept
    assert count < 1000  # 163,840 pages are touched
    _, before = faults()
    assert before > 10 * count


def test_who_has_set_it_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "100000")
    assert faults("keep")[0] is False
