"""Which operators run as one kernel, and what each of them reads and writes for it.

Frameworks and compilers run chains of elementwise operators, normalisations and reductions as one kernel that reads
what enters and writes what leaves.  Here: operators of those kinds that are connected, with no product or lookup
between them on any path.  `level` counts the latter along the longest path to an operator; only operators of one level
are joined, which keeps every region convex.  Regions that only rearrange are strided reads of what they rearrange.

The core of attention is a product of two activations, a region with one softmax, and a product of its result: one
kernel that keeps no scores (FlashAttention; Dao et al. 2022).

All of it follows from the graph alone, so that the work of a kernel is the sum of its operators' parts, whatever the
strategy of each.  A tensor inside a kernel that is redistributed has to be written and read again; that is priced with
its redistribution.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal
from weakref import WeakKeyDictionary

from planner.ir import Graph, Op, Role
from planner.rules.cost import Kind
from planner.rules.rule import Rule
from planner.work.activity import fixed_operators, made_of_parameters, saved_slots

__all__ = ["Core", "Fusion", "Part", "SavedTensor", "fuse", "fusion_of"]


@dataclass(frozen=True, slots=True)
class Part:
    """What an operator does for the kernel it belongs to.

    role: "heavy" is a kernel by itself, "fused" part of a region, "scores" and "mixing" the two products of an
    attention core; "idle" does nothing (a view, what is made of weights alone, what lies inside a core).
    Operands and results are those that device memory sees on the operator's behalf: `reads` and `writes` forward;
    backward `saved_operands` and `saved_results` are read, the gradients of `writes` are read and those of
    `gradients` written.  `inside` are results that never reach memory.  `by_weight`: the second operand of
    a product is made of weights alone.
    """

    role: Literal["heavy", "fused", "scores", "mixing", "idle"]
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    saved_operands: tuple[int, ...] = ()
    saved_results: tuple[int, ...] = ()
    gradients: tuple[int, ...] = ()
    inside: tuple[int, ...] = ()
    begins: bool = True
    trained: bool = False
    causal: bool = False
    by_weight: bool = False


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """A tensor that a region's backward reads: `tensor` is the one in memory, `place` the operand (or, with `result`,
    the result) of `op` through which it is read."""

    tensor: str
    op: str
    place: int
    result: bool
    made: bool


@dataclass(frozen=True, slots=True)
class Core:
    """Scores, softmax and weighted sum of one attention: its two products and the operators between them, in graph
    order, whether or not these run as one kernel."""

    scores: str
    output: str
    between: tuple[Op, ...]


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Fusion:
    """`parts` by operator; `members[r]` are the operators of region r in graph order, `saved[r]` what its backward
    reads; `alias` names, for tensors that only rearrange another, the one that exists in memory; `chains` and
    `attention` as of `fuse`."""

    parts: Mapping[str, Part]
    members: tuple[tuple[Op, ...], ...]
    saved: tuple[tuple[SavedTensor, ...], ...]
    cores: tuple[Core, ...]
    alias: Mapping[str, str]
    chains: bool = True
    attention: bool = True

    def root(self, tensor: str) -> str:
        """The tensor whose bytes these are."""
        return self.alias.get(tensor, tensor)


_Way = tuple[frozenset[str], bool, bool, bool]
_KNOWN: WeakKeyDictionary[Graph, dict[_Way, tuple[tuple[Rule, ...], Fusion]]] = WeakKeyDictionary()


def fusion_of(
    graph: Graph, rules: Mapping[str, Rule], active: frozenset[str], *, chains: bool, attention: bool, copies: bool
) -> Fusion:
    """As `fuse` says; made once as long as the graph lives and has the same rules."""
    bound = tuple(rules[op.name] for op in graph.ops)
    known, key = _KNOWN.setdefault(graph, {}), (active, chains, attention, copies)
    found = known.get(key)
    if found is None or any(a is not b for a, b in zip(found[0], bound, strict=True)):
        found = bound, fuse(graph, rules, active, chains=chains, attention=attention, copies=copies)
        known[key] = found
    return found[1]


def fuse(
    graph: Graph,
    rules: Mapping[str, Rule],
    active: frozenset[str],
    *,
    chains: bool = True,
    attention: bool = True,
    copies: bool = False,
) -> Fusion:
    """Parts of all operators but those that compute the same at every step.

    Args:
        rules: by operator name.
        active: tensors that carry a gradient.
        chains: whether elementwise operators are joined; attention: whether the core of attention is one kernel.
        copies: whether a tensor is copied into the layout of a transposed one, rather than read with strides.
    """
    return _Fusing(graph, rules, active, chains, attention, copies).fusion()


class _Fusing:
    def __init__(
        self,
        graph: Graph,
        rules: Mapping[str, Rule],
        active: frozenset[str],
        chains: bool,
        attention: bool,
        copies: bool,
    ) -> None:
        self.graph, self.rules, self.active = graph, rules, active
        self.chains, self.attention = chains, attention
        self.views = frozenset({Kind.FREE} if copies else filter(lambda k: k.view, Kind))
        self.fixed, self.weights = fixed_operators(graph), made_of_parameters(graph)
        self.of, self.members = _regions(graph, rules, self.fixed, chains)
        self.alias = self._views()
        self.parts: dict[str, Part] = {}

    def fusion(self) -> Fusion:
        cores = tuple(self._cores())
        for core in cores if self.attention else ():
            self._core(core)
        saved = []
        for number, members in enumerate(self.members):
            saved.append(self._region(number, members))
        return Fusion(self.parts, self.members, tuple(saved), cores, self.alias, self.chains, self.attention)

    def _root(self, tensor: str) -> str:
        return self.alias.get(tensor, tensor)

    def _views(self) -> dict[str, str]:
        alias: dict[str, str] = {}
        for members in self.members:
            only_views = self._only_views(members)
            for op in members:
                if self.rules[op.name].cost.kind == "free" or only_views:
                    source = op.inputs[0] if op.inputs else ""
                    for t in op.outputs:
                        if t and source:
                            alias[t] = alias.get(source, source)
        return alias

    def _only_views(self, members: Collection[Op]) -> bool:
        return all(self.rules[op.name].cost.kind in self.views for op in members)

    def _trained(self, op: Op) -> bool:
        return any(t in self.active for t in op.outputs)

    def _same_every_step(self, tensor: str) -> bool:
        producer = self.graph.producers.get(tensor)
        return self.graph.tensors[tensor].role is Role.CONSTANT or (
            producer is not None and producer.name in self.fixed
        )

    # Regions

    def _region(self, number: int, members: tuple[Op, ...]) -> tuple[SavedTensor, ...]:
        first = members[0]
        if not self.rules[first.name].cost.kind.fuses:
            self.parts.setdefault(first.name, self._heavy(first))
            return ()
        read = [t for op in members for t in op.inputs if t]
        if first.name in self.parts:  # inside the core of an attention
            return ()
        if all(t in self.weights or self.graph.tensors[t].role is Role.CONSTANT for t in read):
            self.parts.update({op.name: Part("idle") for op in members})
            return ()
        if self._only_views(members):
            self.parts.update({op.name: Part("idle") for op in members})
            return self._saved(members, {})
        made = {t for op in members for t in op.outputs if t}
        written: dict[str, tuple[str, int]] = {}
        for op in members:
            for j, t in enumerate(op.outputs):
                if t and self._leaves(t, number):
                    written.setdefault(self._root(t), (op.name, j))
        saved = self._saved(members, written)
        reads: dict[str, tuple[str, int]] = {}
        gradients: dict[str, tuple[str, int]] = {}
        for op in members:
            for i, t in enumerate(op.inputs):
                if t and t not in made:
                    reads.setdefault(self._root(t), (op.name, i))
                    if t in self.active:
                        gradients.setdefault(self._root(t), (op.name, i))
        trained = any(t in self.active for t in made)

        def of(places: Collection[tuple[str, int]], op: Op) -> tuple[int, ...]:
            return tuple(i for name, i in places if name == op.name)

        for op in members:
            writes = of(written.values(), op)
            self.parts[op.name] = Part(
                "fused",
                of(reads.values(), op),
                writes,
                of([(k.op, k.place) for k in saved if not k.result], op),
                of([(k.op, k.place) for k in saved if k.result], op),
                of(gradients.values(), op),
                tuple(j for j, t in enumerate(op.outputs) if t and self._root(t) not in written and t not in written),
                op is first,
                trained,
            )
        return saved

    def _leaves(self, tensor: str, number: int) -> bool:
        readers = self.graph.consumers.get(tensor, ())
        return not readers or any(self.of.get(op.name, -1) != number for op, _ in readers)

    def _saved(self, members: tuple[Op, ...], written: Mapping[str, object]) -> tuple[SavedTensor, ...]:
        """What the region's backward reads: tensors that exist in memory, from which the rest follows."""
        made = {t: op for op in members for t in op.outputs if t}
        saved: dict[str, SavedTensor] = {}
        pending: list[tuple[Op, int]] = []
        for op in members:
            rule = self.rules[op.name]
            if not self._trained(op):
                continue
            pending += [(op, i) for i in sorted(saved_slots(op, rule, self.active)) if i < len(op.inputs)]
            for j in sorted(rule.saved_results):
                t = op.outputs[j] if j < len(op.outputs) else ""
                if t and self._root(t) in written and rule.cost.kind == "normalization":
                    root = self._root(t)
                    saved[root] = SavedTensor(root, op.name, j, True, root in made)
                elif t:
                    pending += [(op, i) for i in range(len(op.inputs))]
        seen: set[tuple[str, int]] = set()
        while pending:
            op, i = pending.pop()
            t = op.inputs[i]
            if not t or (op.name, i) in seen or t in self.weights:
                continue
            seen.add((op.name, i))
            root = self._root(t)
            if self._same_every_step(t) or root in saved:
                continue
            if t in made and root not in written:
                pending += [(made[t], k) for k in range(len(made[t].inputs))]
            else:
                saved[root] = SavedTensor(root, op.name, i, False, root in made)
        return tuple(saved.values())

    # Kernels by themselves

    def _heavy(self, op: Op) -> Part:
        if all(t in self.weights for t in op.inputs if t):
            return Part("idle")
        reads = tuple(i for i, t in enumerate(op.inputs) if t)
        writes = tuple(j for j, t in enumerate(op.outputs) if t)
        gradients = tuple(i for i, t in enumerate(op.inputs) if t in self.active)
        causal = bool(op.attributes.get("is_causal"))
        weight = len(op.inputs) > 1 and op.inputs[1] in self.weights
        trained = self._trained(op)
        return Part("heavy", reads, writes, gradients=gradients, trained=trained, causal=causal, by_weight=weight)

    # Attention written out

    def _cores(self) -> list[Core]:
        of, regions = self.of, self.members
        if not self.chains:  # what hangs together is between the products, too, where every operator is a kernel
            of, regions = _regions(self.graph, self.rules, self.fixed, True)
        found = []
        for number, members in enumerate(regions):
            if not any(op.type == "Softmax" for op in members):
                continue
            inside = {t for op in members for t in op.outputs}
            entering = {t: None for op in members for t in op.inputs if t and t not in inside}
            before = [self.graph.producers[t] for t in entering if t in self.graph.producers]
            scores = {op.name: op for op in before if self._of_activations(op)}
            readers = {
                c.name: c
                for op in members
                for t in op.outputs
                for c, _ in self.graph.consumers.get(t, ())
                if of.get(c.name, -1) != number
            }
            output = [c for c in readers.values() if self._of_activations(c)]
            if len(scores) == 1 and len(output) == 1:
                found.append(Core(next(iter(scores)), output[0].name, members))
        return found

    def _of_activations(self, op: Op) -> bool:
        in_step = op.name not in self.fixed and self.rules[op.name].cost.kind == "matmul"
        return in_step and not any(t in self.weights for t in op.inputs if t)

    def _core(self, core: Core) -> None:
        scores, output = self.graph.op(core.scores), self.graph.op(core.output)
        members = core.between
        inside = {t for op in members for t in op.outputs} | set(scores.outputs)
        values = tuple(i for i, t in enumerate(output.inputs) if t and t not in inside)
        trained, causal = self._trained(output), self._masked(members)
        self.parts[scores.name] = Part("scores", (0, 1), gradients=(0, 1), inside=(0,), trained=trained, causal=causal)
        self.parts.update(
            {op.name: Part("idle", inside=tuple(j for j, t in enumerate(op.outputs) if t)) for op in members}
        )
        self.parts[output.name] = Part(
            "mixing", values, (0,), gradients=values, begins=False, trained=trained, causal=causal
        )

    def _masked(self, members: tuple[Op, ...]) -> bool:
        """A fixed square mask is taken for a causal one."""
        for t in (t for op in members for t in op.inputs if t and self._same_every_step(t)):
            shape = self.graph.tensors[t].shape or ()
            if len(shape) >= 2 and shape[-1] == shape[-2] > 1:
                return True
        return False


