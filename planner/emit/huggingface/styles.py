"""Tensor parallelism in the words of transformers: module → style.

A style says how the weights of one module are divided and what its forward expects and gives back; between modules the
network's own code runs on whatever a rank holds (transformers 5.23, distributed/tensor_parallel.py):

    colwise                nn.Linear: rows of the weight (its outputs) and the bias; gives the rank's part
    colwise_gather_output  the same, made whole behind it
    rowwise                columns of the weight (its inputs), whole bias; takes the rank's part, gives the whole sum
    rowwise_split_input    the same, takes the whole and cuts it
    embedding_rowwise      a table's rows; embedding_colwise: its columns; both take and give wholes
    replicate              nothing; needed because rules that a config leaves out stay as the model class has them
    replicated_with_grad_allreduce  whole, read by what runs on a rank's part: gradients are summed

So a plan can be said where its operators divide data from a `colwise` module to a `rowwise` one, every operator on the
way working on the parts that it is given.  Elsewhere ranks repeat the work, with equal results.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from planner.emit.modules import PASSING, Modules, layered, owner, weights_of
from planner.emit.names import Name
from planner.emit.scheme import Scheme
from planner.errors import InputError
from planner.planning.document import LayoutDocument, OperatorDocument, PlanDocument

__all__ = ["Styles", "styles_of"]

_LINEAR: Final = ("MatMul", "Gemm")
Parts = tuple[tuple[str, ...], ...]  # per dimension the tensor-parallel axes that divide it


@dataclass(frozen=True, slots=True)
class Styles:
    """`plan`: module, `*` for numbers → style.  `repeated`: operators whose work the plan divides among tensor-parallel
    ranks and transformers does not."""

    plan: Mapping[str, str]
    repeated: tuple[str, ...] = ()


def styles_of(plan: PlanDocument, names: Mapping[str, Name], scheme: Scheme) -> Styles:
    """InputError naming the parameter or operator that transformers would treat otherwise, and what to pin."""
    axes = tuple(a for a, use in scheme.uses.items() if use == "tensor" and scheme.sizes[a] > 1)
    if not axes:
        return Styles({})
    return _Walk(plan, names, scheme, axes).styles()


def _weighs(op: OperatorDocument, slot: int) -> bool:
    """Whether an operand is the weight of a linear module or the table of an embedding."""
    return (op.type in _LINEAR and slot == 1) or (op.type == "Gather" and slot == 0)


@dataclass(slots=True)
class _Walk:
    """Operators in their order.  `weights`: parameters, and what is made of one alone, → that parameter.  `feeding`:
    operators with a weight behind them; what has none is the network's result, which is whole.  `split`: tensor → how
    the parts lie that transformers' ranks hold of it."""

    plan: PlanDocument
    names: Mapping[str, Name]
    scheme: Scheme
    axes: tuple[str, ...]
    modules: Modules = field(init=False)
    readers: dict[str, list[tuple[str, int]]] = field(init=False)
    weights: dict[str, str] = field(init=False)
    feeding: set[str] = field(init=False)
    split: dict[str, Parts] = field(default_factory=dict)
    found: dict[str, str] = field(default_factory=dict)
    repeated: list[str] = field(default_factory=list)
    within: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.modules = Modules.of_plan(self.plan, self.names)
        self.readers = defaultdict(list)
        self.weights = weights_of(self.plan)
        for name, op in self.plan.operators.items():
            for slot, tensor in enumerate(op.inputs):
                self.readers[tensor].append((name, slot))
        self.feeding = set()
        for name, op in reversed(self.plan.operators.items()):
            after = {o for t in op.outputs for o, _ in self.readers[t]}
            read = (t for o in after for t in self.plan.operators[o].inputs)
            if not self.feeding.isdisjoint(after) or any(t in self.weights for t in read):
                self.feeding.add(name)

    def styles(self) -> Styles:
        if not any(op.inputs for op in self.plan.operators.values()):
            raise InputError("plan: does not say what its operators read; search again with this version")
        for name in self.plan.parameters:
            self._check_parameter(name)
        for name, op in self.plan.operators.items():
            self._visit(name, op)
        for name, emitted in self.names.items():
            self.found.setdefault(owner(emitted.name), "replicate")
            for r in self.plan.parameters[name].readers:
                reader = self.plan.operators.get(r.operator)
                if reader is not None and _weighs(reader, r.slot):
                    self.found.setdefault(self.modules.of_operator[r.operator], "replicate")
        for name in self.plan.parameters:
            self._agree(name)
        return Styles(self._collapsed(), tuple(self.repeated))

    def _check_parameter(self, n: str) -> None:
        p, emitted, cut = self.plan.parameters[n], self.names[n], self.scheme.cuts[n]
        if cut == "whole" and any(self._parts(x) for x in p.compute):
            why = (
                "transformers divides experts by ep_size, over ranks with samples of their own"
                if len(p.shape) > 2
                else "it is added position by position, which transformers does whole"
            )
            raise InputError(
                f"plan: parameter {n} is divided among tensor-parallel ranks; {why}: pin it `compute=replicated`"
            )
        for x in p.compute:
            split = [d for d in x.dims if any(a in self.axes for a in d)]
            order = [a for d in split for a in d if a in self.axes]
            if split and (len(split) > 1 or tuple(order) != self.axes):
                raise InputError(
                    f"plan: parameter {n} is computed with as {x.layout()}; transformers has one group of "
                    f"tensor-parallel ranks, {'.'.join(self.axes)}, which divides one dimension: pin `compute`, or "
                    "search with a --mesh of one tensor-parallel axis"
                )
        if len({self._parts(x) for x in p.compute}) > 1:
            raise InputError(
                f"plan: parameter {n} ({emitted.name}) is computed with as "
                f"{' and as '.join(str(x.layout()) for x in p.compute)}; transformers divides it one way: pin `compute`"
            )

    def _visit(self, name: str, op: OperatorDocument) -> None:
        if name in self.weights or name in self.within:
            return
        own = [(self.weights[t], i) for i, t in enumerate(op.inputs) if t in self.weights]
        for n, slot in own:
            if _weighs(op, slot):
                self._product(name, op, n, slot)
                return
        if any(t in self.split for t in op.inputs):
            self._inside(name, op, own)
            return
        divided = [n for n, slot in own if self._cut(op, slot)]
        if divided:
            raise InputError(self._foreign(divided[0], name))
        if any(self._parts(x) for x in op.results):
            self.repeated.append(name)

    def _foreign(self, n: str, operator: str) -> str:
        return (
            f"plan: parameter {n} ({self.names[n].name}), read by {operator}, is divided among tensor-parallel ranks; "
            "transformers divides those of nn.Linear and nn.Embedding: pin it `compute=replicated`"
        )

    def _product(self, name: str, op: OperatorDocument, n: str, slot: int) -> None:
        """A product with a weight, or a look-up in a table."""
        emitted, cut = self.names[n], self._cut(op, slot)
        module = self.modules.of_operator.get(name, owner(emitted.name))
        data = op.inputs[1 - slot]
        if not cut:
            if data in self.split:
                raise InputError(self._unsaid(data, name))
            if any(self._parts(x) for x in op.results):
                self.repeated.append(name)
            return
        at = self._dimension(n)
        if op.type == "Gather":
            if data in self.split:
                raise InputError(self._unsaid(data, name))
            self._say(module, "embedding_rowwise" if at == 0 else "embedding_colwise", name)
            return
        summed = any(a in self.axes for r in op.results if r is not None for a in r.partial)
        if at is None:
            raise InputError(
                f"plan: parameter {n} ({emitted.name}) is read whole and divided on the way to the product {name}; "
                "transformers keeps it divided: pin its `compute` as the product has it"
            )
        if at != (1 if summed else 0):
            raise InputError(
                f"plan: parameter {n} ({emitted.name}) is divided by {'rows' if summed else 'columns'} of the product "
                f"{name}, and the network holds it as inputs x outputs (transformers' Conv1D, as in GPT-2); its tensor "
                "parallelism divides nn.Linear alone. If it is one, say `transposed` with --names; else pin "
                "`compute=replicated` (data parallelism and FSDP can be emitted), or use --target torch"
            )
        if data in self.split and (not summed or self._cut(op, 0) != self.split[data]):
            raise InputError(self._unsaid(data, name))
        if summed:
            self._say(module, "rowwise" if data in self.split else "rowwise_split_input", name)
            return
        inner = self._inner(name, module)
        self.within.update(inner)
        stays = not self.feeding.isdisjoint(inner) and self._leaves_split(inner)
        self._say(module, "colwise" if stays else "colwise_gather_output", name)
        if stays:
            self.split |= {t: self._produced(t) for t in inner}

    def _agree(self, n: str) -> None:
        """Whether a parameter's module divides it as the plan does."""
        emitted = self.names[n]
        style = self.found[owner(emitted.name)]
        if style.startswith("rowwise"):
            wanted = None if emitted.name.endswith(".bias") else 1
        else:
            wanted = {"colwise": 0, "colwise_gather_output": 0, "embedding_rowwise": 0, "embedding_colwise": 1}.get(
                style
            )
        found = self._dimension(n)
        if found != wanted:
            words = {None: "whole", 0: "divided along dimension 0", 1: "divided along dimension 1"}
            raise InputError(
                f"plan: parameter {n} ({emitted.name}) is computed with {words.get(found, 'otherwise divided')}; its "
                f"module is {style} in transformers, which keeps it {words[wanted]}: pin its `compute` so"
            )

    def _leaves_split(self, inner: Sequence[str]) -> bool:
        """Whether every reader of a module's result works on the parts that ranks hold of it."""
        outside = [(t, o, i) for t in inner for o, i in self.readers[t] if o not in inner]
        return all(
            self._cut(op, i) == self._produced(t) and self._local(op)
            for t, o, i in outside
            for op in (self.plan.operators[o],)
        )

    def _inner(self, name: str, module: str) -> list[str]:
        """What a module computes of a product's result: the sum with its bias, and what only moves it."""
        out, todo = [], [name]
        path = self.plan.operators[name].module
        while todo:
            tensor = todo.pop()
            out.append(tensor)
            for o, _ in self.readers[tensor]:
                op = self.plan.operators[o]
                biased = op.type == "Add" and any(
                    owner(self.names[self.weights[t]].name) == module for t in op.inputs if t in self.weights
                )
                if biased or (op.type in PASSING and path and op.module == path):
                    todo.append(o)
        return out

    def _inside(self, name: str, op: OperatorDocument, own: Sequence[tuple[str, int]]) -> None:
        """An operator that is given parts must be planned to work on just these."""
        for i, t in enumerate(op.inputs):
            if t in self.split and self._cut(op, i) != self.split[t]:
                raise InputError(self._unsaid(t, name))
            if t not in self.split and t not in self.weights and self._cut(op, i):
                raise InputError(self._unsaid(t, name))
        if not self._local(op):
            raise InputError(self._unsaid(next(t for t in op.inputs if t in self.split), name))
        for n, slot in own:
            if self._cut(op, slot):
                raise InputError(self._foreign(n, name))
            self._say(owner(self.names[n].name), "replicated_with_grad_allreduce", name)
        self.split |= {t: self._parts(r) for t, r in zip(op.outputs, op.results, strict=False) if self._parts(r)}

    def _unsaid(self, tensor: str, operator: str) -> str:
        return (
            f"plan: {operator} does not work on the parts of {tensor} that tensor-parallel ranks hold; transformers "
            "divides data from a colwise module to a rowwise one and moves nothing in between: pin the operators in "
            "the same way (docs/constraints.md), or use --target torch"
        )

    def _local(self, op: OperatorDocument) -> bool:
        """Whether ranks compute parts of the result from parts of the operands, without a word to each other."""
        results = [r for r in op.results if r is not None]
        quiet = not any(a in self.axes for c in op.inner for a in c.axes)
        row = op.type in _LINEAR and len(op.inputs) > 1 and op.inputs[1] in self.weights
        pending = any(a in self.axes for r in results for a in r.partial)
        return quiet and (row or (not pending and all(self._parts(r) for r in results)))

    def _say(self, module: str, style: str, operator: str) -> None:
        if self.found.setdefault(module, style) != style:
            raise InputError(
                f"plan: module {module} would be {self.found[module]} and, by {operator}, {style}; transformers gives "
                "a module one style: pin its operators alike"
            )

    def _collapsed(self) -> dict[str, str]:
        out: dict[str, tuple[str, str]] = {}
        for module, style in self.found.items():
            first, other = out.setdefault(layered(module), (module, style))
            if other != style:
                raise InputError(
                    f"plan: {first} is {other} and {module} {style}; transformers puts * for numbers in names, so that "
                    "all layers are divided alike: pin them alike"
                )
        return {glob: style for glob, (_, style) in out.items() if glob}

    def _dimension(self, n: str) -> int | None:
        """Of the network's tensor, the dimension that is divided."""
        x = self.plan.parameters[n].compute[0].layout()
        dims = x.dims[::-1] if self.names[n].transposed else x.dims
        return next((d for d, axes in enumerate(dims) if any(a in self.axes for a in axes)), None)

    def _cut(self, op: OperatorDocument, slot: int) -> Parts:
        return self._parts(op.operands[slot]) if slot < len(op.operands) else ()

    def _produced(self, tensor: str) -> Parts:
        op = self.plan.operators[tensor]
        return self._parts(op.results[0]) if op.results else ()

    def _parts(self, x: LayoutDocument | None) -> Parts:
        """Empty where no tensor-parallel axis divides it."""
        parts = tuple(tuple(a for a in d if a in self.axes) for d in (() if x is None else x.dims))
        return parts if any(parts) else ()
