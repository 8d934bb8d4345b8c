"""Virtual devices in one process: every rank holds its own shards, local operators run on them, collectives move them.

Ranks whose operands are the very same arrays (replicas) are computed once: the result is the same by determinism, not
by assumption, since arrays are only shared after a collective or a load made them equal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from planner.errors import VerificationError
from planner.ir import Layout, Op
from planner.kernels import Performed, ShardContext, run_local, run_ranks, spmd_backward, spmd_forward
from planner.kernels.gradients import vjp
from planner.kernels.shards import Array, Shards
from planner.lowering import Program, Redistribute
from planner.lowering.touched import Key
from planner.rules.localize import local_op
from planner.rules.strategy import Strategy
from planner.verify.collectives import apply

__all__ = ["VirtualDevices"]

_Outputs = list[Array | None]


class VirtualDevices:
    """The shards of every value and gradient, by tensor and layout.

    `forward`, `backward` and `redistribute` read what lies there and return what they make of it; whoever drives them
    puts it in its place (`planner.verify.proof`).  VerificationError where something is read that is not there.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.graph, self.mesh = program.graph, program.mesh
        self.values: dict[Key, Shards] = {}
        self.gradients: dict[Key, Shards] = {}
        self.performed: list[Performed] = []  # the collectives inside the operator that ran last
        self.residuals: dict[str, list[_Outputs]] = {}  # operator → per rank what its backward reads beside results

    def layout(self, name: str, layout: Layout | None) -> Layout:
        """`layout`, or replication where the rule leaves the tensor out."""
        return Layout.replicated(self.graph.tensors[name].rank) if layout is None else layout

    def redistribute(self, move: Redistribute) -> Shards:
        """The value (or gradient, which is used up) in its new layout."""
        store = self.gradients if move.gradient else self.values
        source = (move.tensor, move.source)
        if source not in store:
            kind = "gradient of " if move.gradient else ""
            raise VerificationError(f"{kind}{move.tensor}: the program converts it from {move.source}, where it is not")
        shards = store.pop(source) if move.gradient else store[source]
        for step in move.steps:
            shards = apply(step, shards, self.mesh)
        return shards

    def forward(self, op: Op) -> list[Shards | None]:
        """Local results of every rank, one column per output; None where there is none."""
        strategy, rule = self.program.strategies[op.name], self.program.rules[op.name]
        operands = self._operands(op, strategy)
        local = local_op(op, rule, strategy, self.mesh)
        kernel = spmd_forward(op, rule, strategy.split)
        placed = list(zip(op.outputs, strategy.results, strict=True))
        self.performed = []
        if kernel is not None:
            rows = zip(operands, self._contexts(op, strategy), strict=True)
            results = run_ranks([kernel(local, x, c) for x, c in rows], self.mesh, strategy.split, self.performed)
        else:
            shapes = [None if x is None or not n else x.local_shape(self._shape(n), self.mesh) for n, x in placed]
            results = _each_distinct(operands, lambda row: run_local(local, row, output_shapes=shapes))
        if kernel is not None and self.program.active:
            self.residuals[op.name] = [r[len(op.outputs) :] for r in results]
        return [_scaled(column, strategy.scale) for column in _columns(results, len(op.outputs))]

    def backward(self, op: Op, wanted: Sequence[bool], *, keep: bool = False) -> list[Shards | None]:
        """Local gradients of the wanted operands, one column per operand.  Those of the results are used up, unless
        they are to be `keep`t."""
        strategy, rule = self.program.strategies[op.name], self.program.rules[op.name]
        operands = self._operands(op, strategy)
        results = self._results(op, strategy.results, self.values)
        gradients = self._results(op, strategy.result_gradients, self.gradients, take=not keep, active=True)
        if strategy.scale != 1.0:
            gradients = [[None if g is None else (g * strategy.scale).astype(g.dtype) for g in r] for r in gradients]
        local = local_op(op, rule, strategy, self.mesh)
        self.performed = []
        kernel = spmd_backward(op, rule, strategy.split)
        if kernel is not None:
            further = self.residuals.pop(op.name, None)
            results = results if further is None else [[*r, *more] for r, more in zip(results, further, strict=True)]
            rows = zip(operands, results, gradients, self._contexts(op, strategy), strict=True)
            started = [kernel(local, x, y, g, wanted, c) for x, y, g, c in rows]
            found = run_ranks(started, self.mesh, strategy.split, self.performed)
        else:
            n, m = len(op.inputs), len(op.outputs)
            flat = [[*x, *y, *g] for x, y, g in zip(operands, results, gradients, strict=True)]
            found = _each_distinct(flat, lambda v: vjp(local, v[:n], v[n : n + m], v[n + m :], wanted))
        columns = _columns(found, len(op.inputs))
        return [c if wanted[i] else None for i, c in enumerate(columns)]

    def _contexts(self, op: Op, strategy: Strategy) -> list[ShardContext]:
        rule = self.program.rules[op.name]
        return [ShardContext.of(rule, strategy.split, self.mesh, r) for r in range(self.mesh.devices)]

    def _shape(self, tensor: str) -> tuple[int, ...]:
        shape = self.graph.tensors[tensor].shape
        assert shape is not None, "only tensors of known shape are laid out"
        return shape

    def _operands(self, op: Op, strategy: Strategy) -> list[list[Array | None]]:
        """Local operands of every rank."""
        columns: list[Shards | None] = []
        rule = self.program.rules[op.name]
        for i, name in enumerate(op.inputs):
            if not name:
                columns.append(None)
            elif i == rule.shape_operand and op.outputs[0] and strategy.results[0] is not None:
                local = strategy.results[0].local_shape(self._shape(op.outputs[0]), self.mesh)
                columns.append((np.array(local, dtype=np.int64),) * self.mesh.devices)
            else:
                key = name, self.layout(name, strategy.operands[i])
                if key not in self.values:
                    where = f"{name} as {key[1]}, where the program never put it"
                    raise VerificationError(f"{op.type} {op.name} reads {where}")
                columns.append(self.values[key])
        return [[None if c is None else c[r] for c in columns] for r in range(self.mesh.devices)]

    def _results(
        self,
        op: Op,
        layouts: tuple[Layout | None, ...],
        store: dict[Key, Shards],
        *,
        take: bool = False,
        active: bool = False,
    ) -> list[_Outputs]:
        """Results, or, of `active` tensors, their gradients, of every rank; None where there is none.  They stay unless
        one is to `take` them."""
        columns: list[Shards | None] = []
        for j, name in enumerate(op.outputs):
            key = (name, self.layout(name, layouts[j])) if name else None
            if key is None or key not in store or (active and name not in self.program.active):
                columns.append(None)
            else:
                columns.append(store.pop(key) if take else store[key])
        return [[None if c is None else c[r] for c in columns] for r in range(self.mesh.devices)]


