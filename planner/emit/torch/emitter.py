"""A plan for the user's own PyTorch module, run by `planner.torch`: the plan, the model, and the function between them.

What is computed and communicated is the plan's program and nothing else, so that little is lost here.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from planner.clock import Configuration
from planner.emit.emission import Emission
from planner.emit.hosts import Server
from planner.emit.launch import hosts_of, launch_scripts
from planner.emit.torch.model import kept_model
from planner.emit.torch.module import module_text
from planner.emit.uniform import Model
from planner.errors import InputError
from planner.ir import Graph
from planner.planning.document import PlanDocument
from planner.planning.execution import runs_blocks_again
from planner.planning.plan_file import plan_text

__all__ = ["emit_torch", "unsupported"]

MODULE: Final = "parallel.py"


def unsupported(c: Configuration, model: Model) -> str:
    """What of a uniform configuration our runtime cannot run; empty where it runs all."""
    if c.recompute != "none" and not runs_blocks_again(c):
        return f"{c.recompute} recomputation of a part"  # the program has whole blocks that run again, or none
    return ""


def emit_torch(plan: PlanDocument, graph: Graph, model: Path, *, servers: Sequence[Server] = ()) -> Emission:
    """`graph`: of `model`, the file that was planned, with or without weights; `servers`: from a hosts file.

    InputError where the plan is not of a training step, or its graph ends in no loss.
    """
    if plan.schedule.mode != "training":
        raise InputError(
            f"plan: it is for {plan.schedule.mode}, and --target torch writes a training step; search with --mode "
            "training, or emit for another target"
        )
    if graph.loss is None:
        raise InputError(
            f"plan: the graph of {plan.model.name} ends in no loss, and nothing can be trained without one; export a "
            "module that returns its loss, or plan the module itself with planner.torch.plan(…, loss=…)"
        )
    files = {
        MODULE: module_text(plan, graph).encode(),
        "plan.json": plan_text(plan).encode(),
        **kept_model(model, graph),
        **launch_scripts(hosts_of(plan, servers)),
    }
    return Emission(files, tuple(_lost(plan)))


def _lost(plan: PlanDocument) -> list[str]:
    """What runs otherwise than the predicted time counts on."""
    if plan.schedule.copies == 1:
        return []
    return [
        f"that collectives of one copy run beside the operators of another: the {plan.schedule.copies} copies of a "
        "micro-batch run one behind the other"
    ]
