"""A plan for the user's own PyTorch module: where every parameter is kept, how it is computed with, how inputs lie.

What happens between operators is DTensor's to decide: it propagates placements from parameters and inputs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from planner.clock import Configuration
from planner.emit.dtensor.boundaries import boundaries
from planner.emit.dtensor.fully import fully_sharded
from planner.emit.dtensor.module import module_text
from planner.emit.dtensor.placements import placements
from planner.emit.dtensor.stages import Split, split_of_plan
from planner.emit.emission import Emission
from planner.emit.hosts import Server
from planner.emit.launch import hosts_of, launch_scripts
from planner.emit.modules import owner
from planner.emit.names import Name
from planner.emit.uniform import Model, recomputes_layers
from planner.errors import InputError
from planner.ir import Layout
from planner.planning.document import PlanDocument
from planner.redistribute.steps import FREE

__all__ = ["emit_dtensor", "unsupported"]


def unsupported(c: Configuration, model: Model) -> str:
    """What of a uniform configuration a module of DTensors cannot express; empty where it can express all of it."""
    if c.zero > 1 and c.dp * c.cp > 1 and (c.zero == 2 or c.tp * c.cp * c.ep * c.pp > 1):
        return f"ZeRO {c.zero}"  # `fully_shard` alone frees what it has gathered
    return "" if recomputes_layers(c) else f"{c.recompute} recomputation of a part"


def emit_dtensor(plan: PlanDocument, names: Mapping[str, Name], *, servers: Sequence[Server] = ()) -> Emission:
    """`servers`: from a hosts file.

    InputError where a parameter has no one layout to compute with, or one that DTensor cannot express.
    """
    _check_convolutions(plan)
    mesh = plan.mesh
    parameters: dict[str, tuple[Any, Any]] = {}
    for name, p in plan.parameters.items():
        emitted = names[name]
        # A bias added to a pending sum is read as one (by one rank, zeros on the others); DTensor sees to that itself.
        reads = list(dict.fromkeys(Layout(x.layout().dims) for x in p.compute))
        if len(reads) != 1:
            readers = ", ".join(r.operator for r in p.readers) or "several operators"
            raise InputError(
                f"plan: parameter {name} is computed with as {' and as '.join(map(str, reads))} (read by {readers}); a "
                "DTensor is in one layout at a time: search with --target dtensor, or pin `compute`"
            )
        parameters[emitted.name] = (
            _words(plan, f"parameter {name}", _oriented(p.stored.layout(), emitted)),
            _words(plan, f"parameter {name}", _oriented(reads[0], emitted)),
        )
    placed = {n: None if x.layout is None else _place(plan, x.layout.layout()) for n, x in plan.inputs.items()}
    inputs = {n: [None] * len(mesh.axes) if x is None else x[1] for n, x in placed.items()}
    whole = [n for n, x in plan.inputs.items() if x.layout is not None and placed[n] is None]
    modules = {m: (_place(plan, b.input), _place(plan, b.result)) for m, b in boundaries(plan, names).items()}
    document: dict[str, Any] = {
        "schema": "planner.dtensor/1",
        "model": plan.model.name,
        "mesh": {"sizes": list(mesh.shape), "names": list(mesh.names)},
        "parameters": {n: {"kept": kept, "computed": computed} for n, (kept, computed) in parameters.items()},
        "inputs": inputs,
        "modules": {
            m: {"input": before and before[1], "result": after and after[1]} for m, (before, after) in modules.items()
        },
    }
    split, fully = split_of_plan(plan, names), fully_sharded(plan, names)
    if split is not None:
        document["pipeline"] = {
            "stages": plan.schedule.stages,
            "micro_batches": plan.schedule.micro_batches,
            "stage_of": split.stage_of,
            "begins": split.begins,
            "shared": split.shared,
        }
    if fully is not None:
        document["fully_shard"] = {"replicas": fully.replicas, "shards": fully.shards, "blocks": fully.blocks}
    module = module_text(plan, parameters, inputs, modules, fully, split, _planned_bytes(plan))
    files = {
        "parallel_plan.json": (json.dumps(document, indent=1) + "\n").encode(),
        "parallel.py": module.encode(),
        **launch_scripts(hosts_of(plan, servers)),
    }
    unknown = sorted({owner(n) for n in parameters} - set(modules))
    return Emission(files, tuple(_lost(plan, split, unknown, whole)))


def _planned_bytes(plan: PlanDocument) -> int | None:
    """What the plan's collectives work on in a step; None where they are not the same in every pass, or stages send."""
    if plan.schedule.stages > 1 or plan.schedule.micro_batches > 1:
        return None
    steps = sum(s.bytes for r in plan.redistributions for s in r.steps if s.kind not in FREE)
    return steps + sum(i.bytes * i.count for op in plan.operators.values() for i in op.inner)


