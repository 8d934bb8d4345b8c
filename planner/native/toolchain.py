"""Compiling the kernels.  Imports nothing but the standard library: the build hook runs it on its own."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

__all__ = ["FLAGS", "SOURCES", "build", "compiler", "library_name"]

SOURCES = tuple(sorted(Path(__file__).parent.glob("*.c")))
HEADERS = tuple(sorted(Path(__file__).parent.glob("*.h")))
FLAGS = ("-O3", "-std=c11", "-shared", "-fPIC", "-ffp-contract=off")
SECONDS = 120


def library_name() -> str:
    """Names the library after all that it is made from, so that a stale one is never loaded."""
    made_from = repr((FLAGS, sys.platform, [s.read_bytes() for s in (*SOURCES, *HEADERS)]))
    return f"kernels-{hashlib.sha256(made_from.encode()).hexdigest()[:16]}.so"


def compiler() -> str | None:
    """A C compiler on the path."""
    return next((found for name in ("cc", "gcc", "clang") if (found := shutil.which(name))), None)


def build(target: Path) -> None:
    """Compiles the sources into the shared library `target`.  OSError or SubprocessError where that fails."""
    found = compiler()
    if found is None:
        raise FileNotFoundError("no C compiler (cc, gcc, clang) on the path")
    handle, name = tempfile.mkstemp(dir=target.parent, suffix=".so")
    os.close(handle)
    try:
        command = [found, *FLAGS, *map(str, SOURCES), "-lm", "-o", name]
        subprocess.run(command, check=True, capture_output=True, timeout=SECONDS)
        os.chmod(name, 0o755)
        os.replace(name, target)  # readers see the old library or the new one
    finally:
        Path(name).unlink(missing_ok=True)