def _regions(
    graph: Graph, rules: Mapping[str, Rule], skip: Collection[str], chains: bool
) -> tuple[dict[str, int], tuple[tuple[Op, ...], ...]]:
    """Operator → number of its region, and the members of each in graph order."""
    level: dict[str, int] = {}
    after: dict[str, int] = {}
    parent: dict[str, str] = {}

    def root(name: str) -> str:
        while parent[name] != name:
            parent[name] = parent[parent[name]]
            name = parent[name]
        return name

    order = [op for op in graph.ops if op.name not in skip]
    for op in order:
        parent[op.name] = op.name
        level[op.name] = max((after.get(t, 0) for t in op.inputs if t), default=0)
        soft = rules[op.name].cost.kind.fuses
        for t in op.outputs:
            if t:
                after[t] = level[op.name] + (not soft)
        for t in op.inputs if soft and chains else ():
            producer = graph.producers.get(t)
            if (
                producer is not None
                and producer.name in level
                and rules[producer.name].cost.kind.fuses
                and level[producer.name] == level[op.name]
            ):
                parent[root(op.name)] = root(producer.name)
    number: dict[str, int] = {}
    members: list[list[Op]] = []
    of = {}
    for op in order:
        r = root(op.name)
        if r not in number:
            number[r] = len(members)
            members.append([])
        of[op.name] = number[r]
        members[number[r]].append(op)
    return of, tuple(tuple(m) for m in members)
