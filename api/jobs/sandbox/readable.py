"""What a child may read and run: Python, what is installed beside it, this package, and no file of anybody's."""

from __future__ import annotations

import contextlib
import os
import site
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from planner import version

__all__ = ["DEVICES", "SYSTEM", "programs", "without"]

# What libraries look at when they begin: the loader's cache, time zones, processors, this process.
SYSTEM: Final = tuple(
    Path(p)
    for p in ("/etc/ld.so.cache", "/etc/localtime", "/proc", "/sys/devices/system", "/dev/urandom", "/dev/random")
)
DEVICES: Final = (Path("/dev/null"), Path("/dev/zero"))
_LIBRARIES: Final = ("/usr/lib", "/usr/lib64", "/usr/share", "/usr/local/lib", "/lib", "/lib64", "/nix/store")


def programs(given: Iterable[str] = ()) -> tuple[Path, ...]:
    """Folders of code; `given`: those of PYTHONPATH.  The folder that a command was started in is none, though Python
    looks there too."""
    package = Path(version.__file__).resolve().parent
    found = [
        package,
        *((package / link).resolve() for link in ("api", "cost_models")),
        Path(sys.executable).resolve(),
        Path(sys.executable).absolute(),
        *(Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        *(Path(p) for p in [*site.getsitepackages(), *_LIBRARIES, *given]),
        Path(sys.prefix) / "pyvenv.cfg",
        Path(sys.base_prefix) / "lib",
        *_kernels(),
        *_brought(),
    ]
    if site.ENABLE_USER_SITE:
        found.append(Path(site.getusersitepackages()))
    return tuple(dict.fromkeys(_there(found)))


def _there(paths: Iterable[Path]) -> Iterator[Path]:
    """Those that are there, by their real paths; what this user cannot reach is none."""
    for path in paths:
        with contextlib.suppress(OSError, RuntimeError):  # RuntimeError: links in a circle
            yield path.resolve(strict=True)


def without(paths: Iterable[Path], hidden: Path) -> Iterator[Path]:
    """The paths, where `hidden` lies inside of one that one's entries but for it: what is granted cannot be taken away
    below."""
    hidden = hidden.resolve()
    for path in paths:
        if hidden == path:
            continue
        if not hidden.is_relative_to(path):
            yield path
            continue
        try:
            entries = sorted(path.iterdir())
        except OSError:
            continue
        yield from without((e for e in entries if not e.is_symlink()), hidden)


def _kernels() -> Iterator[Path]:
    """Where compiled kernels lie that were made on this machine: `planner.native.library`."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    yield base / "planner" / "kernels"


def _brought() -> Iterator[Path]:
    """Packages that bring operators, wherever they are installed."""
    for entry in entry_points(group="planner.operators"):
        try:
            spec = find_spec(entry.module.partition(".")[0])
        except (ImportError, ValueError):
            continue
        if spec is not None:
            yield from map(Path, spec.submodule_search_locations or [])
            if spec.origin is not None:
                yield Path(spec.origin)
