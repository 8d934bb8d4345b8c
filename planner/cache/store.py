"""A directory of entries named by kind and digest, safe under concurrent writers and bounded in size.

An entry is written beside its place and renamed into it, so that readers see all of it or nothing; it carries the
digest of its content, so that a torn or tampered one is noticed, reported and dropped.  Reading an entry marks it as
used; the entries unused for longest make room.  A cache that cannot be read or written is no error: the answer is
computed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from planner.files import READABLE, replace_file

__all__ = ["DEFAULT_SIZE", "Contents", "Store", "default_folder"]

MAGIC = b"planner.cache/1 "
DEFAULT_SIZE = 1 << 30  # bytes
FILL = 0.9  # share of the size that is left when entries make room


def default_folder() -> Path:
    """`PLANNER_CACHE_DIR`, else `planner` in the user's cache directory (XDG_CACHE_HOME, ~/.cache)."""
    own = os.environ.get("PLANNER_CACHE_DIR")
    if own:
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base and os.path.isabs(base) else Path.home() / ".cache") / "planner"


@dataclass(frozen=True, slots=True)
class Contents:
    """How many entries of each kind there are, and the bytes of all."""

    entries: dict[str, int]
    size: int


@dataclass(frozen=True, slots=True)
class Store:
    """`limit` in bytes; `note` hears of entries that are ignored and of what cannot be written."""

    folder: Path
    limit: int = DEFAULT_SIZE
    note: Callable[[str], None] = field(default=lambda _: None)

    def read(self, kind: str, key: str) -> bytes | None:
        """The content of an entry; None where there is none that is whole."""
        path = self._path(kind, key)
        try:
            with open(path, "rb") as file:
                data = file.read()
                with contextlib.suppress(OSError):  # another's cache may be read-only
                    os.utime(file.fileno())  # not by the path, which a sandbox may forbid
        except FileNotFoundError:
            return None
        except OSError as e:
            self.note(f"cache: {path} cannot be read ({e.strerror}); it is ignored")
            return None
        content = _unwrap(data)
        if content is None:
            self.note(f"cache: {path} is damaged; it is ignored and removed")
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        return content

    def write(self, kind: str, key: str, content: bytes) -> bool:
        """Keeps an entry, whole or not at all; whether it was kept."""
        path = self._path(kind, key)
        packed = zlib.compress(content, 1)
        data = MAGIC + hashlib.sha256(packed).hexdigest().encode() + b"\n" + packed
        if len(data) > self.limit:
            return False
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, data, prefix=".tmp-", mode=READABLE, sync=True)
            self.make_room()
        except OSError as e:
            self.note(f"cache: nothing is kept in {self.folder} ({e.strerror or e}); see --cache and --no-cache")
            return False
        return True

    def keys(self, kind: str) -> list[str]:
        """Keys of the entries of one kind, in order."""
        try:
            return sorted(f.name for f in os.scandir(self.folder / kind) if _is_entry(f))
        except OSError:
            return []

    def contents(self) -> Contents:
        entries: dict[str, int] = {}
        size = 0
        for path, status in self._files():
            kind = path.relative_to(self.folder).parts[0]
            entries[kind] = entries.get(kind, 0) + 1
            size += status.st_size
        return Contents(entries, size)

    def clear(self) -> Contents:
        """Removes all entries; what there was."""
        found = self.contents()
        for path, _ in self._files():
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
        return found

    def make_room(self) -> None:
        """Removes the entries unused for longest, where all are larger than the limit."""
        files = self._files()
        size = sum(s.st_size for _, s in files)
        if size <= self.limit:
            return
        for path, status in sorted(files, key=lambda f: (f[1].st_mtime_ns, str(f[0]))):
            if size <= FILL * self.limit:
                break
            with contextlib.suppress(FileNotFoundError):  # another process makes room as well
                path.unlink()
            size -= status.st_size

    def _path(self, kind: str, key: str) -> Path:
        return self.folder / kind / key

    def _files(self) -> list[tuple[Path, os.stat_result]]:
        found = []
        for folder, _, names in os.walk(self.folder):
            if Path(folder) == self.folder:
                continue  # entries lie in the directories of their kinds; nothing else here is ours
            for name in names:
                path = Path(folder) / name
                with contextlib.suppress(FileNotFoundError):
                    if _is_key(name) or name.startswith(".tmp-"):
                        found.append((path, path.stat()))
        return found


def _unwrap(data: bytes) -> bytes | None:
    head, newline, packed = data.partition(b"\n")
    if not newline or head != MAGIC + hashlib.sha256(packed).hexdigest().encode():
        return None
    try:
        return zlib.decompress(packed)
    except zlib.error:
        return None


def _is_key(name: str) -> bool:
    return len(name) == 64 and all(c in "0123456789abcdef" for c in name)


def _is_entry(entry: os.DirEntry[str]) -> bool:
    return _is_key(entry.name) and entry.is_file()
