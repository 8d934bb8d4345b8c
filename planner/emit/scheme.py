"""A plan in the words of launchers: so many ranks in data, tensor, context and expert parallelism, so many stages.

Frameworks that take degrees lay a network out themselves.  A plan can be said to them where every mesh axis does one
thing throughout:

    data      splits samples, and no weight
    context   splits the positions of inputs, and no weight
    tensor    splits weights, and no samples
    expert    splits samples, and of all weights those of experts alone
    idle      splits nothing

What becomes of single parameters (`Cut`) says whether a framework's own way of splitting is the plan's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal

from planner.errors import InputError
from planner.ir import Layout
from planner.planning.document import OperatorDocument, PlanDocument

__all__ = ["PRODUCTS", "AxisUse", "Cut", "Scheme", "scheme_of"]

AxisUse = Literal["data", "context", "tensor", "expert", "idle"]
Cut = Literal["column", "row", "vocabulary", "width", "follows", "whole"]
"""How tensor parallelism divides a parameter: a product's columns or rows, a table's rows or columns; `follows`: a bias
or a scale, as what it is applied to."""

PRODUCTS: Final = ("MatMul", "Gemm", "Einsum", "Conv")


@dataclass(frozen=True, slots=True)
class Scheme:
    """`uses`: mesh axis → what it does.  `sharded`: axes over which parameters, gradients and optimizer state are
    divided beyond what operators compute with (ZeRO, FSDP), `shards`: their ranks; 1: not at all; `whole`: parameters
    that are not divided although others are.  Experts divided among ranks count as shards over these.  `cuts`:
    parameter → how tensor parallelism divides it.  `sequence`: whether tensor-parallel ranks divide positions where
    they do not divide weights (Korthikanti et al. 2022)."""

    uses: Mapping[str, AxisUse]
    sizes: Mapping[str, int]
    cuts: Mapping[str, Cut]
    sharded: tuple[str, ...]
    whole: tuple[str, ...]
    sequence: bool
    stages: int
    micro_batches: int

    def ranks(self, *uses: AxisUse) -> int:
        return math.prod(n for a, n in self.sizes.items() if self.uses[a] in uses)

    @property
    def shards(self) -> int:
        return math.prod(self.sizes[a] for a in self.sharded)

    @property
    def data(self) -> int:
        """Ranks that take different samples, those that divide experts among them included."""
        return self.ranks("data", "expert")

    @property
    def tensor(self) -> int:
        return self.ranks("tensor")

    @property
    def context(self) -> int:
        return self.ranks("context")

    @property
    def expert(self) -> int:
        return self.ranks("expert")

    def check_busy(self, target: str) -> None:
        """InputError where devices do nothing of their own, which no launcher can express."""
        idle = [a for a, use in self.uses.items() if use == "idle" and self.sizes[a] > 1]
        if idle:
            raise InputError(
                f"plan: mesh axis {idle[0]} splits nothing, {self.sizes[idle[0]]} devices do the same; {target} would "
                "give each its own samples: search with a larger --batch, or with fewer --devices"
            )

    def displaced(self, *order: AxisUse | Literal["shards"]) -> tuple[str, str] | None:
        """Two axes whose ranks lie the other way round than a framework that orders its ranks so, outermost first.
        `shards`: those data-parallel ranks that divide parameters among them, where they have a place of their own."""

        def place(axis: str) -> int | None:
            use = self.uses[axis]
            if use == "data" and axis in self.sharded and "shards" in order:
                return order.index("shards")
            return order.index(use) if use in order else None

        placed = [(a, at) for a, n in self.sizes.items() if n > 1 and (at := place(a)) is not None]
        for (a, first), (b, second) in pairwise(placed):
            if first > second:
                return a, b
        return None


def scheme_of(plan: PlanDocument, target: str) -> Scheme:
    """InputError where a mesh axis does different things in different operators, naming two of them; `target`: what it
    is for, as the message has it."""
    sizes = plan.mesh.sizes
    samples, positions = _of_inputs(plan)
    cuts: dict[str, set[Cut]] = {}
    divides: dict[str, str] = {}  # axis → what it divides of weights that are no expert's
    experts: dict[str, str] = {}
    for name, p in plan.parameters.items():
        cuts[name] = set()
        for r in p.readers:
            op = plan.operators.get(r.operator)
            if op is None or r.slot >= len(op.operands):
                raise InputError(f"plan: parameter {name}: its reader {r.operator}:{r.slot} is no operand of the plan")
            operand = op.operands[r.slot]
            for axis in _axes(operand.layout()) if operand is not None else ():
                cut = _cut(op, r.slot, axis)
                if cut == "positions":
                    continue
                reader = f"{r.operator} (parameter {name})"
                (experts if cut == "expert" else divides).setdefault(axis, reader)
                if cut != "expert":
                    cuts[name].add(cut)
    for axis in divides:
        witness = None if axis in experts else _samples_inside(plan, axis)
        if witness is not None:
            samples.setdefault(axis, witness)
    uses: dict[str, AxisUse] = {}
    for axis in sizes:
        found = {
            "data": samples.get(axis),
            "context": positions.get(axis),
            "tensor": divides.get(axis),
            "expert": experts.get(axis),
        }
        uses[axis] = _use(plan, axis, {k: v for k, v in found.items() if v is not None}, target)
    _check_groups(plan, uses, cuts, target)
    sharded, whole = _sharding(plan, uses)
    return Scheme(
        uses=uses,
        sizes=sizes,
        cuts={n: _one_cut(n, found, target) for n, found in cuts.items()},
        sharded=sharded,
        whole=whole,
        sequence=_sequence(plan, [a for a, use in uses.items() if use == "tensor"]),
        stages=plan.schedule.stages,
        micro_batches=plan.schedule.micro_batches,
    )


def _of_inputs(plan: PlanDocument) -> tuple[dict[str, str], dict[str, str]]:
    """Axis → an input whose first dimension it splits; axis → one of which it splits a later dimension."""
    samples: dict[str, str] = {}
    positions: dict[str, str] = {}
    for name, x in plan.inputs.items():
        for d, axes in enumerate(x.layout.dims if x.layout is not None else ()):
            for axis in axes:
                (positions if d else samples).setdefault(axis, f"input {name}")
    return samples, positions


def _samples_inside(plan: PlanDocument, axis: str) -> str | None:
    """An operator on data whose result has its first dimension, of two or more, split by `axis`: samples that arrived
    whole.  Weights that are turned are no data."""
    reached = set(plan.inputs)
    for name, op in plan.operators.items():
        if op.inputs and reached.isdisjoint(op.inputs):
            continue
        reached.update(op.outputs)
        for r in op.results:
            if r is not None and len(r.dims) > 1 and axis in r.dims[0]:
                return name
    return None


def _use(plan: PlanDocument, axis: str, found: Mapping[str, str], target: str) -> AxisUse:
    kinds = set(found)
    if kinds == {"data", "expert"}:
        return "expert"
    if len(kinds) > 1:
        (a, first), (b, second) = list(found.items())[:2]
        raise InputError(
            f"plan: mesh axis {axis} is {a} parallel at {first} and {b} parallel at {second}; {target} has one use for "
            "each group of ranks: pin the operators in the same way (docs/constraints.md), or use --target torch"
        )
    if kinds == {"expert"}:
        return "tensor"
    for kind in ("data", "context", "tensor"):
        if kind in kinds:
            return kind
    return _of_activations(plan, axis, target)


def _of_activations(plan: PlanDocument, axis: str, target: str) -> AxisUse:
    """An axis that splits neither inputs nor weights: nothing, or data that arrives whole and is cut on the way."""
    for name, op in plan.operators.items():
        if any(axis in _axes(r.layout()) for r in op.results if r is not None):
            raise InputError(
                f"plan: mesh axis {axis} splits the work of {name}, but no input and no weight; {target} cannot "
                "express that: pin the inputs split along samples, or use --target torch"
            )
    return "idle"


def _axes(layout: Layout) -> tuple[str, ...]:
    return tuple(a for d in layout.dims for a in d)


def _cut(op: OperatorDocument, slot: int, axis: str) -> Cut | Literal["expert", "positions"]:
    """How `axis`, which splits this operand, does so.  `expert`: the leading dimensions of a stack of weights;
    `positions`: what is added to every sample, position by position, is taken where the data is."""
    operand = op.operands[slot]
    assert operand is not None
    if op.type in PRODUCTS and slot == 1:
        if op.type != "Conv" and any(axis in d for d in operand.dims[:-2]):
            return "expert"
        summed = any(axis in r.partial for r in op.results if r is not None)
        return "row" if summed else "column"
    if op.type == "Gather" and slot == 0:
        return "vocabulary" if axis in operand.dims[0] else "width"
    return "follows" if axis in operand.dims[-1] else "positions"


def _one_cut(name: str, found: set[Cut], target: str) -> Cut:
    """A table that is also the output layer's weight is divided along the vocabulary by both."""
    if found == {"vocabulary", "column"}:
        return "vocabulary"
    if found == {"width", "row"}:
        return "width"
    if len(found) > 1:
        raise InputError(
            f"plan: parameter {name} is divided by {' and by '.join(sorted(found))}; {target} divides it one way: pin "
            "its readers alike"
        )
    return next(iter(found), "whole")


