"""Files that runtimes load, made from a plan, and such files read back; one package per target.

Names are loaded when they are first used: a module inside, such as one of a format, costs nothing but itself.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from planner.emit.emission import Emission
    from planner.emit.names import Name, NameRules, read_names
    from planner.emit.registry import FORMATS, TARGETS, Given, check_devices, emit, read, unsupported

__all__ = [
    "FORMATS",
    "TARGETS",
    "Emission",
    "Given",
    "Name",
    "NameRules",
    "check_devices",
    "emit",
    "read",
    "read_names",
    "unsupported",
]

_HOME: Final = {
    "Emission": "emission", "Name": "names", "NameRules": "names", "read_names": "names", "FORMATS": "registry",
    "TARGETS": "registry", "Given": "registry", "check_devices": "registry", "emit": "registry", "read": "registry",
    "unsupported": "registry",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
