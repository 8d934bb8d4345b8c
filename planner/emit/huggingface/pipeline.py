"""Pipeline stages as transformers cuts them: the layers evenly, whatever is left over to the last stage, what comes
before them to the first and what comes behind to the last; forward only (5.23, distributed/pipeline_parallel.py)."""

from __future__ import annotations

import re
from collections.abc import Mapping

from planner.emit.modules import owner
from planner.emit.names import Name
from planner.emit.scheme import Scheme
from planner.errors import InputError
from planner.planning.document import PlanDocument

__all__ = ["pipeline_size"]


def pipeline_size(plan: PlanDocument, names: Mapping[str, Name], scheme: Scheme) -> int:
    """InputError where the plan's stages are not those that transformers would make."""
    if scheme.stages == 1:
        return 1
    if plan.schedule.mode == "training":
        raise InputError(
            f"plan: trains in {scheme.stages} pipeline stages; transformers' pipeline runs forward only: search with "
            "--mode inference, or --stages 1"
        )
    if scheme.data > 1:
        raise InputError(
            f"plan: has {scheme.stages} pipeline stages and {scheme.data} data-parallel ranks; transformers does not "
            "combine them: search with --stages 1"
        )
    stage_of: dict[str, int] = {}
    for n, p in plan.parameters.items():
        for r in p.readers:
            if r.operator in plan.operators:
                stage_of.setdefault(owner(names[n].name), plan.operators[r.operator].stage)
    layers = {int(m[1]): s for name, s in stage_of.items() if (m := re.search(r"\.layers\.(\d+)\.", f".{name}."))}
    if not layers:
        raise InputError(
            "plan: no parameter belongs to a module `layers.N`, which is where transformers cuts a pipeline; give "
            "--names, or search with --stages 1"
        )
    count, each = max(layers) + 1, (max(layers) + 1) // scheme.stages
    for layer, stage in layers.items():
        made = min(layer // each, scheme.stages - 1) if each else scheme.stages - 1
        if made != stage:
            raise InputError(
                f"plan: layer {layer} of {count} is in stage {stage}; transformers puts it into stage {made}, layers "
                f"cut evenly into {scheme.stages}: search with other --stages"
            )
    return scheme.stages
