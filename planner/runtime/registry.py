"""One function per operator type: local tensors in, local results out; gradients come from torch's autograd.

    @operator("Relu")
    def _relu(c: Call) -> Tensor:
        return functional.relu(c.x)

A function may decline (return None) where the operands, attributes or split lie outside what it covers; the operator
then runs with the numpy kernels that prove plans (`fallback`).  Importing this does not import PyTorch: a family that
is one module registers its functions here and imports PyTorch inside them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from planner.ir import Op
from planner.kernels import ShardContext
from planner.plugins import load_operators

if TYPE_CHECKING:
    from torch import Tensor

    from planner.runtime.collectives import Inside

__all__ = ["Call", "Function", "operator", "operator_types", "registered"]


@dataclass(slots=True)  # frozen ones take three times as long to make, and one is made for every operator
class Call:
    """An operator on one rank.

    `inputs` are local operands (None where absent), `shapes` the local shapes of the results, `place` the rank's shard
    of every split factor, `inside` the collectives over the ranks that split one; `reduced` are the split factors
    over which the operator communicates; `weights_only`: it reads nothing but parameters and constants.  `known` are
    the values of operands that are known before anything runs, as this rank reads them; None elsewhere.
    """

    op: Op
    inputs: Sequence[Tensor | None]
    shapes: Sequence[tuple[int, ...] | None]
    place: ShardContext
    inside: Inside
    reduced: Sequence[str] = ()
    weights_only: bool = False
    known: Sequence[Any] = ()

    @property
    def x(self) -> Tensor:
        return self.operand(0)

    def operand(self, index: int) -> Tensor:
        value = self.inputs[index]
        assert value is not None, f"operand {index} of {self.op.type} {self.op.name} is absent"
        return value

    def maybe(self, index: int) -> Tensor | None:
        """An optional operand."""
        return self.inputs[index] if index < len(self.inputs) else None

    def shape(self, index: int = 0) -> tuple[int, ...]:
        found = self.shapes[index]
        assert found is not None, f"result {index} of {self.op.type} {self.op.name} has no static shape"
        return found

    def attr(self, name: str, default: Any = None) -> Any:
        value = self.op.attributes.get(name, default)
        return value.decode() if isinstance(value, bytes) else value

    def value(self, index: int) -> Any:
        """The value of an operand where it is known before anything runs; None elsewhere."""
        return self.known[index] if index < len(self.known) else None

    def integers(self, index: int, attribute: str = "") -> tuple[int, ...] | None:
        """Integers given as an operand, or as an attribute; None where neither is.  What is computed at run time is
        fetched from the device."""
        if (given := self.maybe(index)) is not None:
            known = self.value(index)
            return tuple(given.reshape(-1).tolist() if known is None else (int(n) for n in known.reshape(-1)))
        found = self.attr(attribute) if attribute else None
        return None if found is None else tuple(int(n) for n in (found if hasattr(found, "__len__") else (found,)))

    def number(self, index: int, attribute: str = "") -> Any:
        """A number given as an operand, or as an attribute; None where neither is.  What is computed at run time stays
        a tensor without dimensions."""
        if (given := self.maybe(index)) is not None:
            known = self.value(index)
            return given.reshape(()) if known is None else known.reshape(()).item()
        return self.attr(attribute) if attribute else None

    def yields(self, index: int) -> bool:
        """Whether a result is asked for."""
        return index < len(self.op.outputs) and bool(self.op.outputs[index])

    def axis(self, default: int = -1, rank: int | None = None) -> int:
        """The attribute `axis`, counted from the front."""
        rank = self.x.ndim if rank is None else rank
        return int(self.attr("axis", default)) % max(rank, 1)


Function = Callable[[Call], Any]


@dataclass(frozen=True, slots=True)
class Registered:
    """`aware`: whether the function heeds the splits that it must be told of (`Cut.aware`)."""

    function: Function
    aware: bool


_FUNCTIONS: dict[str, Registered] = {}


def operator(*types: str, aware: bool = False) -> Callable[[Function], Function]:
    """Registers the function for operator types, with their domain where it is not ONNX's own."""

    def register(function: Function) -> Function:
        for t in types:
            if t in _FUNCTIONS:
                raise ValueError(f"operator {t} has two functions; keep one")
            _FUNCTIONS[t] = Registered(function, aware)
        return function

    return register


def registered(type_: str, *, aware: bool) -> Function | None:
    """The function of an operator type; None where there is none, or none that heeds splits it must be told of."""
    load_operators("torch")
    found = _FUNCTIONS.get(type_)
    return None if found is None or (aware and not found.aware) else found.function


def operator_types() -> frozenset[str]:
    """Operator types that have a function."""
    load_operators("torch")
    return frozenset(_FUNCTIONS)
