"""Loss and gradients of a captured step, computed by the kernels that plans are verified with."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from torch import Tensor, nn

from planner.frontends import import_bytes
from planner.rules.bound import bind_rules
from planner.torch.capture import capture
from planner.torch.capture.writer import as_array
from planner.verify.reference import gradients, run_ops
from planner.work.activity import active_tensors

__all__ = ["by_kernels"]


def by_kernels(
    module: nn.Module, *inputs: Tensor, fixed: Collection[str] = (), **named: Any
) -> tuple[Any, dict[str, Any]]:
    found = capture(module, inputs, named, fixed=fixed)
    graph = import_bytes(found.model)
    values: dict[str, Any] = {n: as_array(t) for n, t in (*found.constants.items(), *module.named_parameters())}
    values |= {n: as_array(t) for n, t in module.named_buffers()}
    values |= {n: as_array(t) for n, t in zip(found.inputs, found.flattened(inputs, named, ()), strict=True)}
    values = {n: v for n, v in values.items() if n in graph.tensors}
    whole = run_ops(graph, values | {t.name: t.value for t in graph.tensors.values() if t.value is not None})
    active = active_tensors(graph, bind_rules(graph)[0])
    return whole[graph.loss], gradients(graph, values, whole, list(found.parameters), active=active)
