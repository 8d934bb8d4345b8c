"""What a search leaves beside its plan: how the best step and the bound moved, and what less memory would cost.

It stands in a file of its own, since it differs from run to run, and equal plans are equal bytes."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["MomentDocument", "PointDocument", "SearchRecord"]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class MomentDocument(_Part):
    """After so many `seconds` of the search: the seconds of the best that was found, and those that nothing of what
    was searched by then takes less than (None: not known yet)."""

    seconds: float = Field(ge=0)
    best_s: float = Field(ge=0)
    bound_s: float | None = Field(default=None, ge=0)


class PointDocument(_Part):
    """A plan, or a configuration that treats all layers alike: one of the `front`, where that was asked for, or another
    one that was met."""

    kind: Literal["plan", "front", "met"]
    parallelism: str
    step_time_s: float = Field(ge=0)
    peak_memory_bytes: int = Field(ge=0)


class SearchRecord(_Part):
    """`plans`: digests of the plan files that it is of, the best first.  `seconds` that the search took; `steps`: of a
    step by the clock, `objectives`: of everything in sequence, where operators are laid out one by one.  `points`: step
    time and memory of all that was found."""

    schema_: Literal["planner.history/1"] = Field(alias="schema")
    plans: list[str]
    seconds: float | None = Field(default=None, ge=0)
    steps: list[MomentDocument] = []
    objectives: list[MomentDocument] = []
    points: list[PointDocument] = []
