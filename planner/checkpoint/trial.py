"""How long a transformation will take, by a trial with a part of it."""

from __future__ import annotations

import os
import tempfile
import time
from typing import Final

from planner.checkpoint.transforming import Planned
from planner.errors import UsageError
from planner.stored.arrays import Files, bytes_of
from planner.stored.copying import BLOCK, read_block
from planner.transfer.blocks import blocks

__all__ = ["seconds_of"]

_SAMPLE: Final = 64 << 20  # bytes
_LONGEST: Final = 2.0  # seconds


def seconds_of(plan: Planned) -> float:
    """Seconds, as if all of it went as its first 64 MiB do: read from the source, and put by one thread on the disk
    where the target will be, in a file without a name.

    InputError where the source cannot be read, UsageError where nothing can be written there.
    """
    folder = next(p for p in (plan.writing.place.parent, *plan.writing.place.parents) if p.is_dir())
    try:
        with tempfile.TemporaryFile(dir=folder) as opened, Files() as files:
            began, done = time.perf_counter(), 0
            for move in plan.moves:
                for block in blocks(move.source.shape, BLOCK // move.source.dtype.itemsize):
                    if done >= _SAMPLE or time.perf_counter() - began > _LONGEST:
                        break
                    done += opened.write(bytes_of(read_block(move.source, block, files)))
            opened.flush()
            if plan.options.sync:
                os.fsync(opened.fileno())
            took = time.perf_counter() - began
    except OSError as e:
        where = e.filename or folder
        raise UsageError(f"{where}: {e.strerror or e}; the trial of --dry-run reads and writes 64 MiB") from e
    return took * plan.target_bytes / done if done else 0.0
