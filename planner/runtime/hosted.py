"""Which operators of a program PyTorch would not run: they would pass through the host, with the kernels of `verify`.

Every operator is tried once, forward and backward, on tensors without values: nothing is computed, and nothing is sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from planner.ir import Graph
from planner.lowering import Program
from planner.lowering.touched import Key
from planner.runtime.bound import Bound, bind
from planner.runtime.collectives import Inside
from planner.runtime.registry import Call
from planner.runtime.workers import Context

__all__ = ["Hosted", "hosted", "hosted_text"]


@dataclass(frozen=True, slots=True)
class Hosted:
    """An operator that would run on the host: its name, its type, and how it is cut there."""

    name: str
    type: str
    split: str

    def __str__(self) -> str:
        return f"{self.name} ({self.type}{f', split by {self.split}' if self.split else ''})"


@dataclass(frozen=True, slots=True)
class _Dry(Inside):
    """Collectives of tensors without values."""

    def group(self, factor: str) -> tuple[Any, tuple[int, ...]]:
        return None, tuple(range(self.mesh.size(self.split[factor])))

    def reduced(self, value: Tensor, factor: str, reduction: str = "sum") -> Tensor:
        return torch.empty_like(value)

    def summed(self, value: Tensor, factor: str) -> Tensor:
        return value.clone()

    def total(self, value: Tensor, factor: str) -> Tensor:
        return value.clone()

    def exchanged(self, value: Tensor, factor: str, dim: int, send: Sequence[int], receive: Sequence[int]) -> Tensor:
        shape = list(value.shape)
        shape[dim] = sum(receive)
        # Of nothing but what is sent, so that a gradient finds its way.
        return value.sum(dim, keepdim=True).expand(shape) if value.is_floating_point() else value.new_empty(shape)

    def gathered(self, value: Tensor, factor: str) -> Tensor:
        ranks = len(self.group(factor)[1])
        return value[None].expand(ranks, *value.shape)


def hosted(program: Program) -> list[Hosted]:
    """The operators of a program that would run on the host."""
    context = Context(0, program.mesh.devices, torch.device("cpu"))
    found: list[Hosted] = []
    tried: dict[object, bool] = {}
    for op in program.graph.ops:
        b = bind(program, op, context)
        key = _signature(b, program.graph)
        if key not in tried:
            tried[key] = _runs(b, program)
        if not tried[key]:
            split = program.strategies[op.name].split
            found.append(Hosted(op.name, op.type, ", ".join(sorted(split))))
    return found


def hosted_text(found: Sequence[Hosted]) -> str:
    """One line that names the operators, of each type the first."""
    first: dict[tuple[str, str], Hosted] = {}
    counts: dict[tuple[str, str], int] = {}
    for h in found:
        first.setdefault((h.type, h.split), h)
        counts[h.type, h.split] = counts.get((h.type, h.split), 0) + 1
    return "; ".join(f"{h}{f' and {counts[k] - 1} more' if counts[k] > 1 else ''}" for k, h in first.items())


def _signature(b: Bound, graph: Graph) -> object:
    attributes = repr(sorted(b.local.attributes.items(), key=lambda item: item[0]))
    types = tuple(None if k is None else graph.tensors[k[0]].dtype for k in b.inputs)
    values = tuple(None if v is None else v.tobytes() for v in b.known)
    split = tuple(sorted((f, tuple(a)) for f, a in b.inside.split.items()))
    return b.op.type, b.op.opset, attributes, types, values, b.shapes, _locals(b, graph), split, b.wanted, b.given


def _locals(b: Bound, graph: Graph) -> tuple[tuple[int, ...] | None, ...]:
    """Local shapes of the operands; None where one is absent, or known when it is there alone."""
    return tuple(None if k is None else _local(k, graph, b) for k in b.inputs)


def _local(key: Key, graph: Graph, b: Bound) -> tuple[int, ...] | None:
    shape = graph.tensors[key[0]].shape
    return None if shape is None else key[1].local_shape(shape, b.inside.mesh)


def _runs(b: Bound, program: Program) -> bool:
    """Whether PyTorch runs the operator.  Where shapes depend on values, whatever has a function is taken to."""
    if b.function is None:
        return False
    shapes = _locals(b, program.graph)
    if any(k is not None and s is None for k, s in zip(b.inputs, shapes, strict=True)):
        return True
    followed = any(b.wanted)
    with FakeTensorMode(allow_non_fake_inputs=True), torch.set_grad_enabled(followed):
        operands = [
            _operand(b, program.graph, i, s, want) for i, (s, want) in enumerate(zip(shapes, b.wanted, strict=True))
        ]
        inside = _Dry(b.inside.context, b.inside.mesh, b.inside.split)
        call = Call(b.local, operands, b.shapes, b.place, inside, b.reduced, b.weights_only, b.known)
        try:
            found = b.function(call)
            if found is None:
                return False
            results = [
                y for y in ([found] if isinstance(found, Tensor) else found) if y is not None and y.requires_grad
            ]
            entered = [x for x in operands if x is not None and x.requires_grad]
            if results and entered:
                torch.autograd.grad(results, entered, [torch.empty_like(y) for y in results], allow_unused=True)
        except RuntimeError:  # computed values decide, which are not there: PyTorch runs it when they are
            return True
    return True


def _operand(b: Bound, graph: Graph, index: int, shape: tuple[int, ...] | None, wanted: bool) -> Tensor | None:
    key = b.inputs[index]
    if key is None or shape is None:
        return None
    if index == b.shape_operand:
        return torch.empty(len(b.shapes[0] or ()), dtype=torch.int64)
    dtype = getattr(torch, graph.tensors[key[0]].dtype)
    return torch.empty(shape, dtype=dtype, requires_grad=wanted and dtype.is_floating_point)
