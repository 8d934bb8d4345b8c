"""Reads the text of an instance: JSON whose bulk is lists of integers, most of them repeated.

Every list of numbers is cut out of the text and only distinct ones are parsed, each into one int64 array; the skeleton
that is left is parsed as usual.  In the skeleton a list is the string `#k` and every other string gains a leading `=`,
so the two cannot be confused.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.errors import InputError

__all__ = ["MOST_BYTES", "Numbers", "decode", "read_bytes"]

MOST_BYTES = 1 << 29  # of text; five times the largest published instance
MOST_DEPTH = 64  # the format nests four deep
CHUNK = 1 << 22
SHOWN = 60
# An unterminated string swallows the rest (and is refused later), so that the scan stays linear.
TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\Z)|\[[-+0-9.eE,\s]*+\]', re.DOTALL)


@dataclass(frozen=True, slots=True, eq=False)
class Numbers:
    """A list of numbers: its integers, or what is wrong with it."""

    values: NDArray[np.int64]
    defect: str | None = None


def read_bytes(path: Path) -> bytes:
    """The content of a `.json` or gzip file (told by its first bytes), at most `MOST_BYTES`."""
    try:
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            source: Any = gzip.GzipFile(fileobj=file) if packed else file
            parts: list[bytes] = []
            size = 0
            while part := source.read(CHUNK):
                size += len(part)
                if size > MOST_BYTES:
                    raise InputError(f"{path}: the text is longer than {MOST_BYTES} bytes; expected an instance below")
                parts.append(part)
    except (EOFError, zlib.error, gzip.BadGzipFile) as e:
        raise InputError(f"{path}: expected a whole gzip file, found one that is damaged or cut short: {e}") from e
    except OSError as e:
        raise InputError(f"{path}: cannot be read: {e.strerror or e}") from e
    return b"".join(parts)


def decode(text: bytes, path: Path) -> Any:
    """The JSON value of `text`, its lists of numbers as `Numbers`.  InputError when it is not JSON."""
    lists: dict[bytes, int] = {}

    def cut(match: re.Match[bytes]) -> bytes:
        found = match[0]
        if found[0] == ord('"'):
            return b'"=' + found[1:]
        return b'"#%d"' % lists.setdefault(found, len(lists))

    skeleton = TOKEN.sub(cut, text)
    try:
        value = json.loads(skeleton.decode(), object_pairs_hook=_unique, parse_constant=_constant)
    except RecursionError:
        raise InputError(f"{path}: nested too deeply; an instance nests at most {MOST_DEPTH} levels") from None
    except (ValueError, UnicodeDecodeError) as e:
        raise InputError(f"{path}: not JSON: {_reason(text, e)}") from e
    parsed = _parse(list(lists))

    def rebuild(node: Any, depth: int) -> Any:
        if isinstance(node, str):
            return parsed[int(node[1:])] if node[0] == "#" else node[1:]
        if depth > MOST_DEPTH:
            raise InputError(f"{path}: nested too deeply; an instance nests at most {MOST_DEPTH} levels")
        if isinstance(node, list):
            return [rebuild(x, depth + 1) for x in node]
        if isinstance(node, dict):
            return {k[1:]: rebuild(x, depth + 1) for k, x in node.items()}
        return node

    return rebuild(value, 0)


def _parse(texts: list[bytes]) -> list[Numbers]:
    try:
        rows = json.loads(b"[" + b",".join(texts) + b"]")
    except ValueError:
        rows = None
    interned: dict[bytes, Numbers] = {}
    out = []
    for k, text in enumerate(texts):
        try:
            row = json.loads(text) if rows is None else rows[k]
            packed = array("q", row).tobytes()
        except ValueError:
            out.append(Numbers(np.zeros(0, np.int64), f"not JSON: {_shown(text)}"))
        except TypeError:
            out.append(Numbers(np.zeros(0, np.int64), f"an entry that is no integer in {_shown(text)}"))
        except OverflowError:
            out.append(Numbers(np.zeros(0, np.int64), f"an entry outside 64-bit integers in {_shown(text)}"))
        else:
            out.append(interned.setdefault(packed, Numbers(np.frombuffer(packed, np.int64))))
    return out


def _shown(text: bytes) -> str:
    line = text.decode(errors="replace")
    return line if len(line) <= SHOWN else f"{line[:SHOWN]}…"


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) < len(pairs):
        names = [k for k, _ in pairs]
        twice = next(k for k in names if names.count(k) > 1)
        raise ValueError(f"the key {twice[1:]!r} stands twice in one object")
    return out


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def _reason(text: bytes, error: ValueError) -> str:
    """Where the defect is in the text itself rather than in its skeleton, as long as reading it again is cheap."""
    if not isinstance(error, json.JSONDecodeError) or len(text) > CHUNK:
        return str(error)
    try:
        json.loads(text)
    except (ValueError, RecursionError) as e:
        return str(e)
    return str(error)
