"""Pipeline stages as transformers cuts them: the layers evenly, whatever is left over to the last stage, what comes
before them to the first and what comes behind to the last; forward only (5.23, distributed/pipeline_parallel.py)."""

from __future__ import annotations

import re
from collections.abc import Mapping

from planner.emit.names import Name
from planner.emit.scheme import Scheme
from planner.errors import InputError
from planner.planning.document import PlanDocument

__all__ = ["pipeline_size", "transformers_stage"]


def pipeline_size(plan: PlanDocument, names: Mapping[str, Name], scheme: Scheme) -> int:
    """InputError where the plan's stages are not those that transformers would make."""
    if scheme.stages == 1:
        return 1
    if plan.schedule.mode == "training":
        raise InputError(
            f"plan: trains in {scheme.stages} pipeline stages; transformers' pipeline runs forward only: search with "
            "--mode inference, or --stages 1"
        )
    # 5.23.0 raises ValueError for the former, and KeyError as it looks for modules of other stages for the latter.
    for ranks, what in ((scheme.data, "data"), (scheme.tensor, "tensor")):
        if ranks > 1:
            raise InputError(
                f"plan: has {scheme.stages} pipeline stages and {ranks} {what}-parallel ranks; transformers cannot "
                "load them together: search with --stages 1"
            )
    stage_of = {
        (names[n].name, plan.operators[r.operator].stage)
        for n, p in plan.parameters.items()
        for r in p.readers
        if r.operator in plan.operators
    }
    layer_of = {
        name: int(found[1]) for name, _ in stage_of if (found := re.search(r"\.layers\.(\d{1,8})\.", f".{name}"))
    }
    if not layer_of:
        raise InputError(
            "plan: no parameter belongs to a module `layers.N`, which is where transformers cuts a pipeline; give "
            "--names, or search with --stages 1"
        )
    count = max(layer_of.values()) + 1
    for name, stage in sorted(stage_of):
        made = transformers_stage(layer_of.get(name), name, count, scheme.stages)
        # A tied table is read at both ends, where transformers has a copy each.
        if made != stage and not (name not in layer_of and stage in (0, scheme.stages - 1)):
            raise InputError(
                f"plan: {name} is in stage {stage}; transformers puts it into stage {made}, {count} layers cut evenly "
                f"into {scheme.stages}: search with other --stages"
            )
    return scheme.stages


def transformers_stage(layer: int | None, name: str, layers: int, stages: int) -> int:
    """Where transformers puts a parameter of a layer, or of none: what embeds to the first stage, the rest to the
    last."""
    if layer is None:
        return 0 if "embed" in name else stages - 1
    each = layers // stages
    return min(layer // each, stages - 1) if each else stages - 1
