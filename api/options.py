"""Options of a request, as query parameters named as on the command line, and as the options of a task."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, create_model

from planner.api.errors import Problem
from planner.api.jobs.requests import evaluation_options, search_options
from planner.api.parameters import Name, parameter
from planner.errors import UsageError
from planner.requests.evaluation import EvaluationRequest
from planner.requests.options import options_of
from planner.requests.search import MOST_DEVICES, SearchRequest
from planner.requests.values import bindings

__all__ = ["EvaluationQuery", "PlanQuery", "plan_query", "refuse_repeated"]


class _Query(BaseModel):
    """Unknown parameters are refused: a misspelt option would be lost without a word."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    webhook: Annotated[
        str | None,
        Field(
            min_length=8,
            max_length=1000,
            description="URL that is sent a signed request once the job has ended (docs/service.md).",
        ),
    ] = None

    def _given(self, *but: str) -> dict[str, Any]:
        given = self.model_dump(exclude_none=True, exclude_defaults=True, exclude={"name", "webhook", *but})
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


class _PlanQuery(_Query):
    """What to plan for; as the options of `planner search`."""

    devices: Annotated[int, Field(ge=1, le=MOST_DEVICES, description="Number of devices.", examples=[16])]
    name: Annotated[Name | None, Field(description="Name of the model in the plan; default: that of the file.")] = None

    def task_options(self) -> dict[str, Any]:
        """What the search gets; its defaults are left out, so that equal requests look equal.

        UsageError where options contradict each other, as far as that shows without the model.
        """
        given = self._given()
        _check_search(json.dumps(given, sort_keys=True))
        return given


def plan_query(request: type[SearchRequest] = SearchRequest) -> type[_PlanQuery]:
    """Query parameters for all options of a request that a service is asked for, read from its fields."""
    return create_model("PlanQuery", __base__=_PlanQuery, __doc__=_PlanQuery.__doc__, **_parameters(request))


def _parameters(request: type[Any]) -> dict[str, Any]:
    return {f.name: parameter(f) for f in options_of(request) if f.metadata["sent"]}


class _EvaluationQuery(_Query):
    """What to price: `strategy` with a model in the body, or `plan` by its id."""

    plan: Annotated[
        str | None, Field(json_schema_extra={"pattern": "^[0-9a-f]{32}$"}, description="Id of a plan, instead.")
    ] = None
    name: Annotated[Name | None, Field(description="Name of the model; default: that of the file.")] = None

    if TYPE_CHECKING:  # of the parameters that are read from the request's fields, those that are compared below
        devices: int | None
        strategy: str | None
        precision: str | None
        optimizer: str | None

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


if TYPE_CHECKING:
    PlanQuery = _PlanQuery
    EvaluationQuery = _EvaluationQuery
else:
    PlanQuery = plan_query()
    EvaluationQuery = create_model(
        "EvaluationQuery",
        __base__=_EvaluationQuery,
        __doc__=_EvaluationQuery.__doc__,
        **_parameters(EvaluationRequest),
    )


@lru_cache(maxsize=1024)
def _check_search(options: str) -> None:
    """UsageError as of `planner search`; the same options are not parsed again and again."""
    search_options(json.loads(options))
