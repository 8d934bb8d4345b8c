"""Operator families, ours and those of other packages: imported when what they register is first asked for.

A family is a module of `planner.operators`, or a folder with one module for each aspect of its operators:

    rule       how its tensors may be cut (`planner.rules`)
    shapes     element types and shapes of its results, where ONNX does not say, how its work is counted, and whether
               it is a loss or draws random numbers (`planner.frontends`)
    weights    which of its operands hold weights
    sizes      how it carries another batch
    local      how it is executed on arrays of any local shape (`planner.kernels`)
    split      how it is executed where it must know that it is split
    gradient   its vector-Jacobian product
    values     what it asks of the values of its operands, where they are drawn (`planner.verify`)
    torch      how PyTorch runs it
    onnx       the ONNX nodes of a rank where it is split
    mindspore  MindSpore's primitive for it (`planner.emit`)

A module of a folder may add something behind the aspect (`rule_flex`).  So the search of a plan imports rules alone.
Another package brings its operators by an entry point that names a module, which is imported for every aspect:

    [project.entry-points."planner.operators"]
    example = "example.operators"

The groups `planner.rules` and `planner.kernels` are those of packages that keep rules apart from how to execute them.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from importlib.metadata import entry_points
from typing import Final, Literal

from planner.errors import UsageError

__all__ = ["Aspect", "load_operators"]

Aspect = Literal[
    "rule", "shapes", "weights", "sizes", "local", "split", "gradient", "values", "torch", "onnx", "mindspore"
]  # fmt: skip

_FAMILIES: Final = "planner.operators"  # the package of ours, and the group of entry points of others
_APART: Final[dict[Aspect, str]] = {
    "rule": "planner.rules",
    "local": "planner.kernels",
    "split": "planner.kernels",
    "gradient": "planner.kernels",
}


@cache
def load_operators(aspect: Aspect) -> tuple[str, ...]:
    """Imports what all families register of one aspect, once; the names of the modules, in the order of their import.

    UsageError naming the entry point whose module does not import, or registers an operator that is registered already.
    """
    loaded = [_imported(name) for name in _modules(aspect)]
    for group in (_FAMILIES, *([_APART[aspect]] if aspect in _APART else [])):
        loaded += _of_other_packages(group)
    return tuple(loaded)


def _imported(name: str) -> str:
    importlib.import_module(name)
    return name


def _modules(aspect: Aspect) -> list[str]:
    found: list[str] = []
    for family in pkgutil.iter_modules(importlib.import_module(_FAMILIES).__path__, f"{_FAMILIES}."):
        if not family.ispkg:
            found.append(family.name)
            continue
        inside = pkgutil.iter_modules(importlib.import_module(family.name).__path__)
        names = (m.name for m in inside if m.name == aspect or m.name.startswith(f"{aspect}_"))
        found += [f"{family.name}.{name}" for name in names]
    return found


@cache
def _of_other_packages(group: str) -> tuple[str, ...]:
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
        loaded.append(entry.value)
    return tuple(loaded)
