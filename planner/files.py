"""Files that are there whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

__all__ = ["replace_file", "write_whole"]

READABLE = 0o644
EXECUTABLE = 0o755


def write_whole(path: Path, content: bytes, *, executable: bool = False) -> None:
    """Replaces the file in one step; folders are made.  OSError where it cannot be written, and nothing is left.

    A link stays one: what it points to is replaced.  Devices and pipes (/dev/stdout, /dev/null) are written to.
    """
    if path.exists() and not path.is_file():
        path.write_bytes(content)  # a directory: IsADirectoryError
        return
    path = Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, content, prefix=f".{path.name}.", mode=EXECUTABLE if executable else READABLE)


def replace_file(path: Path, content: bytes, *, prefix: str, mode: int | None = None, sync: bool = False) -> None:
    """Writes beside the file and renames into its place; with `sync` the content is on the disk before.

    `prefix`: of the temporary file's name, by which what a crash has left is known; `mode` None: for the owner alone.
    """
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=prefix)
    try:
        if mode is not None:
            with contextlib.suppress(PermissionError):  # in a sandbox a file stays its owner's alone
                os.chmod(temporary, mode)  # as far as the directory allows, users share it
        with os.fdopen(handle, "wb") as out:
            out.write(content)
            if sync:
                out.flush()
                os.fsync(out.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
