"""What a step returns: values whole on every rank of their stage, and the loss on every rank of every stage."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from planner.frontends.resized.samples import loss_over_samples
from planner.ir import DeviceMesh, Graph, Layout
from planner.runtime.cells import Taken
from planner.runtime.collectives import all_gather, all_reduce
from planner.runtime.stage import Stage
from planner.runtime.workers import Context

__all__ = ["own_loss", "step_loss", "whole"]


def whole(value: Tensor, layout: Layout, mesh: DeviceMesh, context: Context) -> Tensor:
    """A value of any layout whole on every rank of the stage.  The ranks of the stage call it together."""
    for axis, reduction in layout.partial:
        value = all_reduce(value, context.group(mesh, (axis,))[0], str(reduction))
    for dim, axes in enumerate(layout.dims):
        if axes:
            group, ranks = context.group(mesh, axes)
            value = all_gather(value, len(ranks), dim, group)
    return value


def own_loss(graph: Graph, stage: Stage, taken: Taken) -> Tensor | None:
    """Of all micro-batches, a scalar in single precision or a wider one; None on stages that do not compute it.  The
    ranks of a stage call it together."""
    found = taken.outputs.get(graph.loss or graph.outputs[0], {})
    values = [whole(value, layout, stage.mesh, stage.context) for layout, value in found.values()]
    values = [v.to(torch.promote_types(v.dtype, torch.float32)) for v in values]
    if not values:
        return None
    together = torch.stack(values)
    return (together.sum(0) if loss_over_samples(graph) == "sum" else together.mean(0)).reshape(())


def step_loss(graph: Graph, stage: Stage, taken: Taken) -> Tensor:
    """Of all micro-batches together, on every rank of every stage.  All ranks call it together."""
    own = own_loss(graph, stage, taken)
    device = stage.context.device
    if len(stage.staged.passes.stages) == 1:
        return torch.zeros((), device=device) if own is None else own
    wide = getattr(torch, graph.tensors[graph.loss or graph.outputs[0]].dtype)
    has = torch.tensor(float(own is not None), device=device, dtype=torch.promote_types(wide, torch.float32))
    both = all_reduce(torch.stack([has * 0.0 if own is None else own, has]), dist.group.WORLD)
    return both[0] / both[1]
