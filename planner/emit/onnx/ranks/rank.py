"""The forward pass of a program as one rank runs it, in ONNX nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

import numpy as np

from planner.emit.onnx.ranks.local import Local
from planner.emit.onnx.ranks.registry import lowering
from planner.emit.onnx.ranks.steps import apply, group_of
from planner.emit.onnx.ranks.writer import Array, Shape, Value, Writer
from planner.errors import InputError
from planner.frontends.file.nodes import node_of
from planner.frontends.steps.draft import captured_by, split_type
from planner.frontends.steps.experts import EXPERT_MATMUL, spelled_out
from planner.ir import Graph, Layout, Op, Role, Tensor
from planner.kernels import ShardContext
from planner.lowering import Instruction, Load, Program, Redistribute, Run, Seed
from planner.rules.localize import local_op

__all__ = ["Held", "RankGraph", "forward", "versions"]

_ANY_OPSET: Final = 20

_Key = tuple[str, Layout]
Read = Callable[[str], "Array | None"]


@dataclass(frozen=True, slots=True)
class Held:
    """A value at the edge of a rank's graph: of which tensor, in which layout."""

    tensor: str
    layout: Layout


def forward(program: Program) -> Iterator[Instruction]:
    """Instructions of the forward pass; blocks that run again belong to the backward."""
    seen: set[str] = set()
    for i in program.instructions:
        if isinstance(i, Seed) or (isinstance(i, Redistribute) and i.gradient):
            return
        if isinstance(i, Run):
            if i.backward or i.op in seen:
                return
            seen.add(i.op)
        yield i


def versions(graph: Graph) -> dict[str, int]:
    """Operator sets of the model by domain.  Where it has no operator of ONNX's own, their version is free."""
    found: dict[str, int] = {}
    for op in graph.ops:
        domain = "" if op.type == EXPERT_MATMUL else split_type(op.type)[0]
        found[domain] = max(found.get(domain, 1), op.opset)
    return {"": _ANY_OPSET, **found}


