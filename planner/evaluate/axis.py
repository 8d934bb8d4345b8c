"""What one mesh axis does to every operator when a strategy is prescribed rather than searched.

The axis of each kind of parallelism follows one rule, whatever the architecture:

tensor    a product or convolution whose input is divided along the contraction divides its weight's rows, any
          other its columns, unless a normalisation over them comes before the next product (a router, a latent
          projection, patches of an image): that one stays whole.  Tables that inputs look up divide their rows.
          On a transformer this is Megatron's layout (Shoeybi et al. 2019), on others the like.
context   inputs arrive divided along their second dimension (the sequence) and stay so; weights are whole, and
          products of two activations gather keys and values or pass them round.
expert    inputs arrive divided along their first dimension (samples); weights with a dimension that their other
          operand and the result share (an expert's) are divided there, all others are whole.

Operators without a weight take their inputs as they are, or whole; where inputs disagree, one is followed and the
others are converted, by whatever sends and moves the fewest bytes.

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

__all__ = ["LOSSES", "PARTIAL", "WHOLE", "Along", "AxisKind", "Choice", "has_experts", "lay_out"]

AxisKind = Literal["tensor", "context", "expert"]
WHOLE: Final = -1
PARTIAL: Final = -2
_REARRANGING: Final = frozenset({"free", "layout", "elementwise"})  # a cast of indices is elementwise
LOSSES: Final = frozenset({"SoftmaxCrossEntropyLoss", "com.microsoft::SoftmaxCrossEntropyLossInternal"})

_EXPERTS: Final = frozenset({"com.microsoft::MoE", "com.microsoft::QMoE"})
_HEAVY: Final = frozenset({"matmul", "conv", "gather", "attention"})
# Seconds per byte sent, per byte of memory traffic and per operation: only their proportions matter here, and all
# accelerators have about these.
_SENT, _MOVED, _DONE = 5e-12, 6e-13, 3e-15


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
    keys: Mapping[str, Hashable]
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
    s = _State(graph, rules, keys, active, kind, size, sequence_parallel)
    for name in graph.inputs:
        s.rest[name] = _of_input(graph, name, kind, size)
    for op in graph.ops:
        _lay(s, op, keys[op.name])
    return Along(size, s.choices, s.rest, s.written)


def has_experts(graph: Graph, rules: Mapping[str, Rule]) -> bool:
    """Whether some product has a weight for each expert: a dimension in common with what is multiplied and the result,
    or experts are one operator."""
    for op in graph.ops:
        rule = rules[op.name]
        tensors = [graph.tensors.get(t) for t in op.inputs]
        weights = [i for i, t in enumerate(tensors) if t is not None and t.role is Role.PARAMETER and t.rank > 2]
        if rule.kind == "matmul" and any(_shared(rule, i) for i in weights):
            return True
        if op.type in _EXPERTS:
            return True
    return False


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
    # What a product feeds decides, too, whether its columns are divided.
    memo = (key, states, carries, looked_up, op.outputs[0] if rule.kind in ("matmul", "conv") else None)
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
    while (op := s.graph.producers.get(tensor)) is not None and op.inputs and s.rules[op.name].kind in _REARRANGING:
        tensor = op.inputs[0]
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


def _decide(s: _State, op: Op, rule: Rule, key: Hashable, states: tuple[int | None, ...], looked_up: bool) -> Choice:
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
    """Candidates that the kind of parallelism admits; the one that replicates is among them, if no other."""
    weights = [
        i
        for i, t in enumerate(op.inputs)
        if t and options[0].operands[i] is not None and _is_weight(s, t) and s.graph.tensors[t].rank > 1
    ]

    def divides(c: Choice) -> bool:
        return any((code := c.operands[i]) is not None and code >= 0 for i in weights)

    if s.kind == "expert":
        shared = frozenset[str]().union(*(_shared(rule, i) for i in weights))
        kept = tuple(
            c
            for c in options
            if divides(c)
            and (c.factors & shared or any(x.kind == "all_to_all" for x in c.inner))
            and (rule.kind in _HEAVY or _follows(s, op, c, states))  # a table of positions is no expert
        )
        return kept or tuple(c for c in options if not divides(c)) or options
    if s.kind == "tensor" and weights and (rule.kind in ("matmul", "conv") or looked_up):
        kept = tuple(c for c in options if divides(c))
        if looked_up:
            kept = tuple(c for c in kept if any(c.operands[i] == 0 for i in weights))
        else:
            kept = _paired(s, op, kept, states, weights)
        if kept:
            return kept
    elif s.kind == "tensor" and rule.kind in _HEAVY and not weights and any(x is not None and x >= 0 for x in states):
        return tuple(c for c in options if not _turned(c, states)) or options
    if rule.kind in _HEAVY:
        options = tuple(c for c in options if not divides(c)) or options
    return tuple(c for c in options if _follows(s, op, c, states)) or options


def _turned(c: Choice, states: tuple[int | None, ...]) -> bool:
    """Whether an operand is divided along another dimension than it arrives in, or whole samples are divided: an
    all-to-all of activations is no tensor parallelism, and samples are data parallelism's."""
    return any(
        code is not None and code >= 0 and code != state and (code == 0 or (state is not None and state >= 0))
        for code, state in zip(c.operands, states, strict=True)
    )


