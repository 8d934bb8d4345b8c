"""Kernels written once, over any arrays of the Python array API standard (https://data-apis.org/array-api).

A kernel says what one rank computes while factors are split of which it must be aware, and yields what it exchanges
with others.  `planner verify` runs it on numpy arrays of all virtual ranks in step, the PyTorch backend on tensors of
one rank, with autograd through its sums, and `emit --target onnx-ranks` on arrays that write a rank's graph.

    @shared("Softmax", backward=…)
    def _softmax(c: Call) -> Coroutine:
        x = c.widened(0)
        largest = yield from c.total(c.xp.max(x, axis=-1, keepdims=True), "max")
        …

Arrays are Any here: they are of whichever library runs the kernel, and `c.xp` is its namespace.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from planner.ir import Op
from planner.kernels.attributes import normalise_axis
from planner.kernels.local import run_local
from planner.kernels.namespaces import device
from planner.kernels.session import NoKernelError
from planner.kernels.split import kernel
from planner.kernels.spmd import Collective, Coroutine, ShardContext, SpmdBackward, all_gather, all_reduce
from planner.plugins import load_operators
from planner.rules import Rule

__all__ = ["Call", "SharedKernel", "Values", "is_narrow", "numpy_call", "shared", "shared_kernel", "shared_types"]

Values = Generator[Collective, Any, Any]
Runner = Callable[[Op, Sequence[Any]], "Sequence[Any]"]


@dataclass(frozen=True, slots=True)
class Call:
    """One operator on one rank.

    op      as the rank runs it: attributes that count a split factor are local
    inputs  local operands, None where absent
    place   where the rank stands
    xp      namespace of the arrays
    runner  runs any operator on local operands
    known   values of operands that are known before anything runs; None elsewhere
    still   an array as one that passes no gradient
    followed  whether gradients are to pass through arrays: where they would not by themselves, the kernel sees to it
    """

    op: Op
    inputs: Sequence[Any]
    place: ShardContext
    xp: Any
    runner: Runner
    known: Sequence[Any] = ()
    still: Callable[[Any], Any] = lambda value: value
    followed: bool = False

    @property
    def rule(self) -> Rule:
        assert self.place.rule is not None
        return self.place.rule

    # Operands and attributes

    def operand(self, index: int = 0) -> Any:
        value = self.inputs[index]
        assert value is not None, f"operand {index} of {self.op.type} {self.op.name} is needed and absent"
        return value

    def maybe(self, index: int) -> Any:
        """An optional operand."""
        return self.inputs[index] if index < len(self.inputs) else None

    def attr(self, name: str, default: Any = None) -> Any:
        return self.op.attributes.get(name, default)

    def axis(self, default: int, rank: int) -> int:
        """The attribute `axis`, counted from the front."""
        return normalise_axis(int(self.attr("axis", default)), rank)

    def integers(self, index: int, attribute: str) -> tuple[int, ...] | None:
        """Integers given as a known operand, or as an attribute; None where neither is.

        NoKernelError where they are computed at run time.
        """
        if index < len(self.op.inputs) and self.op.inputs[index]:
            if self.known[index] is None:
                raise NoKernelError(f"its {attribute} are computed at run time")
            return tuple(int(v) for v in np.asarray(self.known[index]).reshape(-1))
        found = self.attr(attribute)
        return None if found is None else tuple(int(v) for v in np.ravel(found))

    def widened(self, index: int = 0) -> Any:
        """An operand in the precision in which kernels compute: half precision in single, integers as they are."""
        return self.wide(self.operand(index))

    def wide(self, x: Any) -> Any:
        return self.xp.astype(x, self.xp.float32) if is_narrow(x.dtype) else x

    def maybe_widened(self, index: int) -> Any:
        return None if self.maybe(index) is None else self.widened(index)

    def like(self, value: Any, index: int = 0) -> Any:
        """`value` in the element type of an operand."""
        return self.xp.astype(value, self.operand(index).dtype)

    def arange(self, stop: int, like: Any) -> Any:
        """Integers from zero on, on the device of another array."""
        return self.xp.arange(stop, device=device(like))

    def finite(self, x: Any) -> Any:
        """Zero in place of what is endless, or no number."""
        return self.xp.where(self.xp.isfinite(x), x, self.xp.zeros_like(x))

    def full(self, shape: Sequence[int], value: float, like: Any) -> Any:
        """An array of one value, in the element type and on the device of another array."""
        return self.xp.full(shape, value, dtype=like.dtype, device=device(like))

    def constant(self, value: Any, dtype: Any = None) -> Any:
        """An array of a known value, of 64-bit integers unless a type is given, where the operands lie."""
        device = next((getattr(x, "device", None) for x in self.inputs if x is not None), None)
        return self.xp.asarray(value, dtype=self.xp.int64 if dtype is None else dtype, device=device)

    def run(self, op: Op, operands: Sequence[Any]) -> Sequence[Any]:
        """Local results of any operator."""
        return self.runner(op, operands)

    # Factors and collectives

    def over(self, value: Any, factors: Iterable[str], reduction: str = "sum") -> Values:
        """`value` reduced over the ranks that split each of the factors; where none is split, as it is."""
        for factor in factors:
            if self.place.splits(factor):
                value = yield from all_reduce(value, reduction, factor)
        return value

    def total(self, value: Any, reduction: str = "sum") -> Values:
        """`value` reduced over all factors over which the operator communicates."""
        return (yield from self.over(value, self.place.reduced_factors(), reduction))

    def gathered(self, value: Any, factor: str, *, terms: bool = False) -> Generator[Collective, Any, list[Any]]:
        """The values of all ranks that split `factor`, in the order of their shards; where it is whole, the one.
        `terms`: what ranks make of them are terms of a sum."""
        return list((yield from all_gather(value, factor, terms=terms))) if self.place.splits(factor) else [value]

    def with_gradient(self, value: Any, of: Any) -> Any:
        """A value that passes its gradient on to another array of its shape, whatever that holds."""
        return value + (of - self.still(of)) if self.followed else value

    def places(self, factor: str) -> range:
        """The indices of a factor that this rank has.  NoKernelError where the operator is whole, without factors."""
        if factor not in self.rule.factors:
            raise NoKernelError(f"operator {self.op.name} is not cut by {factor}")
        first = self.place.offset.get(factor, 0)
        return range(first, first + self.rule.factors[factor] // self.place.shards.get(factor, 1))

    def shards(self, factors: Iterable[str]) -> int:
        """How many ranks split the factors together."""
        return math.prod(self.place.shards.get(f, 1) for f in factors)


@dataclass(frozen=True, slots=True)
class SharedKernel:
    """`autograd`: whether differentiating the kernel's own text, through its sums, gives an operator's gradient."""

    function: Callable[[Call], Coroutine]
    autograd: Callable[[Op], bool]


_SHARED: dict[str, SharedKernel] = {}


def shared(
    *types: str, backward: SpmdBackward | None = None, autograd: bool | Callable[[Op], bool] = True
) -> Callable[[Callable[[Call], Coroutine]], Callable[[Call], Coroutine]]:
    """Register a kernel for operator types, with their domain where it is not ONNX's own.

    backward   its gradient on numpy arrays, for `planner verify`; None for operators without gradient
    autograd   False, or false of the operators, where a gradient passes through something else than a sum over ranks:
               PyTorch then runs `backward`

    ValueError for a type that has a kernel already.
    """

    def register(function: Callable[[Call], Coroutine]) -> Callable[[Call], Coroutine]:
        def forward(op: Op, inputs: Sequence[Any], place: ShardContext) -> Coroutine:
            return _on_numpy(function, op, inputs, place)

        kernel(types, forward, backward)
        for t in types:
            _SHARED[t] = SharedKernel(function, autograd if callable(autograd) else lambda op: autograd)
        return function

    return register


def shared_kernel(type_: str) -> SharedKernel | None:
    """The kernel of an operator type, where it is written once."""
    load_operators("split")
    return _SHARED.get(type_)


def shared_types() -> frozenset[str]:
    """Operator types whose kernel is written once."""
    load_operators("split")
    return frozenset(_SHARED)


def numpy_call(op: Op, inputs: Sequence[Any], place: ShardContext) -> Call:
    """An operator on numpy arrays of one rank."""
    import array_api_compat.numpy as xp

    return Call(op, inputs, place, xp, run_local, inputs)


def _on_numpy(function: Callable[[Call], Coroutine], op: Op, inputs: Sequence[Any], place: ShardContext) -> Coroutine:
    routine = function(numpy_call(op, inputs, place))
    received: Any = None
    while True:
        try:
            with np.errstate(
                divide="ignore", over="ignore"
            ):  # log 0 is minus infinity, the exponential of much endless
                collective = routine.send(received)
        except StopIteration as stop:
            return [None if r is None else np.asarray(r) for r in stop.value]
        received = yield collective


@lru_cache(maxsize=256)
def is_narrow(dtype: Any) -> bool:
    """Whether a type holds floating-point numbers of less than four bytes, in numpy's, torch's or ONNX's spelling."""
    return str(dtype).rpartition(".")[2].startswith(("float16", "bfloat16", "float8"))