class RankGraph:
    """Writes the nodes of `rank` when it is made.  `read` gives whole values of tensors that have one.

    InputError where an operator has no form here.
    """

    def __init__(self, program: Program, rank: int, read: Read) -> None:
        self.program, self.rank, self.read = program, rank, read
        self.graph, self.mesh = program.graph, program.mesh
        self.writer = Writer(versions(self.graph)[""], self.graph.tensors)
        self.values: dict[_Key, Value] = {}
        self.inputs: dict[str, Held] = {}
        self.stored: dict[str, Held] = {}  # parameters and constants that the file holds
        self.outputs: dict[str, Held] = {}
        self.plain = _plain_keys(program)
        self._group = lru_cache(maxsize=None)(lambda axes: group_of(self.mesh, axes, rank))
        for i in forward(program):
            if isinstance(i, Load):
                self._load(i)
            elif isinstance(i, Redistribute):
                self._redistribute(i)
            elif isinstance(i, Run):
                self._run(self.graph.op(i.op))
        self._finish()

    # Names

    def _key(self, name: str, layout: Layout | None) -> _Key:
        return name, Layout.replicated(self.graph.tensors[name].rank) if layout is None else layout

    def _name(self, key: _Key) -> str:
        """The tensor's own name for the one layout that it means, others have theirs behind it."""
        if self.plain.get(key[0]) == key and key[0] not in self.writer.values:
            return key[0]
        return self.writer.fresh(f"{key[0]}@{key[1]}")

    def _shape(self, key: _Key) -> Shape | None:
        shape = self.graph.tensors[key[0]].shape
        if shape is None:
            return None
        try:
            return key[1].local_shape(shape, self.mesh)
        except ValueError as e:
            raise InputError(f"plan: tensor {key[0]} as {key[1]}: {e}") from e

    def _value(self, op: Op, key: _Key) -> Value:
        if key not in self.values:
            raise InputError(f"plan: {op.type} {op.name} reads {key[0]} as {key[1]}, where the plan never puts it")
        return self.values[key]

    # Instructions

    def _load(self, load: Load) -> None:
        tensor, key = self.graph.tensors[load.tensor], (load.tensor, load.layout)
        name, held = self._name(key), Held(*key)
        value = None if tensor.role is Role.INPUT else self.read(load.tensor)
        out = self.writer.declare(name, tensor.dtype, self._shape(key))
        if value is None:
            self.inputs[name] = held
        else:
            piece = load.layout.shard(value, self.mesh, self.rank)
            self.writer.store(name, piece)
            self.stored[name] = held
        self.values[key] = out

    def _redistribute(self, move: Redistribute) -> None:
        source = (move.tensor, move.source)
        if source not in self.values:
            raise InputError(f"plan: {move.tensor} is converted from {move.source}, where the plan never puts it")
        x = self.values[source]
        self.writer.scope = move.tensor
        for i, step in enumerate(move.steps):
            last = i == len(move.steps) - 1
            key = (move.tensor, move.target if last else step.target)
            name = self._name(key) if last else self.writer.fresh(f"{move.tensor}@{step.target}")
            x = apply(self.writer, step, x, self.mesh, self.rank, name)
        self.values[move.tensor, move.target] = x

    def _run(self, op: Op) -> None:
        strategy, rule = self.program.strategies[op.name], self.program.rules[op.name]
        w, split = self.writer, strategy.split
        w.scope = op.name
        reads = [self._key(n, x) if n else None for n, x in zip(op.inputs, strategy.operands, strict=True)]
        writes = [self._key(n, x) if n else None for n, x in zip(op.outputs, strategy.results, strict=True)]
        shapes = [None if k is None else self._shape(k) for k in writes]
        local = local_op(op, rule, strategy, self.mesh)
        operands: list[Value | None] = []
        for i, key in enumerate(reads):
            if (
                key is not None
                and i == rule.shape_operand
                and strategy.results[0] is not None
                and shapes[0] is not None
            ):
                operands.append(w.constant(np.array(shapes[0], dtype=np.int64)))
            else:
                operands.append(None if key is None else self._value(op, key))
        place = ShardContext.of(rule, split, self.mesh, self.rank)
        known = [None if k is None else self.graph.tensors[k[0]].value for k in reads]
        if (
            strategy.results
            and rule.shape_operand is not None
            and rule.shape_operand < len(known)
            and shapes[0] is not None
        ):
            known[rule.shape_operand] = np.array(shapes[0], dtype=np.int64)
        here = Local(local, place, {f: self._group(axes) for f, axes in split.items()}, known, shapes)
        since = len(w.nodes)
        function = lowering(here)
        if function is not None:
            results = function(w, here, operands)
        else:
            results = self._plain_node(here, operands, writes)
        for key, y in zip(writes, results, strict=False):
            if key is None or y is None:
                continue
            y = w.cast(y, self.graph.tensors[key[0]].dtype)
            if strategy.scale != 1.0:
                y = w.op("Mul", [y, w.number(strategy.scale, y)], y.dtype, y.shape)
            self.values[key] = w.named(y, self._name(key), since)

    def _plain_node(
        self, here: Local, operands: Sequence[Value | None], writes: Sequence[_Key | None]
    ) -> list[Value | None]:
        """The operator as it is, on shards."""
        op, w = here.op, self.writer
        results = [
            None if k is None else w.declare(w.fresh(f"{k[0]}/local"), self.graph.tensors[k[0]].dtype, shape)
            for k, shape in zip(writes, here.shapes, strict=True)
        ]
        inner = captured_by(op)
        for name in inner:
            at = op.inputs.index(name)
            found = operands[at]
            if found is None or found.name != name:
                raise InputError(
                    f"plan: operator {op.name} ({op.type}): its sub-graph reads {name}, which the plan holds there in "
                    "another layout than it was made in; pin the operator that makes it to `replicated`"
                )
        renamed = replace(
            op,
            inputs=tuple(x.name if x is not None else "" for x in operands),
            outputs=tuple(y.name if y is not None else "" for y in results),
        )
        if op.type == EXPERT_MATMUL:
            tensors = {x.name: Tensor(x.name, x.dims, x.dtype, Role.ACTIVATION) for x in operands if x is not None}
            nodes, constants = spelled_out(renamed, tensors, w.opset)
            for c in constants:
                w.constants[c.name] = c
            w.nodes += nodes
        else:
            w.raw(node_of(renamed))
        return results

    # Edges

    def _finish(self) -> None:
        for tensor in self.graph.outputs:
            key = self.plain[tensor]
            if key not in self.values:
                raise InputError(f"plan: output {tensor} is never computed")
            value = self.values[key]
            if value.name != tensor or tensor in self.inputs or tensor in self.stored:
                if tensor in self.writer.values:  # the name is another layout's, or an input's
                    name = self.writer.fresh(f"{tensor}@output")
                else:
                    name = tensor
                self.writer.scope = tensor
                self.writer.op("Identity", [value], value.dtype, value.shape, name=name)
                self.outputs[name] = Held(*key)
            else:
                self.outputs[tensor] = Held(*key)


def _plain_keys(program: Program) -> dict[str, _Key]:
    """Which layout of a tensor goes by its own name: of an output the one that is handed over (that with the fewest
    pending sums, the earliest of them), of others the first."""
    held: dict[str, list[Layout]] = {}

    def put(name: str, layout: Layout | None) -> None:
        if name:
            found = held.setdefault(name, [])
            layout = Layout.replicated(program.graph.tensors[name].rank) if layout is None else layout
            if layout not in found:
                found.append(layout)

    for i in forward(program):
        if isinstance(i, Load):
            put(i.tensor, i.layout)
        elif isinstance(i, Redistribute):
            put(i.tensor, i.target)
        elif isinstance(i, Run):
            for name, layout in zip(program.graph.op(i.op).outputs, program.strategies[i.op].results, strict=True):
                put(name, layout)
    outputs = set(program.graph.outputs)
    return {
        n: (n, min(layouts, key=lambda x: len(x.partial)) if n in outputs else layouts[0])
        for n, layouts in held.items()
    }