def _paired(
    s: _State, op: Op, options: tuple[Choice, ...], states: tuple[int | None, ...], weights: list[int]
) -> tuple[Choice, ...]:
    """Of the ways to divide a weight: its rows where the other operand is divided along the contraction, else its
    columns, unless a normalisation over them comes before another product (a router, a latent projection)."""
    others = [i for i, t in enumerate(op.inputs) if t and i not in weights and not _is_weight(s, t)]
    cut = [i for i in others if (have := states[i]) is not None and have >= 0]
    rows = tuple(c for c in options if any(c.operands[i] == states[i] for i in cut))
    if rows:
        return rows
    columns = [c for c in options if all(c.operands[i] in (WHOLE, None) for i in others) and _column(c) >= 0]
    return tuple(c for c in columns if _useful(s, op.outputs[0], _column(c))) if columns else options


def _column(c: Choice) -> int:
    code = c.results[0]
    return WHOLE if code is None else code


def _useful(s: _State, tensor: str, code: int) -> bool:
    """Whether a tensor divided there is read by products, or by nothing, before a normalisation over the dimension."""
    pending, seen = [(tensor, code)], set[tuple[str, int]]()
    while pending:
        at = pending.pop()
        if at in seen:
            continue
        seen.add(at)
        t, dimension = at
        for op, i in s.graph.consumers.get(t, ()):
            rule = s.rules[op.name]
            if rule.kind in _HEAVY or op.type in LOSSES:
                continue
            ways = [c for c in _candidates(s, op, rule, s.keys[op.name]) if c.operands[i] == dimension]
            if ways and all(c.inner or PARTIAL in c.results for c in ways):
                return False
            pending += [
                (o, r) for c in ways[:1] for o, r in zip(op.outputs, c.results, strict=True) if o and r is not None
            ]
    return True


def _follows(s: _State, op: Op, c: Choice, states: tuple[int | None, ...]) -> bool:
    """Whether the operator runs whole, or divided as one of its activations arrives."""
    mine = [(c.operands[i], states[i]) for i, t in enumerate(op.inputs) if t and not _is_weight(s, t)]
    cut = any(have is not None and have >= 0 and need == have for need, have in mine)
    return cut or c.parallelism == 1


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
        elif have == WHOLE and c.operand_gradients[i] == PARTIAL and carries and not _is_weight(s, t):
            sent += 2 * ring * size
    for j, t in enumerate(op.outputs):
        code = c.results[j]
        if t and code is not None:
            size = _bytes(s.graph, t)
            moved += size / (n if code >= 0 else 1)
            if code == PARTIAL:
                sent += 2 * ring * size
    for x in c.inner:
        sent += x.count * x.elements * min(x.item_bytes, 4)
    if rule.kind == "free":
        moved = 0.0
    return sent * _SENT + 3 * moved * _MOVED + 3 * rule.flops / c.parallelism * _DONE


def _bytes(graph: Graph, tensor: str) -> float:
    shape = graph.tensors[tensor].shape
    return 0.0 if shape is None else 2.0 * math.prod(shape)
