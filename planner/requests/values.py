"""Values that requests are written with, and what they stand for."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from planner.errors import InputError, UsageError
from planner.nearest import did_you_mean
from planner.requests.kinds import refuse_kinds
from planner.status import show_progress
from planner.terminal import plain

if TYPE_CHECKING:
    from planner.cost_models import HardwareProfile
    from planner.planning.constraints import Constraints

__all__ = [
    "bindings",
    "byte_size",
    "cache_size",
    "constraints_of",
    "not_negative",
    "plan_file",
    "positive",
    "profile_of",
    "progress_to",
    "ranks",
    "seconds",
    "size_with_unit",
]

_UNITS = {"": 1, "b": 1, "k": 10**3, "kb": 10**3, "m": 10**6, "mb": 10**6, "g": 10**9, "gb": 10**9, "t": 10**12}
_UNITS |= {"tb": 10**12, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
_LEAST_BARE = 10**6  # bytes; less without a unit is meant otherwise
_COUNTED = re.compile(r"(?:\w+ )?(\d+) of (\d+)\b")  # progress that says how much there is


def positive(text: str) -> int:
    """argparse type: a positive integer."""
    if not text.isascii() or not text.isdigit() or int(text) < 1 or int(text) > 10**9:
        raise argparse.ArgumentTypeError(f"expected a positive integer, found {text!r}")
    return int(text)


def not_negative(text: str) -> int:
    """argparse type: an integer of at least zero."""
    if not text.isascii() or not text.isdigit() or int(text) > 10**9:
        raise argparse.ArgumentTypeError(f"expected an integer from 0 on, found {text!r}")
    return int(text)


def ranks(text: str) -> tuple[int, ...]:
    """argparse type: ranks with commas between them, each once."""
    parts = text.split(",")
    if not all(p.isdecimal() and len(p) < 8 for p in parts):
        raise argparse.ArgumentTypeError(f"expected ranks such as 3,7, found {text!r}")
    return tuple(dict.fromkeys(map(int, parts)))


def plan_file(text: str) -> Path:
    """argparse type: a plan.json, or the folder that `planner search` wrote it to."""
    path = Path(text)
    return path / "plan.json" if path.is_dir() else path


def byte_size(text: str) -> int:
    """`64GiB`, `80e9`, `512MB` → bytes; ArgumentTypeError."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]*)?(?:e[0-9]{1,2})?)\s*([a-z]*)\s*", text.lower())
    if match is None or match[2] not in _UNITS:
        raise argparse.ArgumentTypeError(f"expected a size such as 64GiB or 512MB, found {text!r}")
    size = int(float(match[1]) * _UNITS[match[2]])
    if size < 1:
        raise argparse.ArgumentTypeError(f"expected a size above zero, found {text!r}")
    return size


def size_with_unit(text: str) -> int:
    """argparse type: a size in bytes as people write it, who forget the unit of small numbers."""
    size = byte_size(text)
    if size < _LEAST_BARE and text.strip()[-1] in "0123456789.":
        meant = ", ".join(f"{text}{unit}" for unit in (("GiB", "MiB") if size < 1000 else ("MiB",)))
        raise argparse.ArgumentTypeError(
            f"expected a size with its unit, found {text!r}, which is bytes: write {meant} or {text}B"
        )
    return size


def seconds(text: str) -> float:
    """argparse type: a positive number of seconds."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 10**7:
        raise argparse.ArgumentTypeError(f"expected a positive number of seconds, such as 300, found {text!r}")
    return value


def cache_size() -> int:
    """Bytes that the plans kept on disk may take, from PLANNER_CACHE_SIZE (1GiB).  UsageError where that is no size."""
    text = os.environ.get("PLANNER_CACHE_SIZE")
    try:
        return byte_size(text or "1GiB")
    except argparse.ArgumentTypeError as e:
        raise UsageError(f"PLANNER_CACHE_SIZE: {e}") from e


def constraints_of(file: Path | None, pins: Sequence[str]) -> Constraints | None:
    """The file and the pins together, None where there are neither.  InputError, UsageError as of their parsers."""
    if file is None and not pins:
        return None
    from planner.planning.constraints import parse_pin, read_constraints

    parts = [] if file is None else [read_constraints(file)]
    parts += [parse_pin(text) for text in pins]
    whole = parts[0]
    for part in parts[1:]:
        whole += part
    return whole


def bindings(items: Sequence[str]) -> dict[str, int]:
    """`["batch=8"]` → sizes by name.  UsageError for anything else."""
    out: dict[str, int] = {}
    for item in items:
        name, separator, size = item.rpartition("=")
        if not separator or not name or not size.isascii() or not size.isdigit() or int(size) < 1:
            raise UsageError(f"--bind {item!r}: expected DIM=SIZE with a positive size, such as batch=8")
        if out.get(name, int(size)) != int(size):
            raise UsageError(f"--bind gives {name} two sizes, {out[name]} and {size}; keep one")
        out[name] = int(size)
    return out


def profile_of(name: str) -> HardwareProfile:
    """The profile of that name or file.  InputError where there is none or it is malformed; UsageError for a cluster of
    several kinds of devices."""
    from planner.cost_models import ProfileError, UnknownProfileError, load_profile, profile_names

    refuse_kinds(name)
    try:
        return load_profile(name)
    except UnknownProfileError as e:
        hint = did_you_mean(name, profile_names(), before="")
        reason = f"no such profile; {hint} (`planner hardware` lists all)" if hint else str(e)
        raise InputError(f"--hardware {name}: {reason}") from e
    except ProfileError as e:
        raise InputError(f"--hardware {name}: {e}") from e


def progress_to(quiet: bool) -> Callable[[str], None]:
    """Writes progress to standard error, where it does not disturb the result."""

    def say(line: str) -> None:
        counted = _COUNTED.match(line)
        drawn = show_progress(line, int(counted[1]) / int(counted[2]) if counted and int(counted[2]) else None)
        if not quiet and not (drawn and counted):
            print(plain(line, "\n"), file=sys.stderr, flush=True)

    return say
