"""Operators whose result is the same whatever is drawn, on operands of their own.

A softmax that is summed up gives one, and shards that are all alike show nothing.  Such an operator runs once more, by
itself, on operands that are moved at random and so no longer related as the model relates them.  If its result then
responds and is right, the operator is; what moves its result is held against that other result, too.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.errors import VerificationError
from planner.ir import Op
from planner.kernels import NoKernelError, run_local
from planner.kernels.shards import Array, shard
from planner.lowering import Program, Redistribute
from planner.verify.collectives import apply
from planner.verify.compare import Difference, difference
from planner.verify.execute import VirtualDevices
from planner.verify.respond import silence

__all__ = ["Freed"]

_LEAST, _MOST = 0.5, 1.5  # times its size that an element is moved to: it stays in the operator's domain


class Freed:
    """Other results, by tensor, of operators that were proved in this way."""

    def __init__(self, program: Program, seed: int) -> None:
        self.program, self.graph, self.mesh = program, program.graph, program.mesh
        self.rng = np.random.default_rng([seed, 1])
        self.values: dict[str, Array] = {}

    def proves(self, op: Op, place: int, operands: Sequence[Array | None]) -> bool:
        """Whether result number `place` responds and is right on operands near these, which are the whole model's."""
        moved = {n: self._moved(n, x) for n, x in zip(op.inputs, operands, strict=True) if x is not None}
        try:
            return self._right(op, place, [moved[n] if n else None for n in op.inputs])
        except (VerificationError, NoKernelError, ArithmeticError, LookupError, TypeError, ValueError):
            return False

    def redistributed(self, move: Redistribute) -> Difference:
        """What is wrong with the conversion of such a result, on its other values; nothing of any other tensor."""
        if move.gradient or move.tensor not in self.values:
            return Difference()
        whole = self.values[move.tensor]
        shards = shard(whole, move.source, self.mesh, self.rng)
        for step in move.steps:
            shards = apply(step, shards, self.mesh)
        return difference(shards, move.target, whole, self.mesh)

    def _moved(self, name: str, x: Array) -> Array:
        if x.dtype.kind != "f" or x.size < 2 or self.graph.tensors[name].value is not None:
            return x
        return np.asarray(x * self.rng.uniform(_LEAST, _MOST, x.shape), dtype=x.dtype)

    def _right(self, op: Op, place: int, operands: Sequence[Array | None]) -> bool:
        strategy, rule = self.program.strategies[op.name], self.program.rules[op.name]
        devices = VirtualDevices(self.program)
        for name, x, layout in zip(op.inputs, operands, strategy.operands, strict=True):
            if x is not None:
                at = devices.layout(name, layout)
                devices.values[name, at] = shard(x, at, self.mesh, self.rng)
        shapes = [self.graph.tensors[t].shape if t else None for t in op.outputs]
        whole, found = run_local(op, operands, output_shapes=shapes)[place], devices.forward(op)[place]
        if whole is None or found is None or not np.isfinite(whole).all():
            return False
        name = op.outputs[place]
        layout = devices.layout(name, strategy.results[place])
        if silence(whole, layout, rule, place, operands, self.mesh):
            return False
        if not difference(found, layout, whole, self.mesh).fine:
            return False
        self.values[name] = whole
        return True
