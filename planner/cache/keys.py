"""What an answer depends on, as digests: files, values, and the code that computes it."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
from collections.abc import Iterator
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, version
from pathlib import Path
from typing import Any

__all__ = ["digest_of", "file_digest", "source_digest"]

PACKAGES = ("planner",)
NO_SAY = frozenset(("planner.api",))  # the service hands plans on
LIBRARIES = ("numpy", "onnx", "ortools")
PLUGINS = ("planner.operators", "planner.rules", "planner.kernels")  # entry points whose code has a say in plans
SOURCES = frozenset((".py", ".toml", ".json", ".c", ".h"))


def file_digest(path: Path) -> str:
    """SHA-256 of the bytes.  OSError where the file cannot be read, or is a pipe or a device, which may never end."""
    if path.exists() and not path.is_file():
        raise OSError(f"{path} is not a regular file")
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_of(value: Any) -> str:
    """SHA-256 of a JSON value, whatever the order of its keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def source_digest() -> str:
    """Digest of the code: the sources and data files of this package without its service, of every package that brings
    operators, rules or kernels, and the versions of the libraries beneath.  Contents count, not times: machines that
    run the same code agree on it."""
    plugins = sorted((e for group in PLUGINS for e in entry_points(group=group)), key=lambda e: (e.group, e.name))
    folders = {f for name in (*PACKAGES, *(e.value.partition(".")[0] for e in plugins)) for f in _folders(name)}
    h = hashlib.sha256()
    for name in LIBRARIES:
        h.update(f"{name} {_version(name)}\n".encode())
    for entry in plugins:
        h.update(f"{entry.group} {entry.name} {entry.value} {_distribution(entry)}\n".encode())
    for folder in sorted(folders):
        for file in _sources(folder):
            content = file.read_bytes()
            h.update(f"{file.relative_to(folder.parent)} {len(content)}\n".encode())
            h.update(content)
    return h.hexdigest()


def _folders(package: str) -> list[Path]:
    """Where a top-level package or module lies; finding it does not import it."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return []
    if spec is None:
        return []
    if spec.submodule_search_locations:
        return [Path(p) for p in spec.submodule_search_locations]
    return [Path(spec.origin)] if spec.origin else []


def _sources(place: Path) -> Iterator[Path]:
    if place.is_file():
        yield place
        return
    found: list[Path] = []
    seen: set[tuple[int, int]] = set()  # folders: a package of somebody else's may hold a link to one above it
    for folder, below, names in os.walk(place, followlinks=True):  # in a checkout, `cost_models` is a link
        here = Path(folder)
        state = here.stat()
        if (state.st_dev, state.st_ino) in seen:
            below.clear()
            continue
        seen.add((state.st_dev, state.st_ino))
        below[:] = sorted(n for n in below if ".".join((here / n).relative_to(place.parent).parts) not in NO_SAY)
        found.extend(here / n for n in names if Path(n).suffix in SOURCES)
    yield from sorted(found)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "-"


def _distribution(entry: EntryPoint) -> str:
    return "-" if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"