def _check_groups(plan: PlanDocument, uses: Mapping[str, AxisUse], cuts: Mapping[str, set[Cut]], target: str) -> None:
    """InputError where some weights are divided over one axis and others over another."""
    sizes = plan.mesh.sizes
    groups = {kind: {a for a, use in uses.items() if use == kind and sizes[a] > 1} for kind in ("tensor", "expert")}
    for name, p in plan.parameters.items():
        over = {a for x in p.compute for a in _axes(x.layout())}
        for kind, group in groups.items():
            missing = group - over
            if over & group and missing and (kind == "expert" or cuts[name]):
                raise InputError(
                    f"plan: parameter {name} is divided over {'.'.join(sorted(over & group))} and not over "
                    f"{'.'.join(sorted(missing))}, which divides others; {target} has one group of {kind}-parallel "
                    "ranks: pin the operators in the same way (docs/constraints.md), or use --target torch"
                )


def _sharding(plan: PlanDocument, uses: Mapping[str, AxisUse]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """InputError where parameters are divided among groups of different ranks."""
    computed: dict[str, set[str]] = {}
    extra: dict[str, list[str]] = {}
    sizes = plan.mesh.sizes
    for name, p in plan.parameters.items():
        computed[name] = {a for x in p.compute for a in _axes(x.layout())}
        extra[name] = [a for a in _axes(p.stored.layout()) if a not in computed[name] and sizes[a] > 1]
        if any(uses[a] == "tensor" for a in extra[name]):
            raise InputError(
                f"plan: parameter {name} is stored in shards over a tensor-parallel axis but computed with whole "
                "there; pin `stored` as it is computed with"
            )
    most = max(extra, key=lambda n: math.prod(sizes[a] for a in extra[n]), default="")
    sharded = tuple(a for a in plan.mesh.names if most and a in extra[most])
    whole = []
    for name, found in extra.items():
        wanted = {a for a in sharded if a not in computed[name]}
        if set(found) == wanted:
            continue
        if found:
            (a, one), (b, other) = ((".".join(extra[n]), math.prod(sizes[x] for x in extra[n])) for n in (name, most))
            raise InputError(
                f"plan: {name} is stored in shards by {one} ranks and {most} by {other} (over {a} and over {b}); "
                "launchers have one size for all: pin `stored` with one number of ranks for all, or rest=zero"
            )
        if not plan.is_frozen(name):
            whole.append(name)
    return sharded, tuple(whole)


def _sequence(plan: PlanDocument, tensor: Sequence[str]) -> bool:
    """Whether normalisations run on positions that tensor-parallel ranks divide."""
    return any(
        a in axes
        for op in plan.operators.values()
        if "Normalization" in op.type or op.type == "ReduceMean"
        for r in op.results[:1]
        if r is not None
        for axes in r.dims[1:-1]
        for a in tensor
    )
