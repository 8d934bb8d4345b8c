"""Options of a task as requests, which say what is right.

No option may name a file of this machine: profiles go by the names of packaged ones, constraints come as an input.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from planner.errors import UsageError

if TYPE_CHECKING:
    from planner.requests.evaluation import EvaluationRequest
    from planner.requests.search import SearchRequest

__all__ = ["evaluation_options", "model_file", "search_options"]

CONSTRAINTS: Final = "constraints.yaml"
NAME_BYTES: Final = 120


def search_options(options: Mapping[str, Any], *, constraints: bool = False) -> SearchRequest:
    """What a plan task asks for; `name` is the model's.

    UsageError, in the words of the command line.
    """
    from planner.requests.search import SearchRequest

    request = SearchRequest.sent(model_file(options), _given(options), Path(CONSTRAINTS) if constraints else None)
    request.check()
    if len(request.counts) > 1:
        raise UsageError(f"--devices {request.devices}: expected one number of devices; ask for each on its own")
    return request


def evaluation_options(options: Mapping[str, Any], *, plan: bool = False) -> EvaluationRequest:
    """What an evaluation task asks for.  UsageError, in the words of the command line."""
    from planner.requests.evaluation import EvaluationRequest

    return EvaluationRequest.sent(model_file(options), _given(options), Path("plan.json") if plan else None)


def model_file(options: Mapping[str, Any]) -> Path:
    """What the model's file is called while it is worked on: plans have its stem as the model's name.  UsageError."""
    name = str(options.get("name", "model"))
    if not name or len(name.encode("utf-8", "replace")) > NAME_BYTES or any(c in "/\0" for c in name):
        raise UsageError(f"name: expected 1 to {NAME_BYTES} bytes without a slash, found {name[:NAME_BYTES]!r}")
    return Path(f"./{name}.onnx")


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a task but for the model's name."""
    from planner.cost_models import profile_names

    hardware = options.get("hardware")
    if hardware is not None and hardware not in profile_names():
        raise UsageError(f"hardware {hardware!r}: no such profile; there are {', '.join(profile_names())}")
    return {name: value for name, value in options.items() if name != "name" and value is not None}
