"""The files of an archive, from a service that need not be trusted."""

from __future__ import annotations

import io
import zipfile
from pathlib import PurePosixPath

from planner.errors import InputError

__all__ = ["unpacked"]

MOST_BYTES = 1 << 30


def unpacked(archive: bytes) -> dict[str, bytes]:
    """Contents by path.  InputError where a path leaves the folder, or they are more than 1 GiB."""
    out: dict[str, bytes] = {}
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as opened:
            if sum(i.file_size for i in opened.infolist()) > MOST_BYTES:
                raise InputError(f"the archive unpacks to more than {MOST_BYTES} bytes")
            for info in opened.infolist():
                path = PurePosixPath(info.filename)
                if path.is_absolute() or ".." in path.parts or "\\" in info.filename or "\0" in info.filename:
                    raise InputError(f"the archive holds {info.filename!r}, which leaves its folder")
                if not info.is_dir():
                    out[info.filename] = opened.read(info)
    except (zipfile.BadZipFile, zipfile.LargeZipFile, NotImplementedError, RuntimeError, EOFError) as e:
        raise InputError(f"the archive cannot be unpacked: {e}") from e
    return out
