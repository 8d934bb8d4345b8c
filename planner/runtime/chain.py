"""Operators that autograd follows together, and differentiates at once.

The program says where the backward of each operator runs.  Of operators whose backward runs come one behind the other,
with nothing between them, autograd may follow the whole chain: what one hands to the next stays in autograd's graph,
and one call finds the gradients of all operands that the chain takes from elsewhere.  A chain holds no more tensors
than the backward of its operators reads: its ends are edges of autograd's graph.  Gradients of its operands are there
at once, before they are added to those of other micro-batches: no more than a bucket, or those of one operator.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from planner.lowering.touched import Key
from planner.runtime import buckets

__all__ = ["Chain"]

_LONGEST: Final = 64  # operators


class _Entry(torch.autograd.Function):
    """An operand as autograd follows it: its edge holds no tensor, where that of a leaf would hold the operand."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, anchor: Tensor) -> Tensor:
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None]:
        return None, None


def _edge(result: Tensor) -> GradientEdge:
    """Of what an operator made; `get_gradient_edge` would look for leaves as well, which are none of these."""
    assert result.grad_fn is not None
    return GradientEdge(result.grad_fn, result.output_nr)


class Chain:
    """Operators in their order, of which autograd follows each behind the one before."""

    def __init__(self, lasting: Container[Key] = frozenset()) -> None:
        """lasting: operands that lie where they do longer than the chain, which may hold them, therefore"""
        self.last = ""  # the operator that came last
        self._lasting = lasting
        self._count = self._bytes = 0  # operators, and bytes of operands from elsewhere
        self._open = True
        self._anchor: Tensor | None = None
        self._linked: dict[Key, tuple[Tensor, Key]] = {}  # results that autograd follows, with their gradients' keys
        self._entered: dict[tuple[Key, Key], Tensor] = {}
        # What gradients are found of, with strides; and what they are found from, with types.
        self._entries: list[tuple[Key, Tensor | GradientEdge, tuple[int, ...]]] = []
        self._results: dict[Key, tuple[GradientEdge, torch.dtype]] = {}

    @property
    def pending(self) -> bool:
        """Whether it is still to be differentiated."""
        return bool(self._results)

    @property
    def results(self) -> tuple[Key, ...]:
        """What the gradients of results are found by."""
        return tuple(self._results)

    def takes(self, operands: Iterable[tuple[Key, Key]]) -> bool:
        """Whether one more operator, which reads these values and finds these gradients of them, may join."""
        if not self._open or self._count >= _LONGEST or self._bytes >= buckets.BUCKET_BYTES:
            return False
        for key, gradient in operands:
            linked = self._linked.get(key)
            if linked is None and gradient in self._results:
                return False  # what it finds is the gradient of a result that it takes in another form
            if linked is not None and linked[1] != gradient:
                return False
        return True

    def joined(self, name: str) -> None:
        """An operator is about to run as the last one."""
        self.last = name
        self._count += 1

    def operand(self, key: Key, gradient: Key, value: Tensor) -> Tensor:
        """A value whose gradient is asked for, as autograd follows it; called where autograd is enabled."""
        if key in self._linked:
            return self._linked[key][0]
        found = self._entered.get((key, gradient))
        if found is not None:
            return found
        if key in self._lasting:
            found = value.detach().requires_grad_()
            self._entries.append((gradient, found, value.stride()))
        else:
            if self._anchor is None:
                self._anchor = torch.empty(0, device=value.device, requires_grad=True)
            found = _Entry.apply(value, self._anchor)
            self._entries.append((gradient, _edge(found), value.stride()))
        self._entered[key, gradient] = found
        self._bytes += value.nbytes
        return found

    def made(self, key: Key | None, gradient: Key | None, result: Tensor) -> None:
        """A result of the last operator."""
        if result.requires_grad and gradient is not None:
            if result.grad_fn is None:  # an operand that lasts, handed on as it is
                with torch.enable_grad():
                    result = result.view_as(result)
            self._results[gradient] = _edge(result), result.dtype
            if key is not None:
                self._linked[key] = result, gradient

    def forget(self, key: Key) -> None:
        """A value is let go."""
        self._linked.pop(key, None)
        for entered in [e for e in self._entered if e[0] == key]:
            del self._entered[entered]

    def close(self) -> None:
        """No further operator joins: operands and results are held no longer."""
        self._open = False
        self._linked.clear()
        self._entered.clear()
        self._anchor = None

    def differentiated(
        self, given: Callable[[Key], Tensor | None], only: Callable[[Key], bool] | None = None, *, again: bool = False
    ) -> list[tuple[Key, Tensor]]:
        """Gradients of operands (`only` of some) from those of results, which `given` hands over; the same operand may
        be there several times.  `again`: the chain is differentiated once more.  An operand's gradient lies in memory
        as the operand does (a transposed weight is a view)."""
        pairs = [(edge, g.to(dtype)) for key, (edge, dtype) in self._results.items() if (g := given(key)) is not None]
        entries = [e for e in self._entries if only is None or only(e[0])]
        if not again:
            self._results, self._entries = {}, []
        if not pairs or not entries:
            return []
        found = torch.autograd.grad(
            [edge for edge, _ in pairs],
            [edge for _, edge, _ in entries],
            [g for _, g in pairs],
            retain_graph=again,
            allow_unused=True,
        )
        return [
            (key, g if g.stride() == stride else g.contiguous())
            for (key, _, stride), g in zip(entries, found, strict=True)
            if g is not None
        ]
