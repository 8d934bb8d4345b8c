"""A program on virtual devices beside the whole model, operator by operator, in double precision.

Both advance together.  After every instruction what the devices hold is compared with the whole model's value: each
result, each conversion, each contribution to a gradient, each sum of them.  Then the devices go on from the whole
model's value, cut as the layout says, so that an error shows where it arises and rounding does not add up; that every
instruction is right given right operands proves the run by induction.  Pending reductions go on from their own terms.

A gradient is known by its contributions: which operators added to it.  One that lacks a contribution, holds one twice
or is never used is an error, whatever its value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import numpy as np

from planner.errors import VerificationError
from planner.ir import Layout, Op, Reduction
from planner.kernels import NoKernelError
from planner.kernels.gradients import NoVjpError
from planner.kernels.shards import Array, Shards, light_terms, put_together, shard, views
from planner.lowering import Load, Program, Redistribute, Run, Seed
from planner.lowering.program import GradientPart, StageInstruction
from planner.lowering.touched import Key
from planner.verify.calibrate import calibrate
from planner.verify.compare import Difference, Rounding, difference, reduced
from planner.verify.double import in_double
from planner.verify.execute import VirtualDevices, last_uses
from planner.verify.findings import Report
from planner.verify.freed import Freed
from planner.verify.payloads import misstated
from planner.verify.projection import is_product
from planner.verify.reference import incoming_gradient
from planner.verify.respond import silence
from planner.verify.terms import Contributions, names, reader, summed, with_terms
from planner.verify.whole import Whole
from planner.work.activity import fixed_operators, made_of_parameters

__all__ = ["Proof"]

FOLD_BYTES = 1 << 28  # pending sums whose terms take more than this together go on from two terms

_FLOPS_PER_ELEMENT = 64  # operations of a product that take as long as handling one element elsewhere


class Proof:
    """One execution of `program` on `values`: parameters, inputs and constants by tensor name, or a whole model beside
    which other parts of the same execution run, too."""

    def __init__(self, program: Program, values: Mapping[str, Array] | Whole, seed: int = 0) -> None:
        graph = values.graph if isinstance(values, Whole) else in_double(program.graph)
        self.program = replace(program, graph=graph)
        self.graph, self.mesh = self.program.graph, self.program.mesh
        self.devices = VirtualDevices(self.program)
        if not isinstance(values, Whole):
            values = Whole(self.graph, values, self.program.rules, self.program.active)
        self.whole = values
        self.report = Report()
        self.rng = np.random.default_rng(seed)
        self.sums: dict[Key, Array] = {}  # what a gradient on the devices stands for
        self.added: dict[Key, Contributions] = {}  # and who contributed to it
        self.weights = made_of_parameters(self.graph)
        self.fixed = fixed_operators(self.graph)  # computed from constants alone: alike because they are
        self.judged: set[str] = set()  # operators whose rule's gradients were compared with the product's
        self.heard: dict[tuple[str, int], str] = {}
        self.freed = Freed(self.program, seed)

    def run(self, progress: Callable[[int, int], None] | None = None) -> Report:
        calibrate(self.whole)
        self.whole.begin_backward()
        instructions = self.program.instructions
        last = last_uses(self.program)
        read_last: dict[str, int] = {}
        for i, keys in last.items():
            for name, _ in keys:
                read_last[name] = max(i, read_last.get(name, 0))
        gone: dict[int, list[str]] = {}
        for name, i in read_last.items():
            gone.setdefault(i, []).append(name)
        done, total = 0, sum(map(self._work, instructions))
        for i, instruction in enumerate(instructions):
            self.step(instruction)
            for key in last.get(i, ()):
                self.devices.values.pop(key, None)
            for name in gone.get(i, ()):
                self.whole.forget(name)
            done += self._work(instruction)
            if progress is not None:
                progress(done, total)
        self._finish()
        self.report.hear(self.whole)
        return self.report

    def step(self, instruction: StageInstruction) -> None:
        """Runs one instruction on the devices and compares what it makes."""
        match instruction:
            case Load(tensor, layout):
                self.devices.values[tensor, layout] = self._anchored(self.whole.value(tensor), layout)
            case Redistribute():
                self._redistribute_gradient(instruction) if instruction.gradient else self._redistribute(instruction)
            case Seed(tensor, layout, weight):
                incoming = weight * incoming_gradient(self.graph, tensor)
                self._contribute((tensor, layout), shard(incoming, layout, self.mesh), incoming, ("loss",))
            case Run(name, backward, part):
                op = self.graph.op(name)
                self._backward(op, part) if backward else self._forward(op)

    def _work(self, instruction: StageInstruction) -> int:
        """What an instruction takes, in operations: those of its operator, or its elements."""
        if not isinstance(instruction, Run):
            return 1 + self.graph.tensors[instruction.tensor].elements
        rule = self.program.rules[instruction.op]
        flops = rule.cost.backward_flops if instruction.backward else rule.cost.flops
        return (
            1
            + int(flops) // _FLOPS_PER_ELEMENT
            + sum(self.graph.tensors[t].elements for t in self.graph.op(instruction.op).outputs if t)
        )

    # Values

    def _redistribute(self, move: Redistribute) -> None:
        what = f"{move.tensor} from {move.source} to {move.target}{reader(move)}"
        whole = self.whole.value(move.tensor)
        key = move.tensor, move.target
        with self._guarded(what):
            self.report.redistributions += 1
            source = self.devices.values.get((move.tensor, move.source))
            shards = self.devices.redistribute(move)
            found = self._compare(what, shards, move.target, whole, summed(source))
            self.report.add(what, self.freed.redistributed(move))
            if found.fine:
                pending = bool(move.target.partial and move.source.partial) and not found.excused
                self.devices.values[key] = shards if pending else self._anchored(whole, key[1])
                return
        self.devices.values[key] = self._anchored(whole, move.target)

    def _forward(self, op: Op) -> None:
        results = self.whole.forward(op)
        found: Sequence[Shards | None] = [None] * len(op.outputs)
        what = f"{op.type} {op.name}"
        with self._guarded(what):
            found = self.devices.forward(op)
            self._inside(op, what, backward=False)
        if self.program.active and op.name not in self.judged:
            self.judged.add(op.name)
            for i in self.whole.unseen(op):
                self.report.failures.append(f"{what}: a gradient flows to {op.inputs[i]}, which its rule does not give")
        strategy = self.program.strategies[op.name]
        for j, name in enumerate(op.outputs):
            whole = results[j] if j < len(results) else None
            if not name or whole is None:
                continue
            layout = self.devices.layout(name, strategy.results[j])
            if len(layout.dims) != whole.ndim:  # the shape depends on data: whole everywhere
                layout = Layout.replicated(whole.ndim)
            shards = found[j]
            good = Difference(unproved="it was not computed")
            if shards is not None:
                self.report.values += 1
                label = what if name == op.name else f"{what}, result {name}"
                good = self._compare(label, shards, layout, whole, partial(self._forward_rounding, op, j))
                judged = op.name not in self.fixed and (name in self.graph.consumers or name in self.graph.outputs)
                if good.fine and judged and (reason := self._silence(op, j, whole, layout)):
                    self.report.unproved.append(f"{label}: {reason}")
            key = name, self.devices.layout(name, strategy.results[j])
            self.devices.values[key] = self._next(shards, good, whole, layout)

    def _inside(self, op: Op, what: str, *, backward: bool) -> None:
        """What the operator communicated is what its strategy says."""
        performed, strategy = self.devices.performed, self.program.strategies[op.name]
        if wrong := misstated(strategy, performed, backward=backward):
            self.report.failures.append(f"{what}: {wrong}")

    def _silence(self, op: Op, place: int, whole: Array, layout: Layout) -> str:
        key = op.name, place
        if key not in self.heard:  # once, though recomputation runs it twice
            operands = [self.whole.value(t) if t else None for t in op.inputs]
            found = silence(whole, layout, self.program.rules[op.name], place, operands, self.mesh)
            self.heard[key] = "" if found and self.freed.proves(op, place, operands) else found
        return self.heard[key]

    # Gradients

    def _redistribute_gradient(self, move: Redistribute) -> None:
        what = f"gradient of {move.tensor} from {move.source} to {move.target}{reader(move)}"
        source, target = (move.tensor, move.source), (move.tensor, move.target)
        with self._guarded(what):
            self.report.redistributions += 1
            before = self.devices.gradients.get(source)
            shards = self.devices.redistribute(move)
            expected, added = self.sums.pop(source), self.added.pop(source)
            good = self._compare(what, shards, move.target, expected, summed(before))
            self._contribute(target, self._next(shards, good, expected, move.target), expected, added)

    def _backward(self, op: Op, part: GradientPart = "") -> None:
        """Of operands of a `part` alone; what others need of the results' gradients stays."""
        rule, strategy = self.program.rules[op.name], self.program.strategies[op.name]
        active = self.program.active
        what = f"gradients of {op.type} {op.name}"
        for j, name in enumerate(op.outputs):
            if name in active:
                key = name, self.devices.layout(name, strategy.result_gradients[j])
                self._settle(key, what, keep=part == "values")
        wanted = [
            bool(n)
            and n in active
            and i in rule.differentiable
            and (not part or (n in self.weights) == (part == "weights"))
            for i, n in enumerate(op.inputs)
        ]
        found: Sequence[Shards | None] = [None] * len(op.inputs)
        with self._guarded(what):
            found = self.devices.backward(op, wanted, keep=part == "values")
            self._inside(op, what, backward=True)
        whole: Sequence[Array | None]
        whole, known = self._assembled(op, found) if is_product(op) else ([], [])
        if not (whole and self.whole.claimed(op, wanted, whole)):
            whole, known = self.whole.backward(op, wanted), []
        if doubt := self.whole.doubt(op):
            self.report.failures.append(f"{what}: {doubt}")
        for i, name in enumerate(op.inputs):
            expected = whole[i] if i < len(whole) else None
            shards = found[i] if i < len(found) else None
            if expected is None:
                if shards is not None:
                    self.report.failures.append(f"{what}: a gradient of operand {name} where the whole model has none")
                continue
            layout = self.devices.layout(name, strategy.operand_gradients[i])
            good = Difference(unproved="it was not computed")
            if shards is not None:
                self.report.gradients += 1
                label = f"{what} for operand {name}"
                values = known[i] if known else None
                good = self._compare(label, shards, layout, expected, partial(self._backward_rounding, op, i), values)
            contribution = f"{op.name}:{i}"
            self.whole.add_gradient(name, expected, contribution)
            self._contribute((name, layout), self._next(shards, good, expected, layout), expected, (contribution,))
        if part != "values":
            self.whole.settled(op)

    def _assembled(self, op: Op, gradients: Sequence[Shards | None]) -> tuple[list[Array | None], list[Shards | None]]:
        """The gradients of operands that the shards stand for, and per rank its part after pending reductions, a view
        of the gradient where that was made of it; nothing where one does not stand for any."""
        layouts = self.program.strategies[op.name].operand_gradients
        wholes: list[Array | None] = []
        parts: list[Shards | None] = []
        for name, shards, layout in zip(op.inputs, gradients, layouts, strict=True):
            shape = self.graph.tensors[name].shape if name else None
            if shards is None or shape is None:
                wholes.append(None)
                parts.append(None)
                continue
            at = self.devices.layout(name, layout)
            local = at.local_shape(shape, self.mesh)
            if any(s.shape != local or s.dtype != shards[0].dtype for s in shards):
                return [], []
            whole, part = put_together(reduced(shards, at, self.mesh), at, shape, self.mesh)
            wholes.append(whole)
            parts.append(part)
        return wholes, parts

    def _settle(self, key: Key, what: str, *, keep: bool = False) -> None:
        """The gradient of a result must be complete before the operator's backward takes it, or reads it and `keep`s
        it."""
        name, layout = key
        total, expected = self.whole.gradient(name), self.whole.contributions(name)
        if total is None:
            return
        if key not in self.devices.gradients:
            self.report.failures.append(f"{what}: the gradient of {name} is wanted as {layout}, where it is not")
        elif sorted(self.added[key]) != sorted(expected):
            self.report.failures.append(
                f"{what}: the gradient of {name} as {layout} is made of {names(self.added[key])}, where "
                f"{names(expected)} contribute"
            )
        else:
            if not keep:
                del self.sums[key], self.added[key]
            return
        if keep:
            self.sums[key], self.added[key] = total, expected
        else:
            self.sums.pop(key, None)
            self.added.pop(key, None)
        self.devices.gradients[key] = self._anchored(total, layout)

    def _contribute(self, key: Key, shards: Shards, whole: Array, who: Contributions) -> None:
        if key not in self.devices.gradients:
            self.devices.gradients[key], self.sums[key], self.added[key] = shards, whole, who
            return
        self.sums[key] = self.sums[key] + whole
        self.added[key] = (*self.added[key], *who)
        layout = key[1]
        if not layout.partial:
            self.devices.gradients[key] = self._anchored(self.sums[key], layout)
            return
        sums: dict[tuple[int, int], Array] = {}
        held = self.devices.gradients[key]
        for a, b in zip(held, shards, strict=True):
            if (id(a), id(b)) not in sums:
                sums[id(a), id(b)] = a + b
        self.devices.gradients[key] = tuple(sums[id(a), id(b)] for a, b in zip(held, shards, strict=True))

    def _finish(self) -> None:
        """Every parameter's gradient lies where it is stored, complete; nothing else is left."""
        for name, layout in self.program.final_gradients.items():
            key = name, layout
            self.report.parameters += 1
            if key not in self.devices.gradients:
                self.report.failures.append(f"gradient of {name}: the program never brings it to {layout}")
            elif sorted(self.added[key]) != sorted(self.whole.contributions(name)):
                self.report.failures.append(
                    f"gradient of {name}: made of {names(self.added[key])}, where "
                    f"{names(self.whole.contributions(name))} contribute"
                )
            self.devices.gradients.pop(key, None)
        trained = {t.name for t in self.graph.parameters if t.name in self.program.active}
        self.report.failures += [
            f"gradient of {name}: the program has no place for it"
            for name in sorted(trained - set(self.program.final_gradients))
        ]
        self.report.failures += [
            f"gradient of {name} as {layout}: nothing uses it" for name, layout in self.devices.gradients
        ]

    # What the devices go on from

    def _next(self, shards: Shards | None, found: Difference, whole: Array, layout: Layout) -> Shards:
        """Terms of pending reductions that stand for the whole value; of what is rounding alone they do not."""
        size = whole.nbytes * self.mesh.devices // max(1, layout.shards(self.mesh))
        own = found.fine and not found.excused and shards is not None and layout.partial and size <= FOLD_BYTES
        if own and shards is not None:
            return shards
        return self._anchored(whole, layout)

    def _anchored(self, whole: Array, layout: Layout) -> Shards:
        if len(layout.dims) != whole.ndim:
            return (whole,) * self.mesh.devices
        if not layout.partial:
            return views(whole, layout, self.mesh)
        summed = all(r is Reduction.SUM for _, r in layout.partial) and whole.dtype.kind == "f"
        if summed and whole.nbytes * self.mesh.devices > FOLD_BYTES:
            return light_terms(whole, layout, self.mesh)
        return shard(whole, layout, self.mesh, self.rng)

    def _compare(
        self,
        what: str,
        shards: Shards,
        layout: Layout,
        whole: Array,
        rounding: Rounding | None,
        values: Shards | None = None,
    ) -> Difference:
        if rounding is not None and any(r is Reduction.SUM for _, r in layout.partial):
            rounding = with_terms(rounding, summed(shards))
        found = difference(shards, layout, whole, self.mesh, rounding, values)
        self.report.add(what, found)
        return found

    def _forward_rounding(self, op: Op, place: int) -> Array:
        return self.whole.forward_rounding(op)[place]

    def _backward_rounding(self, op: Op, place: int) -> Array:
        return self.whole.backward_rounding(op)[place]

    @contextmanager
    def _guarded(self, what: str) -> Iterator[None]:
        """An operator that has no kernel proves nothing; a value that is missing, or shards that the operator cannot be
        run on, are an error."""
        try:
            yield
        except (NoKernelError, NoVjpError) as e:
            self.report.unproved.append(f"{what}: {e}")
        except VerificationError as e:
            self.report.failures.append(str(e))
        except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError) as e:
            self.report.failures.append(f"{what}: it cannot be run on these shards ({type(e).__name__}: {e})")
