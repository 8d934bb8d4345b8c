"""What plan.json says of the search that made it: what was asked for, what was tried, and how it ended."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    SerializerFunctionWrapHandler,
    model_serializer,
)

from planner.search.solvers import SOLVERS, SolverName
from planner.targets import Target

__all__ = ["CandidateDocument", "FileDocument", "RequestDocument", "SearchDocument"]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class CandidateDocument(_Part):
    mesh: str
    recompute: bool = False
    status: str
    objective_s: float | None
    bound_s: float


class FileDocument(_Part):
    """A file that was named, with its text: the request is whole without it."""

    name: str
    text: str


def _known(solver: SolverName) -> SolverName:
    if solver not in SOLVERS:
        raise ValueError(f"expected one of {', '.join(SOLVERS)}")
    return solver


class RequestDocument(_Part):
    """What was asked, in the words of `planner search`: what is None was left to its default.

    memory_limit   bytes per device
    time_limit     seconds, only where it may have cut the search short
    profile        the file of a hardware that is not packaged
    constraints    the file, or the pins that a plan or another system's strategy came to
    space          only where it was given; else where memory decides
    options        those that have no key of their own here and were not left to their default
    reproducible   nothing else had a say: no time limit, no cancellation, no plan to begin with
    """

    devices: int = Field(ge=1)
    hardware: str
    profile: FileDocument | None = None
    nodes: int | None = None
    mesh: str | None = None
    mode: Literal["training", "inference"] | None = None
    memory_limit: int | None = None
    optimizer: Literal["adam", "momentum", "sgd"] = "adam"
    precision: Literal["bf16", "fp16", "fp32"] = "bf16"
    recompute: Literal["auto", "none", "blocks"] = "auto"
    stages: int = Field(default=1, ge=1)
    micro_batches: int | None = None
    solver: Annotated[SolverName, AfterValidator(_known)] = "auto"
    target: Target = "any"
    strategy: str | None = None
    constraints: FileDocument | None = None
    pins: list[str] = []
    bind: dict[str, int] = {}
    batch: int | None = None
    time_limit: float | None = None
    space: Literal["whole", "operators"] | None = None
    options: dict[str, JsonValue] = {}
    reproducible: bool = True

    @model_serializer(mode="wrap")
    def _without_what_was_not_said(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """As plans were written before there was a choice, or a further option."""
        written: dict[str, Any] = write(self)
        if self.space is None:
            written.pop("space", None)
        if not self.options:
            written.pop("options", None)
        return written


class SearchDocument(_Part):
    version: str
    status: str
    solver: str
    candidates: list[CandidateDocument]
    operators_replicated_for_want_of_a_rule: list[str]
    request: RequestDocument | None = None
