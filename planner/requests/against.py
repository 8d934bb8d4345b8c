"""What a search found beside what it is compared with: known configurations, priced for the same request, and plans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from planner.errors import InputError, PlannerError, UsageError
from planner.requests.comparison import Comparison, clock_of_plan, column_of, column_of_file
from planner.requests.search import SearchRequest
from planner.requests.values import plan_file

if TYPE_CHECKING:
    from planner.planning import PlanDocument
    from planner.report.diff import Column
    from planner.requests.cancel import Cancellation

__all__ = ["baselines", "beside"]

_NO_LIMIT: Final = 2**60  # bytes: a configuration that does not fit is compared, too, and is said not to


def baselines(texts: Sequence[str], request: SearchRequest, cancellation: Cancellation) -> list[Column]:
    """Each of `--against`: a plan, where there is such a file or folder, else a configuration as of `--strategy`.

    UsageError where it is neither; InputError where the file is no plan."""
    return [_plan(text) or _configuration(text, request, cancellation) for text in texts]


def beside(columns: Sequence[Column], found: PlanDocument, name: str, model: Path) -> Comparison:
    """What was found is the last column."""
    limit = found.cluster.memory_limit_bytes
    said = [_said(c, limit) for c in columns]
    return Comparison([*said, column_of(found, name, clock_of_plan(found, model))])


def _plan(text: str) -> Column | None:
    return column_of_file(plan_file(text)) if Path(text).exists() else None


def _configuration(text: str, request: SearchRequest, cancellation: Cancellation) -> Column:
    from planner.planning import PlanDocument
    from planner.requests.searcher import Searcher
    from planner.requests.watch import Silent

    wanted = SearchRequest(
        model=request.model,
        devices=request.devices,
        bind=request.bind,
        batch=request.batch,
        hardware=request.hardware,
        nodes=request.nodes,
        mode=request.mode,
        optimizer=request.optimizer,
        precision=request.precision,
        strategy=text,
        memory_limit=_NO_LIMIT,
    )
    try:
        answer = Searcher(wanted, None, None, cancellation, watch=Silent()).search(request.counts[0])
    except UsageError as e:
        raise UsageError(f"--against {text}: it is no plan that is there, and no configuration: {e}") from e
    except PlannerError as e:
        raise InputError(f"--against {text}: {e}") from e
    plan = PlanDocument.model_validate_json(answer.plans[0])
    return column_of(plan, text, clock_of_plan(plan, request.model))


def _said(column: Column, limit: int | None) -> Column:
    """A configuration that does not fit is called so; the limit that it was priced without is no difference."""
    plan = column.plan
    if plan.cluster.memory_limit_bytes != _NO_LIMIT:
        return column
    fits = limit is None or plan.cost.peak_memory_bytes <= limit
    cluster = plan.cluster.model_copy(update={"memory_limit_bytes": limit})
    words = column.words if fits else f"{column.words}; does not fit"
    return replace(column, plan=plan.model_copy(update={"cluster": cluster}), words=words)