def _columns(rows: list[_Outputs], count: int) -> list[Shards | None]:
    """Per place the values of all ranks; None where some rank has none."""
    out: list[Shards | None] = []
    for j in range(count):
        column = [row[j] if j < len(row) else None for row in rows]
        present = [x for x in column if x is not None]
        out.append(tuple(present) if len(present) == len(rows) else None)
    return out


def _scaled(column: Shards | None, scale: float) -> Shards | None:
    if column is None or scale == 1.0:
        return column
    scaled = {id(x): (x * scale).astype(x.dtype) for x in column}
    return tuple(scaled[id(x)] for x in column)


def _each_distinct(
    rows: list[list[Array | None]], work: Callable[[list[Array | None]], list[Array | None]]
) -> list[_Outputs]:
    """`work(arrays)` on every rank's arrays, once for ranks that hold the very same ones."""
    done: dict[tuple[int, ...], _Outputs] = {}
    for row in rows:
        key = tuple(map(id, row))
        if key not in done:
            done[key] = work(row)
    return [done[tuple(map(id, row))] for row in rows]


def last_uses(program: Program) -> Mapping[int, list[Key]]:
    """Instruction index → values that nothing reads after it; outputs of the graph stay."""
    last: dict[Key, int] = {}
    for i, instruction in enumerate(program.instructions):
        if isinstance(instruction, Redistribute):
            if not instruction.gradient:
                last[instruction.tensor, instruction.source] = last[instruction.tensor, instruction.target] = i
        elif hasattr(instruction, "op"):
            op, strategy = program.graph.op(instruction.op), program.strategies[instruction.op]
            named = [*zip(op.inputs, strategy.operands, strict=True), *zip(op.outputs, strategy.results, strict=True)]
            for name, layout in named:
                if name:
                    last[name, layout or Layout.replicated(program.graph.tensors[name].rank)] = i
    out: dict[int, list[Key]] = {}
    for key, i in last.items():
        out.setdefault(i, []).append(key)
    return out
