"""What a device holds for activations, simulated a second time: buffers allocated and freed one by one, from plan.json
and the model, where every operator is a kernel by itself.

Parameters, their gradients and what is made of them for training lie in buffers of their own and are not counted;
copies of parameters in inference are.

The order of execution is made from the document: operators in order, what they read loaded and redistributed before
them, what they make redistributed behind them; in the backward pass the reverse.  Of the planner only the rules are
used: which operands a backward reads, which results are views, and what layouts of gradients a strategy means.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise

from planner.ir import Graph, Layout, Op, Role
from planner.planning import PlanDocument
from planner.planning.programs import strategies_of
from planner.pricing import bind_rules
from planner.rules.strategy import Strategy
from planner.work.activity import saved_slots

__all__ = ["simulated_peak"]

ITEM: dict[str, float] = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "uint16": 2,
}
ITEM |= {"int8": 1, "uint8": 1, "bool": 1, "int4": 0.5, "uint4": 0.5, "uint64": 8, "uint32": 4, "string": 8}
ITEM |= {"float8e4m3fn": 1, "float8e4m3fnuz": 1, "float8e5m2": 1, "float8e5m2fnuz": 1, "float4e2m1": 0.5}
VIEWED_WEIGHTS = ("Transpose", "Cast", "CastLike")

Key = tuple[str, str, bool]  # tensor, layout, whether it is a gradient


@dataclass
class Event:
    """Reads are of values made before; `alias` says whose buffer a written value is; `scratch` is freed at once.
    `always`: what is written stays from step to step."""

    what: str
    reads: list[Key] = field(default_factory=list)
    writes: list[Key] = field(default_factory=list)
    alias: dict[Key, Key] = field(default_factory=dict)
    adds: list[Key] = field(default_factory=list)  # gradients, added to what is there
    takes: list[Key] = field(default_factory=list)  # gradients, used up
    scratch: int = 0
    steps: list[Key] = field(default_factory=list)
    always: bool = False


@dataclass
class Buffer:
    size: int
    users: int = 1


class _Plan:
    def __init__(self, plan: PlanDocument, graph: Graph) -> None:
        self.plan, self.graph = plan, graph
        self.mesh = plan.mesh.sizes
        self.rules, _ = bind_rules(graph)
        self.strategies: dict[str, Strategy] = strategies_of(plan, graph)
        self.active = {n for n, t in plan.tensors.items() if t.gradient is not None}
        self.training = plan.schedule.mode == "training"
        self.width = 4 if plan.schedule.precision == "fp32" else 2
        moves = {(m.tensor, m.direction, m.reader, str(m.source), str(m.target)): m for m in plan.redistributions}
        self.moves = list(moves.values())
        self.layouts: dict[str, Layout] = {}
        constant = {t.name for t in graph.tensors.values() if t.role is Role.CONSTANT}
        self.fixed: set[str] = set()
        for op in graph.ops:
            random = op.type.startswith("Random") or op.type in ("Bernoulli", "Multinomial", "Dropout")
            if not random and all(t in constant for t in op.inputs if t):
                self.fixed.add(op.name)
                constant.update(op.outputs)
        self.constant = constant
        self.weights = {t.name for t in graph.tensors.values() if t.role is Role.PARAMETER}
        for op in graph.ops:
            read = [t for t in op.inputs if t]
            if any(t in self.weights for t in read) and all(t in self.weights or t in constant for t in read):
                self.weights.update(op.outputs)
        self.loaded: set[Key] = set()
        self.events: list[Event] = []

    # Bytes

    def shards(self, layout: Layout) -> int:
        return math.prod(self.mesh[a] for dim in layout.dims for a in dim)

    def key(self, name: str, layout: Layout | None, gradient: bool = False) -> Key:
        layout = Layout.replicated(self.graph.tensors[name].rank) if layout is None else layout
        self.layouts[str(layout)] = layout
        return name, str(layout), gradient

    def size(self, key: Key) -> int:
        tensor = self.graph.tensors[key[0]]
        if tensor.shape is None:
            return 0
        item = ITEM.get(tensor.dtype, 8)
        item = self.width if "float" in tensor.dtype and item > 1 else item
        return math.ceil(math.ceil(math.prod(tensor.shape) * item) / self.shards(self.layouts[key[1]]))

    # Order of execution

    def run(self) -> None:
        for op in self.graph.ops:
            self.forward(op)
        if not self.training:
            return
        graph = self.graph
        for name in self.delivered():
            gradient = self.plan.tensors[name].gradient if name in self.plan.tensors else None
            if gradient is not None:
                self.events.append(Event(f"seed {name}", adds=[self.key(name, gradient.layout(), True)]))
        again = {n: b for b in self.plan.schedule.recompute for n in b}
        done: set[int] = set()
        for op in reversed(graph.ops):
            if not any(t in self.active for t in op.outputs):
                continue
            block = again.get(op.name)
            if block is not None and id(block) not in done:
                done.add(id(block))
                inside = set(block)
                for other in graph.ops:
                    if other.name in inside:
                        self.forward(other)
            for name in op.outputs:
                self.redistribute(name, "gradient", "")
            self.backward(op)
            for name in dict.fromkeys(op.inputs):
                if name not in self.active:
                    continue
                self.redistribute(name, "gradient", op.name)
                if name in self.plan.parameters and graph.consumers[name][0][0].name == op.name:
                    self.redistribute(name, "gradient", "")

    def delivered(self) -> list[str]:
        graph = self.graph
        if not self.training:
            return list(graph.outputs)
        if graph.loss is not None:
            return [graph.loss]
        return [t for t in graph.outputs if "float" in graph.tensors[t].dtype]

    def redistribute(self, name: str, direction: str, reader: str) -> None:
        for m in self.moves:
            if (m.tensor, m.direction, m.reader) != (name, direction, reader):
                continue
            gradient = direction == "gradient"
            source, target = (self.key(name, x.layout(), gradient) for x in (m.source, m.target))
            steps = [source, *(self.key(name, s.target.layout(), gradient) for s in m.steps)]
            if name in self.weights if gradient else name in self.plan.parameters and self.training:
                steps = []
            if gradient and name in self.weights:
                continue
            if gradient:
                self.events.append(Event(f"convert {name}", adds=[target], takes=[source], steps=steps))
            else:
                always = name in self.constant
                self.events.append(
                    Event(f"convert {name}", reads=[source], writes=[target], steps=steps, always=always)
                )

    def provide(self, op: Op, slot: int, name: str) -> None:
        if name in self.plan.parameters:
            stored = self.key(name, self.plan.parameters[name].stored.layout())
            if stored not in self.loaded:
                self.loaded.add(stored)
                self.events.append(Event(f"load {name}", writes=[stored], always=True))
                self.redistribute(name, "forward", "")
        elif name not in self.graph.producers:
            layout = self.strategies[op.name].operands[slot] or Layout.replicated(self.graph.tensors[name].rank)
            bare, whole = self.key(name, Layout(layout.dims)), self.key(name, layout)
            if bare not in self.loaded:
                self.loaded.add(bare)
                self.events.append(Event(f"load {name}", writes=[bare], always=name in self.constant))
            if whole not in self.loaded:
                self.loaded.add(whole)
                self.events.append(Event(f"zeros {name}", [bare], [whole], always=name in self.constant))
        if slot == op.inputs.index(name):
            self.redistribute(name, "forward", op.name)

    def forward(self, op: Op) -> None:
        for slot, name in enumerate(op.inputs):
            if name:
                self.provide(op, slot, name)
        s = self.strategies[op.name]
        reads = [self.key(n, x) for n, x in zip(op.inputs, s.operands, strict=True) if n]
        writes = [self.key(n, x) for n, x in zip(op.outputs, s.results, strict=True) if n]
        event = Event(f"run {op.name}", reads, writes, always=op.name in self.fixed, scratch=self.inside(s, False))
        if self.view(op) and op.outputs[0] and self.size(writes[0]) == self.size(reads[0]):
            event.alias[writes[0]] = reads[0]
        self.events.append(event)
        for name in op.outputs:
            self.redistribute(name, "forward", "")

    def view(self, op: Op) -> bool:
        if not op.inputs or not op.inputs[0]:
            return False
        weight = self.graph.tensors[op.inputs[0]].role is Role.PARAMETER and op.type in VIEWED_WEIGHTS
        floats = all("float" in self.graph.tensors[t].dtype for t in (op.inputs[0], op.outputs[0]))
        free = self.rules[op.name].cost.kind == "free" and op.type not in ("Shape", "Size")
        return free or (weight and (op.type == "Transpose" or floats))

    def inside(self, s: Strategy, backward: bool) -> int:
        total = 0
        for c in s.inner:
            if c.backward == backward:
                item = min(c.item_bytes, 2) if self.width == 2 and not c.statistic else c.item_bytes
                ranks = math.prod(self.mesh[a] for a in c.axes) if c.kind == "all_gather" else 1
                total += c.elements * item * ranks
        return total

    def backward(self, op: Op) -> None:
        s, rule = self.strategies[op.name], self.rules[op.name]
        saved = saved_slots(op, rule, frozenset(self.active))
        reads = [self.key(n, s.operands[i]) for i, n in enumerate(op.inputs) if n and i in saved]
        reads += [self.key(n, s.results[j]) for j, n in enumerate(op.outputs) if n and j in rule.saved_results]
        event = Event(f"backward {op.name}", reads, scratch=self.inside(s, True))
        for name, layout in zip(op.outputs, s.result_gradients, strict=True):
            if name in self.active and name not in self.weights:
                event.takes.append(self.key(name, layout, True))
        for i, (name, layout) in enumerate(zip(op.inputs, s.operand_gradients, strict=True)):
            if name in self.active and name not in self.weights and i in rule.differentiable:
                key = self.key(name, layout, True)
                event.adds.append(key)
                if i == 0 and event.takes and self.view(op) and self.size(key) == self.size(event.takes[0]):
                    event.alias[key] = event.takes[0]
        self.events.append(event)

    # Allocation

    def peak(self) -> int:
        self.run()
        version: Counter[Key] = Counter()
        uses: Counter[tuple[Key, int]] = Counter()
        for e in self.events:
            for key in e.reads:
                uses[key, version[key]] += 1
            for key in e.writes:
                version[key] += 1
        read = {key for e in self.events for key in e.reads}
        for name in self.delivered():
            made = list(dict.fromkeys(k for e in self.events for k in e.writes if k[0] == name and "+" not in k[1]))
            if made:
                last = next((k for k in made if k not in read), made[0])
                uses[last, version[last]] += 1
        return _Memory(self, uses).peak()


class _Memory:
    def __init__(self, plan: _Plan, uses: Counter[tuple[Key, int]]) -> None:
        self.plan, self.uses = plan, uses
        self.version: Counter[Key] = Counter()
        self.buffers: dict[tuple[Key, int], Buffer] = {}
        self.gradients: dict[Key, Buffer] = {}
        self.level = self.highest = 0

    def allocate(self, size: int) -> Buffer:
        self.level += size
        return Buffer(size)

    def release(self, buffer: Buffer) -> None:
        buffer.users -= 1
        if not buffer.users:
            self.level -= buffer.size

    def peak(self) -> int:
        plan = self.plan
        early = [e for e in plan.events if e.always or e.what.startswith("load ")]
        for e in early:  # there before the step begins
            for key in e.writes:
                self.write(e, key)
        for e in plan.events:
            self.execute(e, made=any(e is x for x in early))
        return self.highest

    def write(self, e: Event, key: Key) -> None:
        self.version[key] += 1
        this = key, self.version[key]
        whose = e.alias.get(key)
        before = key, self.version[key] - 1
        if e.always and before in self.buffers:  # the same constant, converted once for each reader
            buffer = self.buffers[before]
            buffer.users += 1
        elif whose is not None and (whose, self.version[whose]) in self.buffers:
            buffer = self.buffers[whose, self.version[whose]]
            buffer.users += 1
        else:
            stored = key[0] in self.plan.plan.parameters and (e.always or self.plan.training)
            buffer = self.allocate(0 if stored else self.wanted(e, key))
        self.buffers[this] = buffer
        if e.always:
            buffer.users += 1
        elif not self.uses[this] and not e.what.startswith("load "):
            self.uses[this] = 0

    def wanted(self, e: Event, key: Key) -> int:
        """Of what is computed from constants alone, only what others read stays."""
        op = self.plan.graph.producers.get(key[0])
        if e.always and op is not None and e.what.startswith("run "):
            readers = [c.name for c, _ in self.plan.graph.consumers.get(key[0], ())]
            if all(r in self.plan.fixed for r in readers) and key[0] not in self.plan.graph.outputs:
                return 0
        return self.plan.size(key)

    def execute(self, e: Event, *, made: bool) -> None:
        before = [(k, self.version[k]) for k in e.reads]
        if not made:
            for key in e.writes:
                self.write(e, key)
        passed: list[Buffer] = []
        for key in e.adds:
            taken = e.alias.get(key)
            if taken is not None and key not in self.gradients and taken in self.gradients:
                self.gradients[key] = self.gradients[taken]
                self.gradients[key].users += 1
            elif taken is not None and taken in self.gradients:
                continue
            elif key in self.gradients:
                passed.append(self.allocate(self.plan.size(key)))
            else:
                self.gradients[key] = self.allocate(self.plan.size(key))
        self.highest = max(self.highest, self.level + e.scratch + self.between(e, before))
        for key in e.takes:
            buffer = self.gradients.pop(key, None)
            if buffer is not None:
                self.release(buffer)
        for buffer in passed:
            self.release(buffer)
        for this in before:
            self.uses[this] -= 1
            self.free(this)
        for key in e.writes if not e.always else ():
            self.free((key, self.version[key]))

    def free(self, this: tuple[Key, int]) -> None:
        if self.uses[this] <= 0 and this in self.buffers:
            self.release(self.buffers.pop(this))

    def between(self, e: Event, before: list[tuple[Key, int]]) -> int:
        """What the steps of a redistribution hold beyond its source and its target."""
        if len(e.steps) < 3:
            return 0
        sizes = [self.plan.size(k) for k in e.steps]
        stays = bool(before) and (self.uses[before[0]] > 1 or self.buffers[before[0]].users > 1)
        stays = stays or (bool(before) and e.steps[0][0] in self.plan.plan.parameters)
        first, last = (0 if stays else sizes[0]), sizes[-1]
        pairs = [first + sizes[1], *(a + b for a, b in pairwise(sizes[1:]))]
        return max(0, max(pairs) - first - last)


def simulated_peak(plan: PlanDocument, graph: Graph) -> int:
    """Bytes that a device of a plan of one stage and one micro-batch holds at most beside parameters."""
    return _Plan(plan, graph).peak()
