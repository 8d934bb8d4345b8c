"""How a plan is run, where it was made of a known configuration."""

from __future__ import annotations

from planner.clock import Configuration
from planner.errors import InputError, UsageError
from planner.ir import Graph
from planner.planning.document import PlanDocument
from planner.planning.pipeline import global_batch
from planner.planning.schemes import parse_strategy

__all__ = ["execution_of"]


def execution_of(plan: PlanDocument, graph: Graph) -> Configuration | None:
    """The configuration of the plan's `--strategy`, None where it has none; `graph`: of a micro-batch.

    InputError where it does not fit the plan's devices and samples.
    """
    asked = plan.search.request
    if asked is None or asked.strategy is None:
        return None
    samples = global_batch(graph) * plan.schedule.micro_batches
    s = plan.schedule
    try:
        return parse_strategy(
            asked.strategy, devices=plan.devices, batch=samples, precision=s.precision, optimizer=s.optimizer
        )
    except UsageError as e:
        raise InputError(f"plan: at search.request.strategy: expected one that fits the plan, found {e}") from e
