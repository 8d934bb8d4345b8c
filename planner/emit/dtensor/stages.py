"""Pipeline stages by module path: which stage runs which module, and where a stage begins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from planner.emit.modules import Modules, owner, weights_of
from planner.emit.names import Name
from planner.errors import InputError
from planner.planning.document import PlanDocument

__all__ = ["Split", "split_of_plan"]


@dataclass(frozen=True, slots=True)
class Split:
    """`stage_of`: module with parameters → stage.  `begins`: for every stage but the first the module that it begins
    with, as large as can be, for `torch.distributed.pipelining`'s split_spec.  `shared`: parameters that several stages
    read."""

    stage_of: Mapping[str, int]
    begins: tuple[str, ...]
    shared: tuple[str, ...]


def split_of_plan(plan: PlanDocument, names: Mapping[str, Name]) -> Split | None:
    """None for a plan of one stage.  InputError where a module would have to be cut, or a stage has none of its own."""
    if plan.schedule.stages == 1:
        return None
    found, weights = Modules.of_plan(plan, names).of_operator, weights_of(plan)
    owners = {owner(emitted.name) for emitted in names.values()}
    readers = {r.operator for p in plan.parameters.values() for r in p.readers}
    stage_of: dict[str, int] = {}
    for name, op in plan.operators.items():
        module = found.get(name, "")
        if name in weights or not module or (module not in owners and name not in readers):
            continue
        if stage_of.setdefault(module, op.stage) != op.stage:
            raise InputError(
                f"plan: module {module} runs in stage {stage_of[module]} and, at {name}, in stage {op.stage}; PyTorch "
                "splits a pipeline between modules: search with other --stages"
            )
    begins = []
    for stage in range(1, plan.schedule.stages):
        first = next((m for m, s in stage_of.items() if s == stage), None)
        if first is None:
            raise InputError(
                f"plan: no module with parameters runs in stage {stage}; PyTorch splits a pipeline between modules: "
                "search with other --stages"
            )
        begins.append(_largest(first, stage, stage_of))
    shared = tuple(
        names[n].name
        for n, p in plan.parameters.items()
        if len({plan.operators[r.operator].stage for r in p.readers if r.operator in plan.operators}) > 1
    )
    return Split(stage_of, tuple(begins), shared)


def _largest(module: str, stage: int, stage_of: Mapping[str, int]) -> str:
    """The outermost module around it of which nothing runs before this stage."""
    found = module
    while "." in found:
        outer = found.rpartition(".")[0]
        if any(s < stage for m, s in stage_of.items() if m.startswith(f"{outer}.")):
            break
        found = outer
    return found
