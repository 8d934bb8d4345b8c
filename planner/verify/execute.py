"""Runs an SPMD program on virtual devices in one process.

Every rank holds its own shards; local operators run on them, collectives move them.  Ranks whose operands are
the very same arrays (replicas) are computed once: the result is the same by determinism, not by assumption,
since arrays are only shared after a collective or a load made them equal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from planner.errors import VerificationError
from planner.ir import Layout, Op
from planner.lowering import Convert, Load, Program, Run, Seed
from planner.rules.localize import local_op
from planner.rules.strategy import Strategy
from planner.verify.collectives import apply
from planner.verify.kernels import ShardContext, run_local, run_ranks, spmd_backward, spmd_forward
from planner.verify.reference import incoming_gradient
from planner.verify.shards import Array, Shards, assemble, shard
from planner.verify.vjp import vjp

__all__ = ["VirtualDevices"]

FOLD_BYTES = 1 << 30  # pending sums whose terms take more than this together are folded as they arise

_Key = tuple[str, Layout]
_Outputs = list[Array | None]


class VirtualDevices:
    """Executes `program` from whole values of parameters, inputs and constants by tensor name."""

    def __init__(
        self, program: Program, whole: Mapping[str, Array], progress: Callable[[int, int], None] | None = None
    ) -> None:
        self.program = program
        self.graph, self.mesh = program.graph, program.mesh
        self.whole = whole
        self.values: dict[_Key, Shards] = {}
        self.gradients: dict[_Key, Shards] = {}
        self.residuals: dict[str, list[_Outputs]] = {}  # operator → per rank what its backward reads beside results
        self.progress = progress

    def run(self) -> None:
        """Executes every instruction in order."""
        total = len(self.program.instructions)
        last = _last_uses(self.program)
        for i, instruction in enumerate(self.program.instructions):
            if isinstance(instruction, Load):
                value = self._whole(instruction.tensor)
                self.values[instruction.tensor, instruction.layout] = shard(value, instruction.layout, self.mesh)
            elif isinstance(instruction, Convert):
                self._convert(instruction)
            elif isinstance(instruction, Seed):
                self._seed(instruction)
            elif instruction.backward:
                self._backward(self.graph.op(instruction.op))
            else:
                self._forward(self.graph.op(instruction.op))
            for key in last.get(i, ()):
                self.values.pop(key, None)
            if self.progress is not None:
                self.progress(i + 1, total)

    def value(self, tensor: str) -> Array:
        """The whole value of a computed tensor, from the shards of every rank."""
        return self._assembled(tensor, self.values, f"tensor {tensor}")

    def parameter_gradient(self, tensor: str) -> Array:
        """The whole gradient of a parameter, in the layout it is stored in."""
        layout = self.program.final_gradients[tensor]
        shape = self._shape(tensor)
        if (tensor, layout) not in self.gradients:
            raise VerificationError(f"gradient of {tensor}: the program never brings it to its stored layout {layout}")
        return assemble(self.gradients[tensor, layout], layout, shape, self.mesh, what=f"gradient of {tensor}")

    def _assembled(self, tensor: str, store: Mapping[_Key, Shards], what: str) -> Array:
        found = [(layout, shards) for (name, layout), shards in store.items() if name == tensor]
        if not found:
            raise VerificationError(f"{what}: the program never computed it")
        layout, shards = min(found, key=lambda f: len(f[0].partial))
        if self.graph.tensors[tensor].shape is None:  # depends on data, so it is whole everywhere
            return shards[0]
        return assemble(shards, layout, shards[0].shape if layout.is_replicated else self._shape(tensor), self.mesh)

    def _shape(self, tensor: str) -> tuple[int, ...]:
        shape = self.graph.tensors[tensor].shape
        assert shape is not None, "only tensors of known shape are laid out"
        return shape

    def _whole(self, tensor: str) -> Array:
        value = self.graph.tensors[tensor].value
        return self.whole[tensor] if value is None else value

    def _convert(self, move: Convert) -> None:
        store = self.gradients if move.gradient else self.values
        source = (move.tensor, move.source)
        if source not in store:
            kind = "gradient of " if move.gradient else ""
            raise VerificationError(f"{kind}{move.tensor}: the program converts it from {move.source}, where it is not")
        shards = store.pop(source) if move.gradient else store[source]
        for step in move.steps:
            shards = apply(step, shards, self.mesh)
        if move.gradient:
            self._contribute((move.tensor, move.target), shards)
        else:
            store[move.tensor, move.target] = shards

    def _contribute(self, key: _Key, shards: Shards) -> None:
        if key not in self.gradients:
            self.gradients[key] = shards
            return
        sums: dict[tuple[int, int], Array] = {}
        held = self.gradients[key]
        for a, b in zip(held, shards, strict=True):
            if (id(a), id(b)) not in sums:
                sums[id(a), id(b)] = a + b
        self.gradients[key] = tuple(sums[id(a), id(b)] for a, b in zip(held, shards, strict=True))

    def _seed(self, seed: Seed) -> None:
        incoming = incoming_gradient(self.graph, seed.tensor)
        self.gradients[seed.tensor, seed.layout] = shard(incoming, seed.layout, self.mesh)

    # Operators

    def _layout(self, name: str, layout: Layout | None) -> Layout:
        return Layout.replicated(self.graph.tensors[name].rank) if layout is None else layout

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
                columns.append(self._operand(op, name, self._layout(name, strategy.operands[i])))
        return [[None if c is None else c[r] for c in columns] for r in range(self.mesh.devices)]

    def _operand(self, op: Op, name: str, layout: Layout) -> Shards:
        if (name, layout) not in self.values:
            raise VerificationError(f"{op.type} {op.name} reads {name} as {layout}, where the program never put it")
        return self.values[name, layout]

    def _forward(self, op: Op) -> None:
        strategy = self.program.strategies[op.name]
        rule = self.program.rules[op.name]
        operands = self._operands(op, strategy)
        split = strategy.split
        local = local_op(op, rule, strategy, self.mesh)
        kernel = spmd_forward(op, rule, split)
        placed = list(zip(op.outputs, strategy.results, strict=True))
        if kernel is not None:
            contexts = [ShardContext.of(rule, split, self.mesh, r) for r in range(self.mesh.devices)]
            results = run_ranks(
                [kernel(local, x, c) for x, c in zip(operands, contexts, strict=True)], self.mesh, split
            )
        else:
            shapes = [None if x is None or not n else x.local_shape(self._shape(n), self.mesh) for n, x in placed]
            results = _each_distinct(operands, lambda _, x: run_local(local, x, output_shapes=shapes))
        if kernel is not None and self.program.active:
            self.residuals[op.name] = [r[len(op.outputs) :] for r in results]
        for j, name in enumerate(op.outputs):
            column = [r[j] if j < len(r) else None for r in results]
            if name and all(x is not None for x in column):
                self.values[name, self._layout(name, strategy.results[j])] = _scaled(column, strategy.scale)

    def _backward(self, op: Op) -> None:
        strategy = self.program.strategies[op.name]
        rule = self.program.rules[op.name]
        operands = self._operands(op, strategy)
        results = self._columns(op, strategy.results, self.values)
        gradients = self._columns(op, strategy.result_gradients, self.gradients, take=True)
        if strategy.scale != 1.0:
            gradients = [
                [None if g is None else (g * strategy.scale).astype(g.dtype) for g in row] for row in gradients
            ]
        wanted = [bool(n) and n in self.program.active and i in rule.differentiable for i, n in enumerate(op.inputs)]
        split = strategy.split
        local = local_op(op, rule, strategy, self.mesh)
        kernel = spmd_backward(op, rule, split)
        if kernel is not None:
            further = self.residuals.pop(op.name, None)
            results = results if further is None else [[*r, *more] for r, more in zip(results, further, strict=True)]
        rows = list(zip(operands, results, gradients, strict=True))
        if kernel is not None:
            contexts = [ShardContext.of(rule, split, self.mesh, r) for r in range(self.mesh.devices)]
            found = run_ranks(
                [kernel(local, x, y, g, wanted, c) for (x, y, g), c in zip(rows, contexts, strict=True)],
                self.mesh,
                split,
            )
        else:
            n, m = len(op.inputs), len(op.outputs)
            flat = [[*x, *y, *g] for x, y, g in rows]
            fold = [self._folder(name, strategy.operand_gradients[i]) for i, name in enumerate(op.inputs)]

            def one(rank: int, v: list[Array | None]) -> _Outputs:
                gradients = vjp(local, v[:n], v[n : n + m], v[n + m :], wanted)
                return [f(rank, g) if g is not None else None for f, g in zip(fold, gradients, strict=True)]

            found = _each_distinct(flat, one)
        for i, name in enumerate(op.inputs):
            column = [f[i] for f in found]
            if wanted[i] and all(x is not None for x in column):
                key = (name, self._layout(name, strategy.operand_gradients[i]))
                self._contribute(key, _scaled(column, 1.0))

    def _folder(self, name: str, layout: Layout | None) -> Callable[[int, Array], Array]:
        """Keeps the terms of large pending sums from piling up: they are added where the first rank holds its
        term, and the other ranks hold zeros, which is the same pending sum."""
        elements = self.graph.tensors[name].elements if name else 0
        if layout is None or not layout.partial or elements * 4 * self.mesh.devices < FOLD_BYTES:
            return lambda rank, term: term
        first: dict[tuple[tuple[str, int], ...], Array] = {}
        zeros: dict[tuple[int, ...], Array] = {}

        def fold(rank: int, term: Array) -> Array:
            c = self.mesh.coordinates(rank)
            place = tuple((a, i) for a, i in c.items() if a not in layout.partial_axes)
            if place not in first:
                first[place] = np.array(term)
                return first[place]
            first[place] += term
            if term.shape not in zeros:
                zeros[term.shape] = np.zeros_like(term)
            return zeros[term.shape]

        return fold

    def _columns(
        self, op: Op, layouts: tuple[Layout | None, ...], store: dict[_Key, Shards], *, take: bool = False
    ) -> list[_Outputs]:
        """Results (or their gradients, which are used up) of every rank; None where there is none."""
        columns: list[Shards | None] = []
        for j, name in enumerate(op.outputs):
            key = (name, self._layout(name, layouts[j])) if name else None
            if key is None or key not in store or (take and name not in self.program.active):
                columns.append(None)
            else:
                columns.append(store.pop(key) if take else store[key])
        return [[None if c is None else c[r] for c in columns] for r in range(self.mesh.devices)]


def _last_uses(program: Program) -> dict[int, list[_Key]]:
    """Instruction index → values that nothing reads after it; outputs of the graph stay."""
    last: dict[_Key, int] = {}
    for i, instruction in enumerate(program.instructions):
        if isinstance(instruction, Convert) and not instruction.gradient:
            last[instruction.tensor, instruction.source] = last[instruction.tensor, instruction.target] = i
        elif isinstance(instruction, Run):
            op, strategy = program.graph.op(instruction.op), program.strategies[instruction.op]
            named = [*zip(op.inputs, strategy.operands, strict=True), *zip(op.outputs, strategy.results, strict=True)]
            for name, layout in named:
                if name:
                    whole = Layout.replicated(program.graph.tensors[name].rank)
                    last[name, layout or whole] = i
    out: dict[int, list[_Key]] = {}
    for key, i in last.items():
        if key[0] not in program.graph.outputs:
            out.setdefault(i, []).append(key)
    return out


def _scaled(column: list[Array | None], scale: float) -> Shards:
    values = [x for x in column if x is not None]
    if scale == 1.0:
        return tuple(values)
    scaled = {id(x): (x * scale).astype(x.dtype) for x in values}
    return tuple(scaled[id(x)] for x in values)


def _each_distinct(
    rows: list[list[Array | None]], work: Callable[[int, list[Array | None]], _Outputs]
) -> list[_Outputs]:
    """`work(rank, arrays)` on every rank's arrays, once for ranks that hold the very same ones."""
    done: dict[tuple[int, ...], _Outputs] = {}
    for rank, row in enumerate(rows):
        key = tuple(map(id, row))
        if key not in done:
            done[key] = work(rank, row)
    return [done[tuple(map(id, row))] for row in rows]
