"""The compiled kernels: built with the package, or once on this machine where the package came without them.

`library()` is None where neither works; callers then use slower NumPy equivalents, which give the same answers.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

__all__ = ["SOURCES", "build", "compiler", "library", "pointer"]

HERE = Path(__file__).parent
SOURCES = tuple(sorted(HERE.glob("*.c")))
BUILT = HERE / "kernels.so"
FLAGS = ("-O3", "-std=c11", "-shared", "-fPIC", "-ffp-contract=off")


@functools.cache
def library() -> ctypes.CDLL | None:
    """The kernels, or None where there are none: no library was installed and no compiler was found."""
    if os.environ.get("PLANNER_NATIVE", "1") == "0":
        return None
    if BUILT.exists() and BUILT.stat().st_mtime >= max(s.stat().st_mtime for s in SOURCES):
        return ctypes.CDLL(str(BUILT))
    try:
        return ctypes.CDLL(str(_cached()))
    except (OSError, subprocess.CalledProcessError) as e:
        warnings.warn(f"compiled kernels are missing ({e}); searches will be many times slower", stacklevel=2)
        return None


def compiler() -> str | None:
    """A C compiler on the path."""
    return next((found for name in ("cc", "gcc", "clang") if (found := shutil.which(name))), None)


def build(target: Path, sources: Sequence[Path] = SOURCES) -> None:
    """Compiles `sources` into the shared library `target`.  OSError or CalledProcessError where that fails."""
    found = compiler()
    if found is None:
        raise FileNotFoundError("no C compiler (cc, gcc, clang) on the path")
    handle, name = tempfile.mkstemp(dir=target.parent, suffix=".so")
    os.close(handle)
    try:
        command = [found, *FLAGS, *map(str, sources), "-lm", "-o", name]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        os.replace(name, target)  # readers see the old library or the new one
    finally:
        Path(name).unlink(missing_ok=True)


def _cached() -> Path:
    digest = hashlib.sha256(repr((FLAGS, sys.platform, [s.read_bytes() for s in SOURCES])).encode()).hexdigest()
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "planner" / "kernels"
    target = base / f"{digest[:32]}.so"
    if not target.exists():
        base.mkdir(parents=True, exist_ok=True, mode=0o700)
        build(target)
    return target


def pointer(array: NDArray[np.generic]) -> ctypes.c_void_p:
    """Address of a C-contiguous array."""
    assert array.flags.c_contiguous
    return ctypes.c_void_p(array.ctypes.data)