def _lost(plan: PlanDocument, split: Split | None, unknown: Sequence[str], whole: Sequence[str]) -> list[str]:
    planned = _planned_bytes(plan)
    out = [
        f"how {len(plan.operators)} operators are split, and {len(plan.redistributions)} redistributions: between the "
        "ends of modules DTensor derives them in its own way, and moved 1.1 to 6.7 times the planned bytes where that "
        f"was measured{'' if planned is None else f' (the plan: {planned:,} bytes a step)'}; Moved in parallel.py "
        "counts them; --target torch and `planner run` execute the plan to the letter"
    ]
    if unknown:
        out.append(
            f"how data enters and leaves modules that no operator of the plan names as its own ({len(unknown)}: "
            f"{', '.join(map(repr, unknown[:4]))}{', …' if len(unknown) > 4 else ''}): DTensor decides there; where "
            "--names differ from the operators' module paths, that is all of them"
        )
    if whole:
        out.append(
            f"layouts of inputs that DTensor cannot express; these inputs are given whole: {', '.join(whole[:4])}"
        )
    if split is not None:
        out.append(
            f"the schedule ({plan.schedule.pass_order}) of {plan.schedule.micro_batches} micro-batches: one of "
            "torch.distributed.pipelining"
        )
        if split.shared:
            out.append(
                f"{', '.join(split.shared[:4])} belong(s) to several stages: each has a copy; add up their gradients"
            )
    elif plan.schedule.micro_batches > 1:
        out.append(f"{plan.schedule.micro_batches} micro-batches: accumulate gradients over as many")
    if plan.schedule.recompute:
        out.append(f"{len(plan.schedule.recompute)} recomputed blocks: wrap them in torch.utils.checkpoint")
    return out


def _check_convolutions(plan: PlanDocument) -> None:
    """DTensor (2.13) computes a convolution of divided channels or positions part by part, as if they were all."""
    sizes = plan.mesh.sizes
    for name, op in plan.operators.items():
        if not op.type.startswith("Conv"):
            continue
        data, *weights = (x.dims if x is not None else [] for x in op.operands[:3])
        divided = {a for dims in (data[1:], *weights) for d in dims for a in d if sizes[a] > 1}
        if divided:
            raise InputError(
                f"plan: {name} ({op.type}) is divided along channels or positions, by {'.'.join(sorted(divided))}; "
                "DTensor's convolutions are right for divided samples alone: pin it so, or execute the plan by "
                "`planner run`"
            )


def _oriented(layout: Layout, emitted: Name) -> Layout:
    return Layout(layout.dims[::-1], layout.partial) if emitted.transposed else layout


def _place(plan: PlanDocument, layout: Layout | None) -> tuple[int, list[int | None]] | None:
    """None where DTensor cannot express it: there it goes its own way."""
    if layout is None:
        return None
    try:
        return len(layout.dims), placements(layout, plan.mesh)
    except ValueError:
        return None


def _words(plan: PlanDocument, what: str, layout: Layout) -> list[int | None]:
    try:
        return placements(layout, plan.mesh)
    except ValueError as e:
        raise InputError(f"plan: {what}: {e}; pin its layout, or give --mesh another order") from e
