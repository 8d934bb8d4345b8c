"""Graph-level auto-parallel planner: an ONNX graph in, a verified parallel strategy out.

    import planner

    model = planner.build("gpt", layers=4)
    plan = planner.search(model, devices=8, hardware="h100")
    plan.emit("megatron", "out/")

Functions are loaded when they are first used, so that importing this package costs nothing; `dir(planner)` lists them,
and docs/python.md describes them.
"""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from planner.errors import (
    InfeasibleError,
    InputError,
    NoPlanError,
    OptionError,
    PlannerError,
    UsageError,
    VerificationError,
)
from planner.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable

    from planner.ir import Graph
    from planner.library.building import build, load
    from planner.library.comparing import Diff
    from planner.library.emitting import Emission
    from planner.library.evaluating import Evaluation, evaluate
    from planner.library.explaining import Explanation
    from planner.library.functions import diff, emit, explain, report, verify
    from planner.library.machine import Machine, machines
    from planner.library.model import Model
    from planner.library.plan import Plan, load_plan
    from planner.library.progress import Progress
    from planner.library.reading import read
    from planner.library.reporting import Report
    from planner.library.searching import search
    from planner.library.table import Table
    from planner.library.verifying import Verification
    from planner.requests.cancel import Cancellation

    capture: Callable[..., Model]  # of `planner.torch`, which stands above the packages that import this one

# Read when ONNX Runtime is imported, which then sends nothing home.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"

__all__ = [
    "Cancellation",
    "Diff",
    "Emission",
    "Evaluation",
    "Explanation",
    "Graph",
    "InfeasibleError",
    "InputError",
    "Machine",
    "Model",
    "NoPlanError",
    "OptionError",
    "Plan",
    "PlannerError",
    "Progress",
    "Report",
    "Table",
    "UsageError",
    "Verification",
    "VerificationError",
    "__version__",
    "build",
    "capture",
    "diff",
    "emit",
    "evaluate",
    "explain",
    "load",
    "load_plan",
    "machines",
    "read",
    "report",
    "search",
    "verify",
]

# Name → the module that has it.
_HOME: Final = {
    "Cancellation": "planner.requests.cancel",
    "Diff": "planner.library.comparing",
    "Emission": "planner.library.emitting",
    "Evaluation": "planner.library.evaluating",
    "Explanation": "planner.library.explaining",
    "Graph": "planner.ir",
    "Machine": "planner.library.machine",
    "Model": "planner.library.model",
    "Plan": "planner.library.plan",
    "Progress": "planner.library.progress",
    "Report": "planner.library.reporting",
    "Table": "planner.library.table",
    "Verification": "planner.library.verifying",
    "build": "planner.library.building",
    "capture": "planner.torch.graphs",
    "diff": "planner.library.functions",
    "emit": "planner.library.functions",
    "evaluate": "planner.library.evaluating",
    "explain": "planner.library.functions",
    "load": "planner.library.building",
    "load_plan": "planner.library.plan",
    "machines": "planner.library.machine",
    "read": "planner.library.reading",
    "report": "planner.library.functions",
    "search": "planner.library.searching",
    "verify": "planner.library.functions",
}


class _Package:
    """A package inside that is public by its own name, imported when it is first asked for."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, package: ModuleType | None, _kind: type | None = None) -> Any:
        return self if package is None else importlib.import_module(f"{package.__name__}.{self.name}")

    def __set__(self, package: ModuleType, value: Any) -> None:
        """Python binds a package in the one that holds it when it is imported: it is found without that."""


class _Public:
    """A public name, loaded when it is first asked for.

    Some are functions with the name of a package inside (`search`, `report`).  Importing such a package would put it in
    the function's place; here the function stays, and the package is reached as `from planner.search import ...`.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.value: Any = None

    def __get__(self, package: ModuleType | None, _kind: type | None = None) -> Any:
        if package is None:
            return self
        if self.value is None:
            self.value = getattr(importlib.import_module(_HOME[self.name]), self.name)
        return self.value

    def __set__(self, package: ModuleType, value: Any) -> None:
        if not (isinstance(value, ModuleType) and value.__name__ == f"{package.__name__}.{self.name}"):
            self.value = value


sys.modules[__name__].__class__ = type(
    "_Package",
    (ModuleType,),
    {name: _Public(name) for name in _HOME} | {name: _Package(name) for name in ("checkpoint", "torch")},
)


def __dir__() -> list[str]:
    return sorted(__all__)
