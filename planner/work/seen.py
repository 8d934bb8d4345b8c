"""What device memory sees of operators that run as kernels: which values never reach it, and what backward passes read.

A region of elementwise operators, or the core of an attention, is one kernel (`planner.work.fusion`): it reads what
enters until its last operator has run, and leaves what others read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from planner.ir import Graph, Op
from planner.rules.rule import Rule
from planner.work.activity import fixed_operators, saved_slots
from planner.work.fusion import Fusion
from planner.work.views import ANSWERS, shares_storage

__all__ = ["Saved", "Seen", "seen"]


@dataclass(frozen=True, slots=True)
class Saved:
    """Operand `place` of operator `op`, or with `result` a result, that the backward pass of its kernel reads.  `core`:
    it is made inside the core of an attention, and made again where that runs again."""

    op: str
    place: int
    result: bool
    core: bool


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """Of a graph whose operators are joined in one way.

    `kernel` numbers kernels by operator; `inside` are tensors that never leave one; `views` are results that lie in the
    storage of their operator's first operand, `strided` those of them that may be another part of it; `saved` says by
    operator what its backward pass, or that of its kernel on its behalf, reads; `masks` are constants that no kernel
    reads: where a mask is causal, the core of an attention knows that by itself.
    """

    kernel: Mapping[str, int]
    inside: frozenset[str]
    views: frozenset[str]
    strided: frozenset[str]
    saved: Mapping[str, tuple[Saved, ...]]
    masks: frozenset[str]


_KNOWN: WeakKeyDictionary[Fusion, dict[frozenset[tuple[str, int]], Seen]] = WeakKeyDictionary()


def seen(
    graph: Graph,
    rules: Mapping[str, Rule],
    active: frozenset[str],
    fusion: Fusion,
    blocks: Mapping[str, int],
) -> Seen:
    """Made once as long as the fusion lives.  `blocks`: operators that run again in the backward pass, each with the
    block it runs again with; no kernel reaches from one into another."""
    known, key = _KNOWN.setdefault(fusion, {}), frozenset(blocks.items())
    if key not in known:
        known[key] = _Seeing(graph, rules, active, fusion, blocks).seen()
    return known[key]


class _Seeing:
    def __init__(
        self,
        graph: Graph,
        rules: Mapping[str, Rule],
        active: frozenset[str],
        fusion: Fusion,
        blocks: Mapping[str, int],
    ) -> None:
        self.graph, self.rules, self.active, self.fusion = graph, rules, active, fusion
        self.fixed, self.blocks = fixed_operators(graph), blocks
        between = {op.name for core in fusion.cores for op in core.between}
        self.of_core = {name for core in fusion.cores for name in (core.scores, core.output)} | between
        self.joined = between if fusion.attention else set[str]()

    def seen(self) -> Seen:
        kernel = self._kernels()
        strided = frozenset(t for op in self.graph.ops for t in self._strided(op))
        views = frozenset(op.outputs[0] for op in self.graph.ops if self._shares(op)) | strided
        masks = frozenset(t for t in self.graph.tensors if self._is_mask(t))
        return Seen(kernel, self._inside(kernel), views, strided, self._saved(), masks)

    def _kernels(self) -> dict[str, int]:
        numbers: dict[object, int] = {}
        of: dict[str, int] = {}
        region = {op.name: r for r, members in enumerate(self.fusion.members) for op in members}
        for core in self.fusion.cores if self.fusion.attention else ():
            first = region[core.between[0].name]
            region |= dict.fromkeys((core.scores, *(op.name for op in core.between), core.output), first)
        for op in self.graph.ops:
            key = region.get(op.name, op.name), self.blocks.get(op.name)
            of[op.name] = numbers.setdefault(key, len(numbers))
        return of

    def _inside(self, kernel: Mapping[str, int]) -> frozenset[str]:
        """Also what is made of weights alone, which runtimes keep as its readers want it, where kernels are joined."""
        found = set[str]()
        for op in self.graph.ops:
            part = self.fusion.parts.get(op.name)
            for j in part.inside if part is not None else ():
                readers = self.graph.consumers.get(op.outputs[j], ())
                if all(kernel[c.name] == kernel[op.name] for c, _ in readers):
                    found.add(op.outputs[j])
        return frozenset(found)

    def _shares(self, op: Op) -> bool:
        first = op.inputs and op.inputs[0] and op.outputs[0]
        return bool(first) and shares_storage(op, self.rules[op.name], self.graph)

    def _strided(self, op: Op) -> list[str]:
        """Results that kernels read out of what they rearrange."""
        if op.type in ANSWERS or self.rules[op.name].cost.kind == "free":
            return []
        return [t for t in op.outputs if t in self.fusion.alias]

    def _is_mask(self, tensor: str) -> bool:
        """Whether the core of an attention is its only reader."""
        readers = [op for op, _ in self.graph.consumers.get(tensor, ()) if op.name not in self.fixed]
        between = (op.name in self.of_core for op in readers)
        return bool(readers) and bool(self.joined) and tensor not in self.graph.outputs and all(between)

    # What backward passes read

    def _saved(self) -> dict[str, tuple[Saved, ...]]:
        found: dict[str, list[Saved]] = defaultdict(list)
        for core in self.fusion.cores if self.fusion.attention else ():
            output = self.graph.op(core.output)
            for op in (self.graph.op(core.scores), output):
                if self._trained(op):
                    found[op.name] += [Saved(op.name, i, False, False) for i in self.fusion.parts[op.name].reads]
            if self._trained(output):
                found[output.name].append(Saved(output.name, 0, True, False))
        for number, members in enumerate(self.fusion.members):
            if members[0].name in self.joined or any(op.name in found for op in members):
                continue
            if not self.rules[members[0].name].cost.kind.fuses or not self.fusion.chains:
                for op in members:
                    found[op.name] += self._by_rule(op)
                continue
            of_core = members[0].name in self.of_core
            trained = [op.name for op in members if self._trained(op)]
            for k in self.fusion.saved[number]:
                reader = k.op if k.op in trained else trained[0]
                found[reader].append(Saved(k.op, k.place, k.result, of_core and k.made))
        return {name: tuple(saved) for name, saved in found.items()}

    def _by_rule(self, op: Op) -> list[Saved]:
        """Of an operator that is a kernel by itself."""
        rule = self.rules[op.name]
        if not self._trained(op):
            return []
        core = op.name in self.of_core and rule.cost.kind != "attention"
        slots = [i for i in sorted(saved_slots(op, rule, self.active)) if i < len(op.inputs) and op.inputs[i]]
        made = [j for j in sorted(rule.saved_results) if j < len(op.outputs) and op.outputs[j]]
        softmax = core and rule.cost.kind.fuses
        return [
            *(Saved(op.name, i, False, core and (softmax or self._normalised(op.inputs[i]))) for i in slots),
            *(Saved(op.name, j, True, softmax) for j in made),
        ]

    def _normalised(self, tensor: str) -> bool:
        """Whether this is what softmax leaves: made inside the core."""
        producer = self.graph.producers.get(self.fusion.root(tensor))
        return producer is not None and self.rules[producer.name].cost.kind == "normalization"

    def _trained(self, op: Op) -> bool:
        return any(t in self.active for t in op.outputs)
