"""One rank's interpreter of an SPMD program.

Instructions run in program order, collectives among them: nothing overlaps.  A forward operator whose result carries a
gradient is recorded by autograd on its own (its operands are leaves), so that its backward runs where the program says;
what the collectives between operators do to gradients is in the program, not in autograd.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from planner.errors import VerificationError
from planner.ir import Layout, Op, Role
from planner.kernels import ShardContext
from planner.kernels.shards import Array
from planner.lowering import Instruction, Load, Program, Redistribute, Run, Seed
from planner.rules.localize import local_op
from planner.runtime.arrays import torch_function
from planner.runtime.collectives import Inside, apply
from planner.runtime.fallback import NumpyCall, run_with_numpy
from planner.runtime.lifetimes import last_uses
from planner.runtime.registry import Call, Function
from planner.runtime.workers import Context
from planner.verify.reference import incoming_gradient
from planner.work.activity import fixed_operators

__all__ = ["Rank", "Watch"]

_Key = tuple[str, Layout]
Watch = Callable[[Instruction], None]


@dataclass(frozen=True, slots=True)
class _Recorded:
    """An operator that autograd has followed: leaves by operand, and the results computed from them."""

    leaves: Sequence[Tensor | None]
    results: Sequence[Tensor | None]


@dataclass(frozen=True, slots=True)
class _Bound:
    """What never changes about an operator on this rank.  `inputs` and `outputs` are the keys of its values (None where
    absent), `wanted` the operands whose gradient it gives."""

    op: Op
    function: Function | None
    inputs: tuple[_Key | None, ...]
    outputs: tuple[_Key | None, ...]
    gradients: tuple[_Key | None, ...]
    given: tuple[_Key | None, ...]
    wanted: tuple[bool, ...]
    shapes: tuple[tuple[int, ...] | None, ...]
    place: ShardContext
    inside: Inside
    reduced: tuple[str, ...]
    scale: float
    shape_operand: int | None
    weights_only: bool


class Rank:
    """Executes `program` on this process's rank, from whole values of parameters, inputs and constants by name.

    What is loaded, and what is computed from constants alone, is laid out once, when the rank is made.
    """

    def __init__(self, program: Program, whole: Mapping[str, Array], context: Context) -> None:
        self.program, self.graph, self.mesh = program, program.graph, program.mesh
        self.context = context
        self.bound = {op.name: self._bind(op) for op in self.graph.ops}
        self.fixed = fixed_operators(self.graph)
        self.last = last_uses(program)
        self.values: dict[_Key, Tensor] = {}
        self.gradients: dict[_Key, Tensor] = {}
        self.records: dict[str, _Recorded | NumpyCall] = {}
        self.fallbacks: set[str] = set()
        self.resident = self._resident(whole)
        self.seeds = self._seeds()

    # Preparation

    def _resident(self, whole: Mapping[str, Array]) -> dict[_Key, Tensor]:
        """Values that stay from step to step."""
        for i in self.program.instructions:
            if isinstance(i, Load):
                given = self.graph.tensors[i.tensor].value
                value = np.asarray(whole[i.tensor] if given is None else given)
                self.values[i.tensor, i.layout] = self._shard(value, i.layout)
            elif isinstance(i, Run) and i.op in self.fixed and not i.backward:
                self._forward(self.bound[i.op])
            elif isinstance(i, Redistribute) and not i.gradient and (i.tensor, i.source) in self.values:
                producer = self.graph.producers.get(i.tensor)
                if (producer is not None and producer.name in self.fixed) or self._is_constant(i.tensor):
                    self._redistribute(i)
        resident, self.values = dict(self.values), {}
        return resident

    def _is_constant(self, tensor: str) -> bool:
        return self.graph.tensors[tensor].role is Role.CONSTANT

    def _seeds(self) -> dict[_Key, Tensor]:
        return {
            (i.tensor, i.layout): self._shard(incoming_gradient(self.graph, i.tensor), i.layout)
            for i in self.program.instructions
            if isinstance(i, Seed)
        }

    def _shard(self, value: Array, layout: Layout) -> Tensor:
        """This rank's part; of a pending sum the first rank of each group holds the value, the others zeros."""
        piece = layout.shard(value, self.mesh, self.context.rank)
        at = self.mesh.coordinates(self.context.rank)
        if any(at[a] for a in layout.partial_axes):
            piece = np.zeros_like(piece)
        return torch.from_numpy(np.array(piece, order="C", copy=True)).to(self.context.device)

    def _bind(self, op: Op) -> _Bound:
        strategy, rule = self.program.strategies[op.name], self.program.rules[op.name]
        split = strategy.split
        reads = tuple(self._key(n, x) for n, x in zip(op.inputs, strategy.operands, strict=True))
        writes = tuple(self._key(n, x) for n, x in zip(op.outputs, strategy.results, strict=True))
        place = ShardContext.of(rule, split, self.mesh, self.context.rank)
        fixed = (Role.PARAMETER, Role.CONSTANT)
        return _Bound(
            local_op(op, rule, strategy, self.mesh),
            torch_function(op.type, aware=rule.aware(split)),
            reads,
            writes,
            tuple(self._key(n, x) for n, x in zip(op.outputs, strategy.result_gradients, strict=True)),
            tuple(self._key(n, x) for n, x in zip(op.inputs, strategy.operand_gradients, strict=True)),
            tuple(n in self.program.active and i in rule.differentiable for i, n in enumerate(op.inputs)),
            tuple(self._local_shape(k) for k in writes),
            place,
            Inside(self.context, self.mesh, split),
            place.reduced_factors(),
            strategy.scale,
            rule.shape_operand if strategy.results and strategy.results[0] is not None else None,
            all(self.graph.tensors[n].role in fixed for n in op.inputs if n),
        )

    def _key(self, name: str, layout: Layout | None) -> _Key | None:
        if not name:
            return None
        return name, Layout.replicated(self.graph.tensors[name].rank) if layout is None else layout

    def _local_shape(self, key: _Key | None) -> tuple[int, ...] | None:
        shape = None if key is None else self.graph.tensors[key[0]].shape
        return None if key is None or shape is None else key[1].local_shape(shape, self.mesh)

    # Execution

    def step(self, watch: Watch | None = None) -> None:
        """One forward pass, and one backward pass where the program has one.  Afterwards `values` holds the outputs of
        the graph and `gradients` those of the parameters.  `watch` is told of every instruction when it is done."""
        self.values, self.gradients = dict(self.resident), {}
        self.records.clear()
        self.context.ledger.clear()
        for at, i in enumerate(self.program.instructions):
            if isinstance(i, Redistribute):
                if i.gradient or (i.tensor, i.target) not in self.resident:
                    self._redistribute(i)
            elif isinstance(i, Run):
                bound = self.bound[i.op]
                if i.backward:
                    self._backward(bound)
                elif i.op not in self.fixed:
                    self._forward(bound)
            elif isinstance(i, Seed):
                self.gradients[i.tensor, i.layout] = self.seeds[i.tensor, i.layout]
            for key in self.last.get(at, ()):
                self.values.pop(key, None)
            if watch is not None:
                watch(i)

    def planned(self) -> dict[str, tuple[int, int]]:
        """Collectives between operators that the program has for a step, by kind: how many, and bytes of the tensors as
        they are executed.  What is computed from constants alone was laid out when the rank was made."""
        moves = [c for c in self.program.redistributions() if c.gradient or (c.tensor, c.target) not in self.resident]
        found = self.program.moved(moves, {c.tensor: self.graph.tensors[c.tensor].bytes for c in moves})
        return {kind: (t.count, t.bytes) for kind, t in found.items()}

    def release(self) -> None:
        """Drops what the last step computed."""
        self.values, self.gradients = {}, {}
        self.records.clear()

    def _redistribute(self, move: Redistribute) -> None:
        store = self.gradients if move.gradient else self.values
        source = (move.tensor, move.source)
        if source not in store:
            kind = "gradient of " if move.gradient else ""
            raise VerificationError(f"{kind}{move.tensor}: the program converts it from {move.source}, where it is not")
        value = store.pop(source) if move.gradient else store[source]
        for step in move.steps:
            value = apply(step, value, self.mesh, self.context)
        if move.gradient:
            self._contribute((move.tensor, move.target), value)
        else:
            store[move.tensor, move.target] = value

    def _contribute(self, key: _Key, gradient: Tensor) -> None:
        held = self.gradients.get(key)
        self.gradients[key] = gradient if held is None else held + gradient

    def _operands(self, b: _Bound) -> list[Tensor | None]:
        out: list[Tensor | None] = []
        for i, key in enumerate(b.inputs):
            if key is None:
                out.append(None)
            elif i == b.shape_operand:
                out.append(torch.tensor(b.shapes[0], dtype=torch.int64, device=self.context.device))
            elif key not in self.values:
                raise VerificationError(
                    f"{b.op.type} {b.op.name} reads {key[0]} as {key[1]}, where the program never put it"
                )
            else:
                out.append(self.values[key])
        return out

    def _forward(self, b: _Bound) -> None:
        operands = self._operands(b)
        followed = any(b.wanted)
        if b.function is not None:
            leaves = [
                x.detach().requires_grad_() if x is not None and want else x
                for x, want in zip(operands, b.wanted, strict=True)
            ]
            with torch.set_grad_enabled(followed):
                found = b.function(Call(b.op, leaves, b.shapes, b.place, b.inside, b.reduced, b.weights_only))
                results = [found] if isinstance(found, Tensor) else found
                if results is not None and b.scale != 1.0:
                    results = [y if y is None else y * b.scale for y in results]
            if results is not None:
                if followed:
                    self.records[b.op.name] = _Recorded(leaves, results)
                self._store(b, [y if y is None else y.detach() for y in results])
                return
        self.fallbacks.add(b.op.type)
        rule = self.program.rules[b.op.name]
        outputs, call = run_with_numpy(b.op, rule, operands, b.shapes, b.place, b.inside)
        if followed:
            self.records[b.op.name] = call
        self._store(b, [y if y is None or b.scale == 1.0 else y * b.scale for y in outputs])

    def _store(self, b: _Bound, results: Sequence[Tensor | None]) -> None:
        for key, y in zip(b.outputs, results, strict=False):
            if key is not None and y is not None:
                self.values[key] = y

    def _backward(self, b: _Bound) -> None:
        given = [self.gradients.pop(k, None) if k is not None and k[0] in self.program.active else None
                 for k in b.gradients]  # fmt: skip
        record = self.records.pop(b.op.name, None)
        if record is None or all(g is None for g in given):
            return
        if isinstance(record, NumpyCall):
            scaled = [g if g is None or b.scale == 1.0 else g * b.scale for g in given]
            found = record.backward(scaled, b.wanted)
        else:
            found = _differentiated(record, given, b.wanted)
        for key, g in zip(b.given, found, strict=False):
            if key is not None and g is not None:
                self._contribute(key, g)


def _differentiated(record: _Recorded, given: Sequence[Tensor | None], wanted: Sequence[bool]) -> list[Tensor | None]:
    """Gradients of the wanted operands from those of the results."""
    pairs = [(y, g) for y, g in zip(record.results, given, strict=False) if g is not None and y is not None]
    leaves = [x for x, want in zip(record.leaves, wanted, strict=True) if want and x is not None]
    found = iter(torch.autograd.grad([y for y, _ in pairs], leaves, [g for _, g in pairs], allow_unused=True))
    given_back: list[Tensor | None] = []
    for x, want in zip(record.leaves, wanted, strict=True):
        g = next(found) if want and x is not None else None
        # As the operand lies in memory (a transposed weight is a view); other views leave a copy to their next reader.
        given_back.append(g if g is None or x is None or g.stride() == x.stride() else g.contiguous())
    return given_back
