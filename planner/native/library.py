"""The compiled kernels: built with the package, or once on this machine where the package came without them.

`library()` is None where neither works, or where PLANNER_NATIVE=0 asks for that; callers then use slower NumPy
equivalents, which give the same answers.
"""

from __future__ import annotations

import ctypes
import functools
import os
import subprocess
import warnings
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from planner.native.toolchain import build, library_name

__all__ = ["library", "pointer"]


@functools.cache
def library() -> ctypes.CDLL | None:
    """The kernels, or None where there are none: no library was installed and no compiler was found."""
    if os.environ.get("PLANNER_NATIVE", "1") == "0":
        return None
    try:
        built = Path(__file__).parent / library_name()
        return ctypes.CDLL(str(built if built.exists() else _cached()))
    except (OSError, subprocess.SubprocessError) as e:
        warnings.warn(f"compiled kernels are missing ({e}); searches will be many times slower", stacklevel=2)
        return None


def _cached() -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "planner" / "kernels"
    target = base / library_name()
    if not target.exists():
        base.mkdir(parents=True, exist_ok=True, mode=0o700)
        build(target)
    return target


def pointer(array: NDArray[np.generic]) -> ctypes.c_void_p:
    """Address of a C-contiguous array."""
    assert array.flags.c_contiguous
    return ctypes.c_void_p(array.ctypes.data)
