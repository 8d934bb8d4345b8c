"""Files that are there whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

__all__ = ["write_whole"]


def write_whole(path: Path, content: bytes, *, executable: bool = False) -> None:
    """Replaces the file in one step; folders are made.  OSError where it cannot be written, and nothing is left.

    A link stays one: what it points to is replaced.  Devices and pipes (/dev/stdout, /dev/null) are written to.
    """
    if path.exists() and not path.is_file():
        path.write_bytes(content)  # a directory: IsADirectoryError
        return
    path = Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(content)
        os.chmod(temporary, 0o755 if executable else 0o644)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
