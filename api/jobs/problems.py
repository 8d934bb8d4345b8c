"""Problem documents (RFC 9457) of work that failed: they stand in a job's `error` and in answers."""

from __future__ import annotations

from typing import Any, Final

__all__ = ["PROBLEMS", "URN", "problem"]

URN: Final = "urn:planner:problem:"

# name → (HTTP status, title)
PROBLEMS: Final[dict[str, tuple[int, str]]] = {
    "usage": (422, "An option is malformed, or contradicts another"),
    "input-invalid": (422, "The model, plan or constraints cannot be understood"),
    "cannot-fit": (422, "No plan fits the memory of a device"),
    "no-plan": (422, "The search ended without a plan"),
    "target-refuses": (422, "The target cannot express this plan"),
    "verification-failed": (500, "The plan computes other numbers than the model"),
    "child-memory": (422, "The computation needs more memory than one request may have"),
    "child-cpu": (422, "The computation needs more processor time than one request may have"),
    "child-wall": (422, "The computation takes longer than one request may"),
    "child-disk": (422, "The computation writes more than one request may"),
    "child-processes": (422, "The computation starts more processes than one request may"),
    "child-died": (500, "The computation ended several times without an answer"),
    "result-too-large": (422, "The result is larger than allowed"),
    "storage-full": (507, "No space is left for the result"),
    "input-lost": (500, "A stored input is damaged or gone"),
    "internal": (500, "A fault of the planner"),
}


def problem(name: str, detail: str, **more: Any) -> dict[str, Any]:
    """The document; `more` are members of its own."""
    status, title = PROBLEMS[name]
    return {"type": URN + name, "title": title, "status": status, "detail": detail, **more}
