"""Kernels that are written once (`planner.kernels.shared`) on tensors of one rank, with its collectives.

A sum over ranks passes gradients back: where the ranks compute parts of a result of it, what they find as its gradient
adds up; where all make the same result, it is known to all.  So do the values of all ranks that one gathers.  An
exchange of parts of known sizes sends their gradients back.  Other collectives pass none.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import Any

import array_api_compat.torch
import numpy as np
import torch
from torch import Tensor

from planner.ir import Op
from planner.kernels import AllGather, AllReduce, Exchange, NoKernelError
from planner.kernels.shared import Call as SharedCall
from planner.kernels.shared import SharedKernel, shared_kernel
from planner.kernels.spmd import Sizes
from planner.rules import Rule
from planner.runtime.collectives import Inside, all_gather
from planner.runtime.registry import Call, Function, registered

__all__ = ["driven", "torch_function"]


class _Namespace(ModuleType):
    """torch's functions as the standard has them, and look-ups by indices of any shape, as numpy's."""

    def __getattr__(self, name: str) -> Any:
        return getattr(array_api_compat.torch, name)

    @staticmethod
    def asarray(value: Any, /, **how: Any) -> Any:
        """An array that remembers the value that it was made of: an operator inside of a kernel may read it."""
        found = array_api_compat.torch.asarray(value, **how)
        if not isinstance(value, Tensor):
            found.known = np.asarray(value)
        return found

    @staticmethod
    def take(x: Tensor, indices: Tensor, /, *, axis: int) -> Tensor:
        axis %= x.ndim
        rows = x.index_select(axis, indices.reshape(-1))
        return rows.reshape(*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])


_XP = _Namespace("planner.runtime.arrays.torch")


class _Known(Sequence[Any]):
    """Values of operands on the host; what is not known before anything runs is fetched where it is read."""

    def __init__(self, c: Call) -> None:
        self._c = c

    def __len__(self) -> int:
        return len(self._c.inputs)

    def __getitem__(self, index: Any) -> Any:
        value, known = self._c.inputs[index], self._c.value(index)
        return known if value is None or known is not None else value.detach().cpu().numpy()


def torch_function(type_: str, *, aware: bool) -> Function | None:
    """How PyTorch runs an operator type: the function of its family or, where that declines, the kernel that is written
    once.

    None where there is neither.  `aware`: a factor is split of which the operator must be told."""
    functions = [f for f in (registered(type_, aware=aware), _shared_function(type_)) if f is not None]
    if not functions:
        return None

    def run(c: Call) -> Any:
        for function in functions:
            try:
                found = function(c)
            except NotImplementedError:  # PyTorch lacks it for these element types
                continue
            if found is not None:
                return found
        return None

    return run


def _shared_function(type_: str) -> Function | None:
    written = shared_kernel(type_)
    return None if written is None else _torch_call(written)


def _torch_call(kernel: SharedKernel) -> Callable[[Call], Sequence[Tensor | None] | None]:
    """The kernel as a function of the registry; it declines where a gradient would be lost, and for good where it has
    met something without PyTorch form: on all ranks alike, behind what they have exchanged for nothing."""
    declined = False

    def run(c: Call) -> Sequence[Tensor | None] | None:
        nonlocal declined
        followed = any(x is not None and x.requires_grad for x in c.inputs)
        if _unknown(c) or declined or (followed and not kernel.autograd(c.op)):
            return None
        runner = partial(_run, c)
        routine = kernel.function(SharedCall(c.op, c.inputs, c.place, _XP, runner, _Known(c), Tensor.detach, followed))
        try:
            found = driven(routine, c)
        except NoKernelError:
            declined = True
            return None
        return [r if name else None for name, r in zip(c.op.outputs, found, strict=False)]

    return run


def driven(routine: Generator[Any, Any, Any], c: Call) -> Any:
    """What a kernel gives that yields its collectives, carried out among the ranks of an operator."""
    received: Any = None
    while True:
        try:
            collective = routine.send(received)
        except StopIteration as stop:
            return stop.value
        received = _meet(collective, c)


def _unknown(c: Call) -> bool:
    """Whether the shapes of all results depend on values: the operator is whole then, and its rule names no factors."""
    return c.place.rule is None or all(dims is None for dims in c.place.rule.results)


def _run(c: Call, op: Op, operands: Sequence[Any]) -> Sequence[Any]:
    """An operator inside of a kernel, by the function of its family."""
    function = registered(op.type, aware=False)
    known = [_value(x, c) for x in operands]
    found = None if function is None else function(replace(c, op=op, inputs=operands, shapes=(), known=known))
    if found is None:
        raise NoKernelError(f"operator {op.name}: {op.type} inside of a kernel has no PyTorch function")
    return [found] if isinstance(found, Tensor) else found


def _value(x: Any, c: Call) -> Any:
    """The value of an operand of an operator inside of a kernel, where it is known."""
    same = (c.value(i) for i, given in enumerate(c.inputs) if given is x)
    return None if x is None else getattr(x, "known", None) if (found := next(same, None)) is None else found


def _meet(collective: Any, c: Call) -> Any:
    inside: Inside = c.inside
    if isinstance(collective, AllReduce):
        value: Any = collective.value
        if collective.reduction != "sum" or not value.requires_grad:
            return inside.reduced(value, collective.factor, collective.reduction)
        assert c.place.rule is not None
        in_parts = _carries(c.place.rule, collective.factor)
        return inside.summed(value, collective.factor) if in_parts else inside.total(value, collective.factor)
    if isinstance(collective, AllGather):
        mine: Any = collective.value
        if not mine.requires_grad:
            return tuple(_gathered(mine, collective.factor, inside))
        assert c.place.rule is not None
        add = collective.terms or _carries(c.place.rule, collective.factor)
        return tuple(_Gather.apply(mine, inside, collective.factor, add, c.place.index[collective.factor]))
    if isinstance(collective, Exchange) and collective.sizes is not None:
        return _exchanged(collective.pieces, collective.factor, collective.sizes, inside)
    raise NoKernelError(f"operator {c.op.name}: {type(collective).__name__} inside of a kernel has no PyTorch form")


def _gathered(mine: Tensor, factor: str, inside: Inside) -> Tensor:
    """[ranks, …]: the values of all ranks that split a factor; no gradient passes."""
    if (dry := getattr(inside, "gathered", None)) is not None:  # nothing is sent (`planner.runtime.hosted`)
        found: Tensor = dry(mine.detach(), factor)
        return found
    group, ranks = inside.group(factor)
    inside.tell("all_gather", mine.nbytes * len(ranks))
    return all_gather(mine.detach()[None], len(ranks), 0, group)


class _Gather(torch.autograd.Function):
    """The values of all ranks.  Where ranks make terms or parts of a result of them, the gradients that they find add
    up; where all make the same, each takes that of its own value."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, inside: Inside, factor: str, gradients_add: bool, index: int) -> Tensor:
        ctx.inside, ctx.factor, ctx.gradients_add, ctx.index = inside, factor, gradients_add, index
        return _gathered(value, factor, inside)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None]:
        found = ctx.inside.reduced(gradient, ctx.factor) if ctx.gradients_add else gradient
        return found[ctx.index], None, None, None, None


def _exchanged(pieces: Sequence[Any], factor: str, sizes: Sizes, inside: Inside) -> tuple[Tensor, ...]:
    """Parts without elements as well: a gradient must find its way back on every rank, or others wait for it."""
    like: Any = sizes.like
    sent = [like.narrow(sizes.dim, 0, 0) if p is None else p for p in pieces]
    lengths = [p.shape[sizes.dim] for p in sent]
    arrived = inside.exchanged(torch.cat(sent, sizes.dim), factor, sizes.dim, lengths, sizes.arriving)
    return torch.split(arrived, list(sizes.arriving), sizes.dim)


def _carries(rule: Rule, factor: str) -> bool:
    """Whether the first result is split by the factor."""
    members = set(rule.members(factor))
    return any(not members.isdisjoint(dim) for dim in rule.results[0] or ())
