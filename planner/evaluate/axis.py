"""What one mesh axis does to every operator when a strategy is prescribed rather than searched.

The axis of each kind of parallelism follows one rule, whatever the architecture:

tensor    operators with a weight (products, convolutions, tables that are looked up) divide the weight;
          everything else follows whatever moves the fewest bytes.  A product whose input is whole divides its
          columns, one whose input is divided along the contraction its rows: on a transformer this is Megatron's
          layout (Shoeybi et al. 2019), on others the like.
context   inputs arrive divided along their second dimension (the sequence) and stay so; weights are whole.
expert    inputs arrive divided along their first dimension (samples); weights with a dimension that their other
          operand and the result share (an expert's) are divided there, all others are whole.

Along one axis a tensor is whole, divided in one dimension, or a pending sum; sums are carried out where they
arise, into a whole tensor or, with sequence parallelism, into one divided along the sequence
(Korthikanti et al. 2022).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from planner.ir import DeviceMesh, Graph, Layout, MeshAxis, Op, Role
from planner.rules.rule import Rule
from planner.rules.strategy import BoundCollective, Strategy, axis_roles, bind

__all__ = ["PARTIAL", "WHOLE", "Along", "AxisKind", "Choice", "lay_out"]

AxisKind = Literal["tensor", "context", "expert"]
WHOLE: Final = -1
PARTIAL: Final = -2

_HEAVY: Final = frozenset({"matmul", "conv", "gather"})
# Seconds per byte sent, per byte of memory traffic and per operation: only their proportions matter here, and all
# accelerators have about these.
_SENT, _MOVED, _DONE = 5e-12, 6e-13, 3e-15
_LAUNCH = 1e-5


@dataclass(frozen=True, slots=True)
class Choice:
    """One way to run an operator along the axis; codes are a dimension, `WHOLE` or `PARTIAL`, None where unstated."""

    operands: tuple[int | None, ...]
    results: tuple[int | None, ...]
    operand_gradients: tuple[int | None, ...]
    factors: frozenset[str]
    parallelism: int
    inner: tuple[BoundCollective, ...]


@dataclass(frozen=True, slots=True)
class Along:
    """The axis of `size` ranks: how each operator runs, and how each tensor rests between its producer and readers."""

    size: int
    choices: Mapping[str, Choice]
    rest: Mapping[str, int]
    written: Mapping[str, int]


@dataclass(slots=True)
class _State:
    graph: Graph
    rules: Mapping[str, Rule]
    active: frozenset[str]
    kind: AxisKind
    size: int
    sequence_parallel: bool
    rest: dict[str, int] = field(default_factory=dict)
    written: dict[str, int] = field(default_factory=dict)
    pending: dict[str, Op] = field(default_factory=dict)  # made of weights alone, layout still open → its operator
    choices: dict[str, Choice] = field(default_factory=dict)
    found: dict[Hashable, tuple[Choice, ...]] = field(default_factory=dict)
    decided: dict[Hashable, Choice] = field(default_factory=dict)


def lay_out(
    graph: Graph,
    rules: Mapping[str, Rule],
    keys: Mapping[str, Hashable],
    active: frozenset[str],
    kind: AxisKind,
    size: int,
    *,
    sequence_parallel: bool = False,
) -> Along:
    """Lays the whole graph out along one axis; `keys` are the operators' signatures (`pricing.signatures`)."""
    s = _State(graph, rules, active, kind, size, sequence_parallel)
    for name in graph.inputs:
        s.rest[name] = _of_input(graph, name, kind, size)
    for op in graph.ops:
        _lay(s, op, keys[op.name])
    return Along(size, s.choices, s.rest, s.written)


def _of_input(graph: Graph, name: str, kind: AxisKind, size: int) -> int:
    tensor = graph.tensors[name]
    dimension = {"tensor": WHOLE, "context": 1, "expert": 0}[kind]
    if tensor.role is not Role.INPUT or tensor.shape is None or dimension == WHOLE or dimension >= len(tensor.shape):
        return WHOLE
    return dimension if tensor.shape[dimension] % size == 0 else WHOLE


