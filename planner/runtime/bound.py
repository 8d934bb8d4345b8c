"""What never changes about an operator on one rank, and how it runs forward and backward.

A forward operator whose result carries a gradient is followed by autograd, by itself or in a chain (`chain`), so that
its backward runs where the program says; what the collectives between operators do to gradients is in the program, not
in autograd.  Of operands that are made again for the backward pass nothing is held: they are taken from where they are
then.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from planner.ir import Layout, Op, Role
from planner.kernels import ShardContext
from planner.kernels.shards import Array
from planner.lowering import Program
from planner.lowering.touched import Key, key_of
from planner.rules.localize import local_op
from planner.runtime.arrays import torch_function
from planner.runtime.chain import Chain
from planner.runtime.collectives import Inside
from planner.runtime.fallback import NumpyCall, run_with_numpy
from planner.runtime.registry import Call, Function
from planner.runtime.workers import Context

__all__ = ["Bound", "bind", "differentiated_by_numpy", "run"]


@dataclass(frozen=True, slots=True)
class Bound:
    """`inputs` and `outputs` are the keys of its values (None where absent), `given` and `gradients` those of the
    gradients of operands and results; `wanted` the operands whose gradient it gives, `followed` their keys and those of
    their gradients."""

    op: Op
    local: Op
    function: Function | None
    inputs: tuple[Key | None, ...]
    outputs: tuple[Key | None, ...]
    gradients: tuple[Key | None, ...]
    given: tuple[Key | None, ...]
    wanted: tuple[bool, ...]
    shapes: tuple[tuple[int, ...] | None, ...]
    place: ShardContext
    inside: Inside
    reduced: tuple[str, ...]
    scale: float
    shape_operand: int | None
    weights_only: bool
    known: tuple[Array | None, ...]
    followed: tuple[tuple[Key, Key], ...]


def bind(program: Program, op: Op, context: Context) -> Bound:
    """The operator as this rank runs it."""
    strategy, rule, graph, mesh = program.strategies[op.name], program.rules[op.name], program.graph, program.mesh
    split = strategy.split

    def keys(names: Sequence[str], layouts: Sequence[Layout | None]) -> tuple[Key | None, ...]:
        return tuple(key_of(program, n, x) if n else None for n, x in zip(names, layouts, strict=True))

    def local_shape(key: Key | None) -> tuple[int, ...] | None:
        shape = None if key is None else graph.tensors[key[0]].shape
        return None if key is None or shape is None else key[1].local_shape(shape, mesh)

    writes, reads = keys(op.outputs, strategy.results), keys(op.inputs, strategy.operands)
    stated = rule.shape_operand if strategy.results and strategy.results[0] is not None else None
    stated = None if stated is None or stated >= len(reads) else stated

    def known(index: int, key: Key | None) -> Array | None:
        """The value of an operand as this rank reads it, where it is a known and whole one."""
        if key is not None and index == stated and (shape := local_shape(writes[0])) is not None:
            return np.array(shape, dtype=np.int64)
        tensor = None if key is None else graph.tensors[key[0]]
        whole = key is not None and tensor is not None and not key[1].partial and local_shape(key) == tensor.shape
        return tensor.value if tensor is not None and whole else None

    place = ShardContext.of(rule, split, mesh, context.place)
    given = keys(op.inputs, strategy.operand_gradients)
    wanted = tuple(n in program.active and i in rule.differentiable for i, n in enumerate(op.inputs))
    return Bound(
        op,
        local_op(op, rule, strategy, mesh),
        torch_function(op.type, aware=rule.aware(split)),
        reads,
        writes,
        keys(op.outputs, strategy.result_gradients),
        given,
        wanted,
        tuple(local_shape(k) for k in writes),
        place,
        Inside(context, mesh, split),
        place.reduced_factors(),
        strategy.scale,
        stated,
        all(graph.tensors[n].role in (Role.PARAMETER, Role.CONSTANT) for n in op.inputs if n),
        tuple(known(i, k) for i, k in enumerate(reads)),
        tuple((k, g) for k, g, w in zip(reads, given, wanted, strict=True) if w and k is not None and g is not None),
    )


@dataclass(frozen=True, slots=True)
class _View:
    """How a tensor that autograd would hold lies in the memory of an operand."""

    operand: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


def _reach(x: Tensor) -> int:
    """Elements from its first to behind its last, where it lies in memory."""
    return 1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True)) if x.numel() else 0


def _lying(value: Tensor, stride: tuple[int, ...]) -> Tensor:
    """The value with these strides, which leave no gaps: those of a permuted tensor."""
    if all(n == 1 or a == b for n, a, b in zip(value.shape, value.stride(), stride, strict=True)):
        return value
    order = sorted(range(value.dim()), key=lambda d: (-stride[d], -value.shape[d]))
    back = sorted(range(value.dim()), key=order.__getitem__)
    return value.permute(order).clone(memory_format=torch.contiguous_format).permute(back)


def _made_again(operands: Sequence[Tensor | None], again: Mapping[int, Callable[[], Tensor]]) -> Any:
    """Within it autograd notes of these operands, and of views of them, how they lie, and asks for them in the backward
    pass.  Several may lie in one buffer, and need not lie where they did; one with gaps is held after all."""
    dense = {i: x for i in again if (x := operands[i]) is not None and _reach(x) == x.numel()}
    strides = {i: x.stride() for i, x in dense.items()}
    # Autograd keeps both functions, and so they must not hold the operands themselves.
    extents = [(x.untyped_storage()._cdata, x.storage_offset(), x.numel(), i) for i, x in dense.items()]
    del dense

    def noted(x: Tensor) -> Tensor | _View:
        for storage, first, count, i in extents:
            begin = x.storage_offset() - first
            if x.untyped_storage()._cdata == storage and begin >= 0 and begin + _reach(x) <= count:
                return _View(i, tuple(x.shape), x.stride(), begin)
        return x

    def found(note: Tensor | _View) -> Tensor:
        if isinstance(note, Tensor):
            return note
        value = _lying(again[note.operand](), strides[note.operand])
        if tuple(value.shape) == note.shape and value.stride() == note.stride:
            return value
        return value.as_strided(note.shape, note.stride, value.storage_offset() + note.offset)

    return torch.autograd.graph.saved_tensors_hooks(noted, found)


def run(
    b: Bound,
    program: Program,
    operands: Sequence[Tensor | None],
    chain: Chain | None,
    *,
    again: Mapping[int, Callable[[], Tensor]] | None = None,
) -> tuple[list[Tensor | None], NumpyCall | None, bool]:
    """Local results, what the backward needs where NumPy ran it, and whether PyTorch did.

    chain  what follows the operator for its backward, if anything does: it has joined it
    again  operands that are let go before the backward pass, and what gives them there
    """
    followed = chain is not None
    if b.function is not None:
        hooks = _made_again(operands, again) if followed and again else nullcontext()
        with torch.set_grad_enabled(followed), hooks:
            entered = operands if chain is None else _entered(b, operands, chain)
            found = b.function(Call(b.local, entered, b.shapes, b.place, b.inside, b.reduced, b.weights_only, b.known))
            results = [found] if isinstance(found, Tensor) else found
            if results is not None and b.scale != 1.0:
                results = [y if y is None else y * b.scale for y in results]
        if results is not None:
            if chain is not None:
                for key, gradient, y in zip(b.outputs, b.gradients, results, strict=False):
                    if y is not None:
                        chain.made(key, gradient, y)
            return [y if y is None else y.detach() for y in results], None, True
    outputs, call = run_with_numpy(b.local, program.rules[b.op.name], operands, b.shapes, b.place, b.inside)
    scaled = [y if y is None or b.scale == 1.0 else y * b.scale for y in outputs]
    return scaled, call if followed else None, False


def _entered(b: Bound, operands: Sequence[Tensor | None], chain: Chain) -> list[Tensor | None]:
    return [
        chain.operand(key, gradient, x) if x is not None and want and key is not None and gradient is not None else x
        for x, want, key, gradient in zip(operands, b.wanted, b.inputs, b.given, strict=True)
    ]


def differentiated_by_numpy(
    b: Bound, record: NumpyCall, given: Sequence[Tensor | None], only: Collection[int] | None = None
) -> list[Tensor | None]:
    """Gradients of the wanted operands (`only` some of them) from those of the results."""
    wanted = [w and (only is None or i in only) for i, w in enumerate(b.wanted)]
    return record.backward([g if g is None or b.scale == 1.0 else g * b.scale for g in given], wanted)
