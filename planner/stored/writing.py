"""Files that come to be together: written beside their place, checked, and renamed to it.

.NAME.part/          all files, the journal of what is written, and `.job`, which says what for
NAME/                the folder; or NAME, where it is a single file
NAME/.checksums.json of every file: its size, a checksum of what is no tensor, and of every strip of its arrays
                     (beside a single file: .NAME.checksums.json)
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import xxhash

from planner.errors import InputError, UsageError
from planner.stored.arrays import Files, StoredArray, bytes_of
from planner.stored.copying import Copied
from planner.stored.formats.layout import Arranged, Entry, FileFormat
from planner.stored.moves import Move

__all__ = ["CHECKSUMS", "JOURNAL", "FileToWrite", "Writing", "checksums_of"]

CHECKSUMS: Final = "checksums.json"
JOURNAL: Final = ".journal"
_JOB: Final = ".job"
_WINDOW: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class FileToWrite:
    """A file of the target: its path in the folder, and the arrays that it will have."""

    path: str
    format: FileFormat
    entries: tuple[Entry, ...]
    metadata: Mapping[str, str]


def checksums_of(place: Path) -> Path:
    """Where the checksums of a folder or of a single file lie."""
    place = Path(os.path.realpath(place))
    return place / f".{CHECKSUMS}" if place.is_dir() else place.with_name(f".{place.name}.{CHECKSUMS}")


class Writing:
    """A target that comes to be at `place`: a folder of `files` and of `small` ones, or one file of the same name.

    UsageError where something is there already, and `replaces` is not said; where its disk has not the room; where it
    would hold one of `keeps`, or lie in one of the folders `apart`.
    """

    def __init__(
        self, place: Path, files: Sequence[FileToWrite], small: Mapping[str, bytes], *, replaces: bool = False,
        keeps: Sequence[Path] = (), apart: Sequence[Path] = (),
    ) -> None:  # fmt: skip
        given = place
        place = Path(os.path.realpath(place))
        self.place, self.files, self.small = place, files, small
        self.left = "nothing was written"
        for other in (Path(os.path.realpath(k)) for k in keeps):
            if other == place or other.is_relative_to(place):
                raise UsageError(f"{given}: holds the source, {other}, which is only read; give another place")
        for other in (Path(os.path.realpath(a)) for a in apart):
            if place.is_relative_to(other):
                raise UsageError(f"{given}: lies in the source, {other}, which is only read; give another place")
        # Of a link, the file has the name of the link, and takes the place that it leads to.
        self.single = len(files) == 1 and files[0].path == given.name and not small
        self.part = place.with_name(f".{place.name}.part")
        self.arranged: list[Arranged] = []
        for f in files:
            try:
                self.arranged.append(f.format.arrange(f.entries, f.metadata))
            except ValueError as e:
                raise InputError(
                    f"{place if self.single else place / f.path}: {f.format.name} cannot hold it: {e}"
                ) from None
        if _exists(place) and not replaces:
            raise UsageError(f"{given}: is there already; give another place, or --force to replace it")
        if _exists(place) and place.is_dir() and not _is_ours(place):
            raise UsageError(
                f"{given}: is a folder that was not written here, which --force does not replace; give another"
            )

    @property
    def size(self) -> int:
        return sum(a.size for a in self.arranged) + sum(map(len, self.small.values()))

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """While it is written: UsageError where another process writes to the same place."""
        self.place.parent.mkdir(parents=True, exist_ok=True)
        lock = self.place.with_name(f".{self.place.name}.lock")
        with lock.open("w") as opened:
            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UsageError(f"{self.place}: another process is writing there; wait for it") from None
            try:
                yield
            finally:
                lock.unlink(missing_ok=True)

    @property
    def journal(self) -> Path:
        return self.part / JOURNAL

    def arrays(self) -> dict[tuple[str, str], StoredArray]:
        """(path of the file, name) → where the array will lie, for as long as it is not in its place."""
        return {
            (f.path, e.name): StoredArray(
                self.part / f.path, a.offsets[e.name], e.dtype, e.shape, None, tuple(a.extents.get(e.name, ()))
            )
            for f, a in zip(self.files, self.arranged, strict=True)
            for e in f.entries
        }

    def begin(self, job: Mapping[str, Any], *, resume: bool = False) -> dict[str, Any]:
        """Makes the files, all but their arrays.  With `resume`, what an unfinished run of the same job has written
        stays, and its `job` is returned, with the numbers that decide what a unit is.

        `job`: what is copied from where (`what`), and such numbers.
        """
        old = self.place.with_name(f".{self.place.name}.old")
        if old.exists() and not _exists(self.place):
            os.replace(old, self.place)  # a run that replaced it died before its own was in place
        before = self._unfinished() if resume else None
        if before is not None and before.get("what") == job["what"]:
            job = before
        elif self.part.exists():
            shutil.rmtree(self.part)
        self.part.mkdir(parents=True, exist_ok=True)
        self.left = f"what was written stays in {self.part.name}: make room, and go on with --resume"
        free = shutil.disk_usage(self.part).free
        held = sum(f.stat().st_blocks * 512 for f in self.part.rglob("*") if f.is_file())
        if self.size > free + held:
            raise UsageError(
                f"{self.place}: expected {self.size:,} bytes of room on its disk, found {free:,}; give another place"
            )
        if job is not before:
            (self.part / _JOB).write_text(json.dumps(job), encoding="utf-8")
        for f, a in zip(self.files, self.arranged, strict=True):
            path = self.part / f.path
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("r+b" if path.exists() else "w+b") as opened:
                opened.truncate(a.size)
                for offset, data in a.fixed:
                    opened.seek(offset)
                    opened.write(data)
        return dict(job)

    def _unfinished(self) -> dict[str, Any] | None:
        try:
            found = json.loads((self.part / _JOB).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def finish(self, moves: Sequence[Move], copied: Copied, *, sync: bool = True) -> None:
        """Writes what is known at the end, and puts the files to their place."""
        sums: dict[str, dict[str, Any]] = {}
        arrays = self.arrays()
        where = {array: key for key, array in arrays.items()}
        strips: dict[tuple[str, str], bytearray] = {
            where[moves[move].target.arrays[array]]: found for (move, array), found in copied.strips.items()
        }
        for f, a in zip(self.files, self.arranged, strict=True):
            path = self.part / f.path
            fixed = list(a.fixed)
            if a.summed:
                crcs = {name: _crc(path, *where) for e in f.entries for name, *where in a.slices(e)}
                late = f.format.finished(f.entries, crcs)
                with path.open("r+b") as opened:
                    for offset, data in late:
                        opened.seek(offset)
                        opened.write(data)
            sums[f.path] = {
                "size": a.size,
                "rest": _digest_of(path, [(offset, len(data)) for offset, data in fixed]),
                "ranges": [[offset, len(data)] for offset, data in fixed],
                "arrays": {e.name: _where(arrays[f.path, e.name]) for e in f.entries},
            }
        for name, data in self.small.items():
            path = self.part / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            sums[name] = {"size": len(data), "rest": _digest_of(path, [(0, len(data))]), "ranges": [[0, len(data)]],
                          "arrays": {}}  # fmt: skip
        with (self.part / f".{CHECKSUMS}").open("wb") as manifest:
            _write_sums(manifest, sums, strips)
        if sync:
            self._sync()
        self._put()

    def _sync(self) -> None:
        for name in (*(f.path for f in self.files), *self.small, f".{CHECKSUMS}"):
            handle = os.open(self.part / name, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)

    def _put(self) -> None:
        """Renames; what had the place goes away behind that.

        A process that dies between the two renames leaves both: the next run puts the old one back, and goes on.
        """
        old = self.place.with_name(f".{self.place.name}.old")
        if _exists(self.place):
            _remove(old)
            self.place.rename(old)
        elif self.place.is_dir():
            self.place.rmdir()  # an empty one
        for name in (_JOB, JOURNAL):
            (self.part / name).unlink(missing_ok=True)
        if self.single:
            os.replace(self.part / f".{CHECKSUMS}", self.place.with_name(f".{self.place.name}.{CHECKSUMS}"))
            os.replace(self.part / self.files[0].path, self.place)
            self.part.rmdir()
        else:
            os.replace(self.part, self.place)
        handle = os.open(self.place.parent, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
        _remove(old)


def identity(values: Any) -> str:
    """A digest of what a job is."""
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()


def _exists(place: Path) -> bool:
    """Whether anything is there; an empty folder is nothing."""
    return place.exists() and not (place.is_dir() and not any(place.iterdir()))


def _is_ours(place: Path) -> bool:
    """Whether all that lies in a folder was written here, at once or rank by rank."""
    if checksums_of(place).is_file():
        return True
    return all(f.is_dir() and checksums_of(f).is_file() for f in place.iterdir() if not f.name.startswith("."))


def _remove(place: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        if place.is_dir() and not place.is_symlink():
            shutil.rmtree(place)
        else:
            place.unlink()


def _write_sums(
    out: BinaryIO, sums: Mapping[str, Mapping[str, Any]], strips: Mapping[tuple[str, str], bytearray]
) -> None:
    """The file of checksums, array by array: strips are text already."""
    out.write(b'{"schema":1,"files":{')
    for i, (path, about) in enumerate(sums.items()):
        head = _json({k: v for k, v in about.items() if k != "arrays"})
        out.write(b"," * (i > 0) + _json(path) + b":" + head[:-1] + b',"arrays":{')
        for j, (name, array) in enumerate(about["arrays"].items()):
            out.write(b"," * (j > 0) + _json(name) + b":" + _json(array)[:-1] + b',"strips":[')
            out.write(strips.get((path, name), b""))
            out.write(b"]}")
        out.write(b"}}")
    out.write(b"}}")


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _where(array: StoredArray) -> dict[str, Any]:
    found: dict[str, Any] = {"offset": array.offset, "dtype": array.dtype.name, "shape": list(array.shape)}
    return found | ({"extents": [list(e) for e in array.extents]} if array.extents else {})


def _crc(path: Path, offset: int, length: int) -> int:
    crc = 0
    with path.open("rb") as opened:
        opened.seek(offset)
        while length:
            data = opened.read(min(_WINDOW, length))
            if not data:
                raise InputError(f"{path}: ended early; write it anew")
            crc, length = zlib.crc32(data, crc), length - len(data)
    return crc


def _digest_of(path: Path, ranges: Sequence[tuple[int, int]]) -> str:
    """Of all bytes in these ranges."""
    found = xxhash.xxh3_64()
    with path.open("rb") as opened:
        for offset, length in ranges:
            opened.seek(offset)
            while length:
                data = opened.read(min(_WINDOW, length))
                if not data:
                    return ""
                found.update(data)
                length -= len(data)
    return found.hexdigest()


def faults(place: Path, files: Files) -> tuple[list[str], int]:
    """(what of a target does not agree with its checksums, a line each; how many arrays it has).

    InputError where it has none.
    """
    if not place.exists():
        raise InputError(f"{place}: there is no such file or folder; give a checkpoint")
    manifest = checksums_of(place)
    try:
        sums = json.loads(manifest.read_text(encoding="utf-8"))["files"]
    except FileNotFoundError:
        raise InputError(
            f"{place}: has no checksums ({manifest.name}): it was not written by planner checkpoint, or they were not "
            "copied with it; compare it with what it was made of: --against SRC"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise InputError(f"{manifest}: cannot be read ({e}); write the checkpoint anew") from None
    try:
        return _compared(place, sums, files)
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        raise InputError(
            f"{manifest}: is not as it was written ({type(e).__name__}: {e}); write the checkpoint anew"
        ) from e


def _compared(place: Path, sums: Mapping[str, Any], files: Files) -> tuple[list[str], int]:
    out = []
    for name, about in sums.items():
        path = place / name if place.is_dir() else place
        if not path.is_file():
            out.append(f"{path}: is not there")
        elif path.stat().st_size != about["size"]:
            out.append(f"{path}: expected {about['size']:,} bytes, found {path.stat().st_size:,}")
        else:
            out += _faults(path, about, files)
    return out, sum(len(about["arrays"]) for about in sums.values())


def _faults(path: Path, about: Mapping[str, Any], files: Files) -> list[str]:
    from planner.stored.elements import TORCH

    out = []
    if _digest_of(path, about["ranges"]) != about["rest"]:
        out.append(f"{path}: what is no tensor (header or directory) is not as it was written")
    for name, a in about["arrays"].items():
        array = StoredArray(
            path, a["offset"], TORCH[a["dtype"]], tuple(a["shape"]), None,
            tuple((int(b), int(o)) for b, o in a.get("extents", ())),
        )  # fmt: skip
        for box, digest in a["strips"]:
            value = files.read(array, [(low, high) for low, high in box])
            if xxhash.xxh3_64_hexdigest(bytes_of(value)) != digest:
                out.append(f"{path}: tensor {name}, elements {_box_text(box)}: not as they were written")
    return out


def _box_text(box: Sequence[Sequence[int]]) -> str:
    return "[" + ", ".join(f"{low}:{high}" for low, high in box) + "]"