def _lay(s: _State, op: Op, key: Hashable) -> None:
    rule = s.rules[op.name]
    if _weights_only(s, op):
        _lay_weight(s, op, rule, key)
        return
    states = tuple(_state(s, t) for t in op.inputs)
    carries = tuple(t in s.active for t in op.inputs)
    looked_up = rule.kind == "gather" and len(op.inputs) > 1 and _fed(s, op.inputs[1])
    memo = (key, states, carries, looked_up)
    if memo not in s.decided:
        s.decided[memo] = _decide(s, op, rule, key, states, looked_up)
    choice = s.decided[memo]
    s.choices[op.name] = choice
    for i, t in enumerate(op.inputs):
        code = choice.operands[i]
        if t and code is not None and _is_weight(s, t) and t not in s.rest:
            _settle(s, t, code)
    for j, t in enumerate(op.outputs):
        if t:
            code = choice.results[j]
            written = WHOLE if code is None else code
            s.written[t] = written
            s.rest[t] = _resting(s, t) if written == PARTIAL else written


def _state(s: _State, tensor: str) -> int | None:
    """Code of what is there; None for a weight whose layout is still open, and for absent operands."""
    return s.rest.get(tensor) if tensor else None


def _fed(s: _State, tensor: str) -> bool:
    """Whether the tensor is a graph input, or a view of one."""
    seen = 0
    while tensor in s.graph.producers and seen < 8:
        tensor, seen = s.graph.producers[tensor].inputs[0], seen + 1
    t = s.graph.tensors.get(tensor)
    return t is not None and t.role is Role.INPUT


def _is_weight(s: _State, tensor: str) -> bool:
    return s.graph.tensors[tensor].role is Role.PARAMETER or tensor in s.pending


def _weights_only(s: _State, op: Op) -> bool:
    read = [t for t in op.inputs if t]
    weights = [t for t in read if _is_weight(s, t)]
    return bool(weights) and all(t in weights or s.graph.tensors[t].role is Role.CONSTANT for t in read)


def _lay_weight(s: _State, op: Op, rule: Rule, key: Hashable) -> None:
    """A transposed or cast weight follows the weight, or, where that is open, will follow its reader."""
    states = [_state(s, t) for t in op.inputs]
    weights = [i for i, t in enumerate(op.inputs) if t and _is_weight(s, t)]
    whole = _candidates(s, op, rule, key)[-1]
    if len(weights) != 1 or states[weights[0]] is None:
        s.choices[op.name] = whole
        s.pending.update({t: op for t in op.outputs if t})
        return
    (i,) = weights
    choice = next((c for c in _candidates(s, op, rule, key) if c.operands[i] == states[i]), whole)
    s.choices[op.name] = choice
    for j, t in enumerate(op.outputs):
        if t:
            code = choice.results[j]
            s.rest[t] = s.written[t] = WHOLE if code is None or code == PARTIAL else code


def _settle(s: _State, tensor: str, code: int) -> None:
    """Fixes the layout of a weight, and of the weights it is made of."""
    s.rest[tensor] = code
    op = s.pending.pop(tensor, None)
    if op is None:
        return
    s.written[tensor] = code
    j = op.outputs.index(tensor)
    options = _candidates(s, op, s.rules[op.name], op.name)
    choice = next((c for c in options if c.results[j] == code), options[-1])
    s.choices[op.name] = choice
    for i, t in enumerate(op.inputs):
        wanted = choice.operands[i]
        if t and wanted is not None and _is_weight(s, t) and t not in s.rest:
            _settle(s, t, wanted)


def _resting(s: _State, tensor: str) -> int:
    """Where a pending sum goes: to the dimension of the sequence, if it divides, else to every rank."""
    shape = s.graph.tensors[tensor].shape
    if s.sequence_parallel and shape is not None and len(shape) >= 2:
        dimension = 1 if len(shape) >= 3 else 0
        if shape[dimension] % s.size == 0:
            return dimension
    return WHOLE


def _candidates(s: _State, op: Op, rule: Rule, key: Hashable) -> tuple[Choice, ...]:
    """The operator's strategies over one axis; the last replicates."""
    if key not in s.found:
        mesh = DeviceMesh((MeshAxis("a", s.size),))
        choices = []
        for role in axis_roles(rule, training=False):
            if role.kind in ("split", "replicate"):
                strategy = bind(rule, mesh, (role,))
                if strategy is not None:
                    choices.append((role.kind == "replicate", _choice(strategy)))
        s.found[key] = tuple(c for _, c in sorted(choices, key=lambda x: x[0]))
    return s.found[key]


