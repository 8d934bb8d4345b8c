"""Rules that other packages bring: entry points of the group `planner.rules`.

    [project.entry-points."planner.rules"]
    example = "example.sharding"

The module is imported once, before the first rule is looked up, and registers what it holds with `planner.rules.rule`
and `planner.rules.opaque`.  Modules of the group `planner.kernels` are imported before the first operator is executed
and say how: `planner.verify.kernels.local_kernel`.
"""

from __future__ import annotations

import importlib
from functools import cache
from importlib.metadata import entry_points

from planner.errors import UsageError

__all__ = ["load_plugins"]


@cache
def load_plugins(group: str) -> tuple[str, ...]:
    """Imports the modules of a group of entry points, once; their names.

    UsageError naming the entry point whose module does not import, or registers an operator that has a rule already.
    """
    loaded = []
    for entry in sorted(entry_points(group=group), key=lambda e: e.name):
        try:
            importlib.import_module(entry.value)
        except Exception as error:
            origin = f" of {entry.dist.name} {entry.dist.version}" if entry.dist is not None else ""
            raise UsageError(
                f"entry point {entry.name} = {entry.value!r}{origin} in the group {group} cannot be loaded: "
                f"{type(error).__name__}: {error}; mend or uninstall that package"
            ) from error
        loaded.append(entry.name)
    return tuple(loaded)
