"""Graph and configuration → `Workload`: every kernel and transfer of one rank, counted by unit of the model."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from weakref import WeakKeyDictionary

from planner.evaluate.axis import PARTIAL, WHOLE, Along, lay_out
from planner.evaluate.configuration import Configuration
from planner.evaluate.fusion import VIEWS, Core, Regions, attention_cores, join
from planner.evaluate.workload import AXES, Axis, Kernel, Transfer, TransferKind, Unit, Workload
from planner.frontends.blocks import repeated_blocks
from planner.ir import Graph, Op, Role
from planner.ir.tensor import ITEM_BYTES
from planner.pricing.activity import active_tensors, fixed_operators, saved_slots
from planner.pricing.operators import bind_rules, signatures
from planner.rules.rule import Rule

__all__ = ["trace"]

HEAVY = frozenset({"matmul", "conv", "attention", "gather"})
LOSSES = frozenset({"SoftmaxCrossEntropyLoss", "com.microsoft::SoftmaxCrossEntropyLossInternal"})
CAUSAL_SHARE = 0.5  # of the scores, the part that a causal mask leaves


@dataclass(frozen=True, slots=True, eq=False)
class _Model:
    """What does not depend on the configuration."""

    graph: Graph
    rules: Mapping[str, Rule]
    keys: Mapping[str, Hashable]
    active: frozenset[str]
    fixed: frozenset[str]
    weights: frozenset[str]  # parameters, and tensors made of parameters alone
    unit: Mapping[str, int]  # operator → its unit
    repeated: tuple[bool, ...]
    traced: dict[Hashable, Workload] = field(default_factory=dict)
    along: dict[Hashable, Along] = field(default_factory=dict)


_MODELS: WeakKeyDictionary[Graph, _Model] = WeakKeyDictionary()


def trace(graph: Graph, configuration: Configuration) -> Workload:
    """The workload of one rank for one micro-batch.

    The graph's batch is micro_batch · ep samples: ranks that share experts exchange tokens.  Pipeline, data
    parallelism, ZeRO and full recomputation act on units and do not change the trace, which is kept with the graph.
    """
    model = _model(graph)
    c = configuration
    key = (c.tp, c.cp, c.ep, c.sequence_parallel, c.attention != "unfused", c.fuse, c.precision)
    if key not in model.traced:
        model.traced[key] = _Tracer(model, c).run()
    return model.traced[key]


def _model(graph: Graph) -> _Model:
    if graph not in _MODELS:
        rules, _ = bind_rules(graph)
        weights = {t.name for t in graph.parameters}
        constant = {t.name for t in graph.tensors.values() if t.role is Role.CONSTANT}
        for op in graph.ops:
            read = [t for t in op.inputs if t]
            if any(t in weights for t in read) and all(t in weights or t in constant for t in read):
                weights.update(t for t in op.outputs if t)
        unit, repeated = _units(graph)
        _MODELS[graph] = _Model(
            graph,
            rules,
            signatures(graph),
            active_tensors(graph, rules),
            fixed_operators(graph),
            frozenset(weights),
            unit,
            repeated,
        )
    return _MODELS[graph]


def _units(graph: Graph) -> tuple[dict[str, int], tuple[bool, ...]]:
    """Operator → number of its unit, in graph order: blocks of repeated runs, and what lies between them."""
    block = {name: (r, k) for r, run in enumerate(repeated_blocks(graph)) for k, b in enumerate(run.blocks) for name in b}
    order: list[object] = []
    passed = 0
    seen: set[object] = set()
    unit_of: dict[str, object] = {}
    for op in graph.ops:
        key = block.get(op.name)
        if key is not None:
            if key not in seen:
                seen.add(key)
                order.append(key)
                passed += 1
            unit_of[op.name] = key
        else:
            free = ("loose", passed)
            if free not in seen:
                seen.add(free)
                order.append(free)
            unit_of[op.name] = free
    index = {key: i for i, key in enumerate(order)}
    blocks = set(block.values())
    return {name: index[key] for name, key in unit_of.items()}, tuple(key in blocks for key in order)


class _Tracer:
    def __init__(self, model: _Model, configuration: Configuration) -> None:
        self.model, self.c = model, configuration
        self.graph, self.rules = model.graph, model.rules
        sizes: dict[Axis, int] = {"tensor": configuration.tp, "context": configuration.cp, "expert": configuration.ep}
        self.axes: dict[Axis, Along] = {a: self._along(a, n) for a, n in sizes.items() if n > 1}
        n = len(model.repeated)
        self.forward: list[Counter[Kernel]] = [Counter() for _ in range(n)]
        self.backward: list[Counter[Kernel]] = [Counter() for _ in range(n)]
        self.core: list[Counter[Kernel]] = [Counter() for _ in range(n)]
        self.of_weights: list[Counter[Kernel]] = [Counter() for _ in range(n)]
        self.sent: dict[str, list[Counter[Transfer]]] = {
            phase: [Counter() for _ in range(n)] for phase in ("forward", "backward", "core")
        }
        self.saved: list[dict[str, float]] = [{} for _ in range(n)]
        self.core_saved: list[dict[str, float]] = [{} for _ in range(n)]
        self.kept_by_others: list[set[str]] = [set() for _ in range(n)]
        self.transient = [0.0] * n
        self.widest: list[Counter[str]] = [Counter() for _ in range(n)]
        self.results = [0.0] * n
        self.scores = [0.0] * n
        self.width = 4.0 if configuration.precision == "fp32" else 2.0
        self.alias: dict[str, str] = {}

    def _along(self, axis: Axis, size: int) -> Along:
        m, sp = self.model, self.c.sequence_parallel and axis == "tensor"
        key = (axis, size, sp)
        if key not in m.along:
            m.along[key] = lay_out(m.graph, m.rules, m.keys, m.active, axis, size, sequence_parallel=sp)
        return m.along[key]

    # Sizes of one rank

    def _bytes(self, tensor: str) -> float:
        t = self.graph.tensors[tensor]
        if t.shape is None:
            return 0.0
        width = self.width if t.is_float else ITEM_BYTES.get(t.dtype, 4)
        return float(math.prod(t.shape)) * width

    def _resting(self, tensor: str, but: Axis | None = None) -> float:
        """Bytes of the tensor as it rests on one rank; whole along the axis `but`."""
        share = 1
        for a, along in self.axes.items():
            if a != but and along.rest.get(tensor, WHOLE) >= 0:
                share *= along.size
        return self._bytes(tensor) / share

    def _read(self, op: Op, i: int) -> float:
        share = 1
        for along in self.axes.values():
            code = along.choices[op.name].operands[i]
            if code is not None and code >= 0:
                share *= along.size
        return self._bytes(op.inputs[i]) / share

    def _written(self, op: Op, j: int) -> float:
        share = 1
        for along in self.axes.values():
            code = along.choices[op.name].results[j]
            if code is not None and code >= 0:
                share *= along.size
        return self._bytes(op.outputs[j]) / share

    def _shards(self, op: Op) -> int:
        return math.prod(along.choices[op.name].parallelism for along in self.axes.values())

    # The whole

    def run(self) -> Workload:
        barriers = self._transfers()
        regions = join(self.graph, self.rules, barriers, self.model.fixed, self.c.fuse)
        cores = attention_cores(self.graph, self.rules, regions, self.model.weights)
        self._views(regions)
        in_core: dict[str, Core] = {}
        for core in cores:
            for name in (core.scores, core.output, *(op.name for r in core.regions for op in regions.members[r])):
                in_core[name] = core
        fused = self.c.attention != "unfused"
        for core in cores:
            if fused:
                self._fused_core(core, regions)
        for op in self.graph.ops:
            if op.name in self.model.fixed or (fused and op.name in in_core):
                continue
            if self.rules[op.name].kind in HEAVY:
                self._heavy(op, op.name in in_core)
        for number, members in enumerate(regions.members):
            if self.rules[members[0].name].kind in HEAVY or (fused and members[0].name in in_core):
                continue
            self._region(members, regions, number, members[0].name in in_core)
        return self._workload()

    def _views(self, regions: Regions) -> None:
        """Regions that only rearrange are strided reads of what they rearrange."""
        for members in regions.members:
            only_views = all(self.rules[op.name].kind in VIEWS for op in members)
            for op in members:
                if self.rules[op.name].kind == "free" or (only_views and self.c.fuse):
                    source = op.inputs[0] if op.inputs else ""
                    for t in op.outputs:
                        if t and source:
                            self.alias[t] = self.alias.get(source, source)

    def _root(self, tensor: str) -> str:
        return self.alias.get(tensor, tensor)

    # Products, convolutions, attention, lookups

    def _heavy(self, op: Op, core: bool) -> None:
        rule = self.rules[op.name]
        unit = self.model.unit[op.name]
        shards = self._shards(op)
        trained = any(t in self.model.active for t in op.outputs)
        if all(t in self.model.weights for t in op.inputs if t):
            return
        moved = sum(self._read(op, i) for i, t in enumerate(op.inputs) if t)
        written = sum(self._written(op, j) for j, t in enumerate(op.outputs) if t)
        flops = rule.flops / shards
        if rule.kind == "gather":
            self._add(unit, core, Kernel("gather", 0.0, 2 * written), [Kernel("gather", 0.0, 3 * written)] * trained)
        elif rule.kind == "attention":
            b, m, n, k = self._attention_dims(op)
            share = CAUSAL_SHARE if op.attributes.get("is_causal") else 1.0
            here = Kernel("attention", flops * share, moved + written, b, m, n, k)
            back = Kernel("attention_backward", rule.backward_flops / shards * share, 2 * (moved + written), b, m, n, k)
            self._add(unit, True, here, [back] * trained)
            self.results[unit] += 2 * written
        else:
            b, m, n, k = self._dims(op, flops)
            kind = "product" if rule.kind == "matmul" else "convolution"
            traffic = moved + written
            back = []
            if trained:
                if len(op.inputs) > 0 and op.inputs[0] in self.model.active:
                    back.append(Kernel(kind, flops, traffic, b, m, k, n))
                if len(op.inputs) > 1 and op.inputs[1] in self.model.active:
                    back.append(Kernel(kind, flops, traffic, b, k, n, m))
                    if op.inputs[1] in self.model.weights:
                        self.of_weights[unit][back[-1]] += 1
                        if b == 1:  # grouped products add to the sum of gradients themselves
                            self.widest[unit][self._root(op.inputs[0])] += round(self._read(op, 1) / self.width)
            self._add(unit, core, Kernel(kind, flops, traffic, b, m, n, k), back)
            self.results[unit] += 0.0 if core else written
        self.transient[unit] = max(self.transient[unit], written)
        if trained:
            for i in saved_slots(op, rule, self.model.active):
                if i < len(op.inputs) and op.inputs[i]:
                    self._save(unit, op.inputs[i], core and rule.kind != "attention" and self._inside(op, i))
            for j in rule.saved_results:
                if j < len(op.outputs) and op.outputs[j]:
                    self._save(unit, op.outputs[j], False)

    def _inside(self, op: Op, i: int) -> bool:
        """Whether operand i is made inside the attention core (the scores after softmax)."""
        producer = self.graph.producers.get(self._root(op.inputs[i]))
        return producer is not None and self.rules[producer.name].kind == "normalization"

    def _add(self, unit: int, core: bool, forward: Kernel, backward: Sequence[Kernel]) -> None:
        self.forward[unit][forward] += 1
        if core:
            self.core[unit][forward] += 1
        for k in backward:
            self.backward[unit][k] += 1

    def _local_sizes(self, op: Op) -> dict[str, int]:
        rule = self.rules[op.name]
        sizes = dict(rule.factors)
        for along in self.axes.values():
            for f in along.choices[op.name].factors:
                if f in sizes:
                    sizes[f] = max(1, sizes[f] // along.size)
        return sizes

    def _dims(self, op: Op, flops: float) -> tuple[int, int, int, int]:
        """(batch, rows, columns, depth) of the local product."""
        rule = self.rules[op.name]
        sizes = self._local_sizes(op)

        def factors(dims: tuple[tuple[str, ...], ...] | None) -> set[str]:
            return {f for d in dims or () for f in d}

        left, right = factors(rule.operands[0]), factors(rule.operands[1] if len(rule.operands) > 1 else None)
        result = factors(rule.results[0])

        def size(names: set[str]) -> int:
            return math.prod(sizes[f] for f in names)

        if rule.kind == "conv":
            columns = max(1, size((right - left) & result))
            rows = max(1, int(self._written(op, 0) / self.width / columns))
            return 1, rows, columns, max(1, round(flops / (2.0 * rows * columns)))
        return size(left & right & result), size((left - right) & result), size((right - left) & result), size(
            (left | right) - result
        )

    def _attention_dims(self, op: Op) -> tuple[int, int, int, int]:
        s = self._local_sizes(op)
        heads = s.get("b", 1) * s.get("h", 1) * s.get("g", 1)
        return heads, s.get("s", 1), s.get("t", 1), s.get("e", 1)

    def _fused_core(self, core: Core, regions: Regions) -> None:
        scores, output = self.graph.op(core.scores), self.graph.op(core.output)
        unit = self.model.unit[core.scores]
        flops = sum(self.rules[op.name].flops / self._shards(op) for op in (scores, output))
        inside = {t for r in core.regions for op in regions.members[r] for t in op.outputs} | set(scores.outputs)
        reads = [(scores, 0), (scores, 1)] + [(output, i) for i, t in enumerate(output.inputs) if t not in inside]
        moved = sum(self._read(op, i) for op, i in reads) + self._written(output, 0)
        share = CAUSAL_SHARE if self._masked(core, regions) else 1.0
        b, m, n, k = self._dims(scores, flops / 2)
        trained = any(t in self.model.active for t in output.outputs)
        back = Kernel("attention_backward", 2.5 * flops * share, 2 * moved, b, m, n, k)
        self._add(unit, True, Kernel("attention", flops * share, moved, b, m, n, k), [back] * trained)
        self.results[unit] += 2 * self._written(output, 0)
        if trained:
            for op, i in reads:
                self._save(unit, op.inputs[i], False)
            self._save(unit, output.outputs[0], False)

    def _masked(self, core: Core, regions: Regions) -> bool:
        """A fixed square mask is taken for a causal one."""
        for r in core.regions:
            for op in regions.members[r]:
                for t in op.inputs:
                    producer = self.graph.producers.get(t)
                    shape = self.graph.tensors[t].shape if t else None
                    fixed = (producer is not None and producer.name in self.model.fixed) or (
                        t and self.graph.tensors[t].role is Role.CONSTANT
                    )
                    if fixed and shape is not None and len(shape) >= 2 and shape[-1] == shape[-2] > 1:
                        return True
        return False

    # Elementwise regions

    def _region(self, members: tuple[Op, ...], regions: Regions, number: int, core: bool) -> None:
        if all(t in self.model.weights or self.graph.tensors[t].role is Role.CONSTANT
               for op in members for t in op.inputs if t):
            return
        only_views = all(self.rules[op.name].kind in VIEWS for op in members)
        if only_views and self.c.fuse:
            self._saved_by(members, regions, number, core, materialised=frozenset())
            return
        if not self.c.fuse and self.rules[members[0].name].kind == "free":
            return
        made = {t for op in members for t in op.outputs if t}
        read: dict[str, float] = {}
        written: dict[str, float] = {}
        grads: dict[str, float] = {}
        flops = 0.0
        for op in members:
            flops += self.rules[op.name].flops / self._shards(op)
            for i, t in enumerate(op.inputs):
                if t and t not in made:
                    root = self._root(t)
                    read[root] = max(read.get(root, 0.0), self._read(op, i))
                    if t in self.model.active:
                        grads[root] = read[root]
            for j, t in enumerate(op.outputs):
                if t and self._leaves(t, regions, number):
                    written[self._root(t)] = self._written(op, j)
        unit = self.model.unit[members[0].name]
        for op in members:
            if op.type in LOSSES:
                self.scores[unit] += self._read(op, 0)
        trained = any(t in self.model.active for t in made)
        kept = self._saved_by(members, regions, number, core, frozenset(written))
        forward = Kernel("vector", flops, sum(read.values()) + sum(written.values()))
        moved = sum(written[t] for t in written) + sum(kept.values()) + sum(grads.values())
        self._add(unit, core, forward, [Kernel("vector", 2 * flops, moved)] * trained)
        self.transient[unit] = max(self.transient[unit], sum(written.values()))

    def _leaves(self, tensor: str, regions: Regions, number: int) -> bool:
        readers = self.graph.consumers.get(tensor, ())
        return not readers or any(regions.of.get(op.name, -1) != number for op, _ in readers)

    def _saved_by(
        self, members: tuple[Op, ...], regions: Regions, number: int, core: bool, materialised: frozenset[str]
    ) -> dict[str, float]:
        """Tensors the region's backward reads: those that exist in memory, from which the rest is computed again."""
        made = {t: op for op in members for t in op.outputs if t}
        kept: dict[str, float] = {}
        pending: list[tuple[Op, int]] = []
        for op in members:
            rule = self.rules[op.name]
            if not any(t in self.model.active for t in op.outputs):
                continue
            pending += [(op, i) for i in saved_slots(op, rule, self.model.active) if i < len(op.inputs)]
            for j in rule.saved_results:
                t = op.outputs[j] if j < len(op.outputs) else ""
                if t and self._root(t) in materialised and rule.kind == "normalization":
                    kept[self._root(t)] = self._written(op, j)
                elif t:
                    pending += [(op, i) for i in range(len(op.inputs))]
        seen = set()
        while pending:
            op, i = pending.pop()
            t = op.inputs[i]
            if not t or (op.name, i) in seen or t in self.model.weights:
                continue
            seen.add((op.name, i))
            root = self._root(t)
            if self.graph.tensors[t].role is Role.CONSTANT or self._is_fixed(t) or root in kept:
                continue
            if t in made and root not in materialised:
                pending += [(made[t], k) for k in range(len(made[t].inputs))]
            else:
                kept[root] = self._read(op, i)
        unit = self.model.unit[members[0].name]
        for t, size in kept.items():
            self._save(unit, t, core and t in made, size)
        return kept

    def _is_fixed(self, tensor: str) -> bool:
        producer = self.graph.producers.get(tensor)
        return producer is not None and producer.name in self.model.fixed

    # Memory

    def _save(self, unit: int, tensor: str, core: bool, size: float | None = None) -> None:
        root = self._root(tensor)
        if root in self.model.weights or self._is_fixed(root) or self.graph.tensors[root].role is Role.CONSTANT:
            return
        held = self._resting(root) if size is None else min(size, self._resting(root) or size)
        target = self.core_saved[unit] if core else self.saved[unit]
        target[root] = max(target.get(root, 0.0), held)

    # Transfers

    def _transfers(self) -> dict[str, set[str]]:
        """Records conversions and inner collectives; operands of operators that a transfer stands before."""
        barriers: dict[str, set[str]] = defaultdict(set)
        for axis, along in self.axes.items():
            self._inner(axis, along)
            for t in {**along.rest}:
                if t not in self.model.weights and not self._is_fixed(t):
                    self._convert(axis, along, t, barriers)
        return barriers

    def _convert(self, axis: Axis, along: Along, t: str, barriers: dict[str, set[str]]) -> None:
        rest, written = along.rest[t], along.written.get(t, along.rest[t])
        producer = self.graph.producers.get(t)
        whole = self._resting(t, but=axis)
        carries = t in self.model.active
        if written == PARTIAL and producer is not None:
            unit = self.model.unit[producer.name]
            if rest == WHOLE:
                self._send("forward", unit, "all_reduce", axis, whole)
            else:
                self._send("forward", unit, "reduce_scatter", axis, whole)
                if carries:
                    self._send("backward", unit, "all_gather", axis, whole)
            for op, _ in self.graph.consumers.get(t, ()):
                barriers[op.name].add(t)
        readings: dict[int, list[tuple[Op, int]]] = defaultdict(list)
        for op, i in self.graph.consumers.get(t, ()):
            if op.name in self.model.fixed:
                continue
            code = along.choices[op.name].operands[i]
            if code is not None:
                readings[code].append((op, i))
        for code, readers in readings.items():
            unit = min(self.model.unit[op.name] for op, _ in readers)
            gradients = {along.choices[op.name].operand_gradients[i] for op, i in readers if t in self.model.active}
            if code == rest:
                if rest == WHOLE and PARTIAL in gradients and carries:
                    self._send("backward", unit, "all_reduce", axis, whole)
                continue
            if rest == WHOLE:
                if carries:
                    self._send("backward", unit, "all_gather", axis, whole)
                continue
            for op, _ in readers:
                barriers[op.name].add(t)
            if code == WHOLE:
                self._send("forward", unit, "all_gather", axis, whole)
                if carries:
                    reduced = "reduce_scatter" if PARTIAL in gradients else None
                    if reduced:
                        self._send("backward", unit, "reduce_scatter", axis, whole)
                    # The input is kept divided and gathered again for the gradient of the weight.
                    if any(i in saved_slots(op, self.rules[op.name], self.model.active) for op, i in readers):
                        self._send("backward", unit, "all_gather", axis, whole, hidden=True)
            else:
                self._send("forward", unit, "all_to_all", axis, whole)
                if carries:
                    self._send("backward", unit, "all_to_all", axis, whole)

    def _inner(self, axis: Axis, along: Along) -> None:
        for op in self.graph.ops:
            choice = along.choices[op.name]
            if not choice.inner or op.name in self.model.fixed:
                continue
            unit = self.model.unit[op.name]
            others = self._shards(op) // choice.parallelism
            for x in choice.inner:
                if x.backward and not any(t in self.model.active for t in op.outputs):
                    continue
                width = x.item_bytes if x.statistic else min(x.item_bytes, int(self.width) * max(1, x.item_bytes // 4))
                gathered = along.size if x.kind in ("all_gather", "all_to_all") else 1
                size = x.elements * width * gathered / others
                kind: TransferKind = x.kind  # type: ignore[assignment]
                phase = "backward" if x.backward else "forward"
                self._send(phase, unit, kind, axis, size, hidden=x.kind == "permute", times=x.count)

    def _send(
        self,
        phase: str,
        unit: int,
        kind: TransferKind,
        axis: Axis,
        size: float,
        *,
        hidden: bool = False,
        times: int = 1,
    ) -> None:
        if size > 0:
            self.sent[phase][unit][Transfer(kind, axis, size, hidden)] += times

    # Units

    def _workload(self) -> Workload:
        n = len(self.model.repeated)
        weights, experts, tied, total = self._weights()
        entering = [0.0] * n
        for t in self.graph.tensors:
            producer = self.graph.producers.get(t)
            if producer is None or producer.name in self.model.fixed or t in self.model.weights:
                continue
            here = self.model.unit[producer.name]
            later = {self.model.unit[op.name] for op, _ in self.graph.consumers.get(t, ()) if op.name not in self.model.fixed}
            for u in later - {here}:
                if u > here and self.graph.tensors[t].is_float and self._bytes(t) > 0:
                    entering[u] += self._resting(t)
        first_saved: dict[str, int] = {}
        for u in range(n):
            for t in self.saved[u]:
                first_saved.setdefault(t, u)
        units: list[Unit] = []
        known: dict[object, Unit] = {}  # blocks that do the same are one value
        for u in range(n):
            kept = sum(size for t, size in self.saved[u].items() if first_saved[t] == u)
            unit = Unit(
                    dict(self.forward[u]),
                    dict(self.backward[u]),
                    dict(self.core[u]),
                    dict(self.of_weights[u]),
                    dict(self.sent["forward"][u]),
                    dict(self.sent["backward"][u]),
                    dict(self.sent["core"][u]),
                    kept + sum(self.core_saved[u].values()),
                    sum(self.core_saved[u].values()),
                    entering[u],
                    self.transient[u],
                    max(self.widest[u].values(), default=0),
                    self.results[u],
                    self.scores[u],
                    weights[u],
                    experts[u],
                )
            key = tuple(
                tuple(value.items()) if isinstance(value, dict) else value
                for value in (getattr(unit, f.name) for f in fields(unit))
            )
            units.append(known.setdefault(key, unit))
        samples = next((self.graph.tensors[t].shape[0] for t in self.graph.inputs if self.graph.tensors[t].shape), 1)
        return Workload(tuple(units), self.model.repeated, tied, total, samples)

    def _weights(self) -> tuple[list[int], list[int], int, int]:
        n = len(self.model.repeated)
        ordinary, experts = [0] * n, [0] * n
        tied = total = 0
        for p in self.graph.parameters:
            users: set[int] = set()
            names = [p.name]
            while names:
                for op, _ in self.graph.consumers.get(names.pop(), ()):
                    if all(t in self.model.weights for t in op.outputs if t):
                        names += [t for t in op.outputs if t]
                    else:
                        users.add(self.model.unit[op.name])
            if not users or p.shape is None:
                continue
            elements = math.prod(p.shape)
            total += elements
            shared = False
            for a in AXES:
                along = self.axes.get(a)
                if along is not None and along.rest.get(p.name, WHOLE) >= 0:
                    elements = -(-elements // along.size)
                    shared = shared or a == "expert"
            (experts if shared else ordinary)[min(users)] += elements
            if len(users) > 1 and max(users) - min(users) > 1:
                tied += elements
        return ordinary, experts, tied, total