def _choice(strategy: Strategy) -> Choice:
    return Choice(
        tuple(map(_code, strategy.operands)),
        tuple(map(_code, strategy.results)),
        tuple(map(_code, strategy.operand_gradients)),
        frozenset(strategy.split),
        strategy.parallelism,
        strategy.inner,
    )


def _code(layout: Layout | None) -> int | None:
    if layout is None:
        return None
    if layout.partial:
        return PARTIAL
    return next((i for i, axes in enumerate(layout.dims) if axes), WHOLE)


def _decide(
    s: _State, op: Op, rule: Rule, key: Hashable, states: tuple[int | None, ...], looked_up: bool
) -> Choice:
    options = _allowed(s, op, rule, _candidates(s, op, rule, key), states, looked_up)
    return min(options, key=lambda c: _seconds(s, op, rule, c, states))


def _allowed(
    s: _State,
    op: Op,
    rule: Rule,
    options: tuple[Choice, ...],
    states: tuple[int | None, ...],
    looked_up: bool,
) -> tuple[Choice, ...]:
    """Candidates that the kind of parallelism admits: all, where it admits none."""
    weights = [
        i
        for i, t in enumerate(op.inputs)
        if t and options[0].operands[i] is not None and _is_weight(s, t) and s.graph.tensors[t].rank > 1
    ]

    def divides(c: Choice) -> bool:
        return any((code := c.operands[i]) is not None and code >= 0 for i in weights)

    if s.kind == "tensor":
        if rule.kind in _HEAVY and weights and (rule.kind != "gather" or looked_up):
            kept = tuple(c for c in options if divides(c))
            if rule.kind == "gather":
                kept = tuple(c for c in kept if any(c.operands[i] == 0 for i in weights)) or kept
            return kept or options
        return options
    if s.kind == "expert" and weights:
        shared = frozenset.union(*(_shared(rule, i) for i in weights))
        kept = tuple(c for c in options if c.factors & shared and divides(c))
        if kept:
            return kept
    kept = tuple(c for c in options if not divides(c))
    return kept or options


def _shared(rule: Rule, weight: int) -> frozenset[str]:
    """Factors that a weight has in common with the other operands and with the result."""

    def factors(dims: tuple[tuple[str, ...], ...] | None) -> set[str]:
        return {f for d in dims or () for f in d}

    others = set().union(*(factors(d) for i, d in enumerate(rule.operands) if i != weight))
    return frozenset(factors(rule.operands[weight]) & others & factors(rule.results[0]))


def _seconds(s: _State, op: Op, rule: Rule, c: Choice, states: tuple[int | None, ...]) -> float:
    """What the candidate costs, roughly: bytes sent forward and backward, local traffic and operations."""
    n = s.size
    ring = (n - 1) / n
    sent = moved = 0.0
    launches = 0
    for i, t in enumerate(op.inputs):
        need, have = c.operands[i], states[i]
        if not t or need is None:
            continue
        size = _bytes(s.graph, t)
        moved += size / (n if need >= 0 else 1)
        tensor = s.graph.tensors[t]
        if tensor.role is Role.CONSTANT or have is None:
            continue
        carries = t in s.active
        if need != have:
            if have == WHOLE:
                sent += ring * size if carries else 0.0
            elif need == WHOLE:
                sent += ring * size * (2 if carries else 1)
            else:
                sent += ring * size / n * 2
            launches += 1
        elif have == WHOLE and c.operand_gradients[i] == PARTIAL and carries and not _is_weight(s, t):
            sent += 2 * ring * size
            launches += 1
    for j, t in enumerate(op.outputs):
        code = c.results[j]
        if t and code is not None:
            size = _bytes(s.graph, t)
            moved += size / (n if code >= 0 else 1)
            if code == PARTIAL:
                sent += 2 * ring * size
                launches += 1
    for x in c.inner:
        sent += x.count * x.elements * min(x.item_bytes, 4)
        launches += x.count
    if rule.kind == "free":
        moved = 0.0
    return sent * _SENT + 3 * moved * _MOVED + 3 * rule.flops / c.parallelism * _DONE + launches * _LAUNCH


def _bytes(graph: Graph, tensor: str) -> float:
    shape = graph.tensors[tensor].shape
    return 0.0 if shape is None else 2.0 * math.prod(shape)
