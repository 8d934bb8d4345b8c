"""Options of a request, as query parameters named as on the command line, and as the options of a task."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from api.errors import Problem
from api.jobs.requests import evaluation_options, search_options
from cost_models import profile_names
from planner.errors import UsageError
from planner.requests.search import MOST_DEVICES
from planner.requests.values import bindings
from planner.targets import Target

__all__ = ["EvaluationQuery", "PlanQuery", "refuse_repeated"]

Count = Annotated[int, Field(ge=1, le=10**9)]
Size = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,15}(\.[0-9]{1,6})?([kKmMgGtT]([iI]?[bB])?|[bB])?$")]
Binding = Annotated[str, StringConstraints(pattern=r"^[^= \x00-\x1f\x7f]{1,100}=[1-9][0-9]{0,8}$")]
Text = Annotated[str, StringConstraints(min_length=1, max_length=1000, pattern=r"^[^\x00-\x1f\x7f]+$")]
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,99}$")]
Hardware = Annotated[str, Field(json_schema_extra={"enum": list(profile_names())})]


class _Query(BaseModel):
    """Unknown parameters are refused: a misspelt option would be lost without a word."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    def _given(self, *but: str) -> dict[str, Any]:
        given = self.model_dump(exclude_none=True, exclude_defaults=True, exclude={"name", *but})
        if "bind" in given:
            bindings(given["bind"])
            given["bind"] = sorted(set(given["bind"]))
        return given


def refuse_repeated(given: Iterable[str], model: type[_Query]) -> None:
    """Problem where a name stands twice that has one value: all but one of them would be lost without a word."""
    lists = {name for name, field in model.model_fields.items() if isinstance(field.default, list)}
    repeated = sorted(name for name, count in Counter(given).items() if count > 1 and name not in lists)
    if repeated:
        errors = [{"in": "query", "name": name[:200], "detail": "it is given more than once"} for name in repeated]
        raise Problem("validation", f"{', '.join(repeated)[:200]}: given more than once", errors=errors)


class PlanQuery(_Query):
    """What to plan for; as the options of `planner search`."""

    devices: Annotated[int, Field(ge=1, le=MOST_DEVICES, description="Number of devices.", examples=[16])]
    batch: Annotated[Count | None, Field(description="Global batch; default: the model's own.")] = None
    hardware: Annotated[Hardware, Field(description="A name of GET /v1/hardware.")] = "a100-80"
    mode: Annotated[
        Literal["training", "inference"] | None, Field(description="Default: training where there is a loss.")
    ] = None
    mesh: Annotated[
        str | None,
        StringConstraints(pattern=r"^[1-9][0-9]{0,4}(x[1-9][0-9]{0,4}){0,3}$"),
        Field(description="Only this logical mesh, such as 2x8; default: all of one and two axes."),
    ] = None
    nodes: Annotated[Count | None, Field(description="Servers; default: as many as full servers need.")] = None
    memory_limit: Annotated[
        Size | None, Field(description="Per device, such as 64GiB; default: what the profile leaves.")
    ] = None
    optimizer: Annotated[Literal["adam", "momentum", "sgd"], Field()] = "adam"
    precision: Annotated[Literal["bf16", "fp16", "fp32"], Field()] = "bf16"
    recompute: Annotated[
        Literal["auto", "none", "blocks"], Field(description="Run equal layers again in the backward pass.")
    ] = "auto"
    stages: Annotated[int, Field(ge=1, le=MOST_DEVICES, description="Pipeline stages.")] = 1
    micro_batches: Annotated[Count | None, Field(description="Parts of the batch, one after the other.")] = None
    bind: Annotated[
        list[Binding], Field(max_length=50, description="Sizes of symbolic dimensions, DIM=SIZE; may be repeated.")
    ] = []
    pin: Annotated[list[Text], Field(max_length=200, description="As `planner search --pin`; may be repeated.")] = []
    strategy: Annotated[
        Text | None, Field(description="Pin a known configuration: megatron:tp=4,pp=2,micro_batch=1, fsdp, …")
    ] = None
    risk: Annotated[
        Literal["expected", "upper"],
        Field(description="upper: of uniform configurations, the one whose step most likely stays below the least."),
    ] = "expected"
    space: Annotated[
        Literal["whole", "operators"] | None,
        Field(description="whole: stages, micro-batches, ZeRO and recomputation, too; default: where memory is short."),
    ] = None
    solver: Annotated[Literal["auto", "dp", "ilp"], Field()] = "auto"
    time_limit: Annotated[float | None, Field(gt=0, le=86400, description="Seconds for the whole search.")] = None
    target: Annotated[Target, Field(description="Only plans that this runtime can express.")] = "any"
    name: Annotated[Name | None, Field(description="Name of the model in the plan; default: that of the file.")] = None

    top_k: Annotated[int, Field(ge=1, le=16, description="The best plan of each of so many meshes.")] = 1
    reproducible: Annotated[bool, Field(description="No limits in seconds: the same bytes every time.")] = False

    def task_options(self) -> dict[str, Any]:
        """What the search gets; its defaults are left out, so that equal requests look equal.

        UsageError where options contradict each other, as far as that shows without the model.
        """
        given = self._given()
        _check_search(json.dumps(given, sort_keys=True))
        return given


class EvaluationQuery(_Query):
    """What to price: `strategy` with a model in the body, or `plan` by its id."""

    strategy: Annotated[
        Text | None, Field(description="ddp, fsdp, megatron:tp=8,pp=4, …: docs/evaluate.md lists them.")
    ] = None
    plan: Annotated[
        str | None, Field(json_schema_extra={"pattern": "^[0-9a-f]{32}$"}, description="Id of a plan, instead.")
    ] = None
    devices: Annotated[int | None, Field(ge=1, le=10**6, description="Of a plan: its own.")] = None
    batch: Annotated[Count | None, Field(description="Global batch; default: the model's own.")] = None
    hardware: Annotated[
        Hardware | None, Field(description="A name of GET /v1/hardware; default: a100-80, of a plan its own.")
    ] = None
    precision: Annotated[Literal["bf16", "fp16", "fp32"] | None, Field(description="Of a plan: its own.")] = None
    optimizer: Annotated[Literal["adam", "momentum", "sgd"] | None, Field(description="Of a plan: its own.")] = None
    memory_limit: Annotated[Size | None, Field()] = None
    bind: Annotated[list[Binding], Field(max_length=50)] = []
    name: Annotated[Name | None, Field(description="Name of the model; default: that of the file.")] = None

    def task_options(self) -> dict[str, Any]:
        """What the evaluation gets.  UsageError where options contradict each other."""
        if (self.strategy is None) == (self.plan is None):
            raise UsageError("give either strategy, with a model in the body, or plan, the id of one")
        if self.plan is not None and (self.precision or self.optimizer):
            raise UsageError("precision and optimizer go with strategy; a plan says its own")
        if self.strategy is not None and self.devices is None:
            raise UsageError("strategy needs devices")
        given = self._given("plan")
        evaluation_options(given, plan=self.plan is not None)
        return given


@lru_cache(maxsize=1024)
def _check_search(options: str) -> None:
    """UsageError as of `planner search`; the same options are not parsed again and again."""
    search_options(json.loads(options))
