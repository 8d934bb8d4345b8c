"""Proof of rules by execution: every strategy of an operator is run on virtual devices and compared with the whole.

The operands are cut up as the strategy says (pending sums into unequal random terms), every rank runs the
local operator, and the results put together must be the whole operator's; likewise gradients.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.errors import VerificationError
from planner.ir import DeviceMesh, Graph, Layout, Op, Role, Tensor
from planner.kernels import (
    NoKernelError,
    Performed,
    ShardContext,
    run_local,
    run_ranks,
    spmd_backward,
    spmd_forward,
)
from planner.kernels.gradients import NoVjpError, vjp
from planner.kernels.shards import Array, assemble, shard
from planner.rules import Rule, Strategy, local_op, rule_for, strategies

__all__ = [
    "MESHES",
    "Case",
    "Cuts",
    "Finding",
    "case",
    "compare",
    "cut",
    "from_values",
    "is_floating",
    "kernel_agrees",
    "prove",
]

# Results beside the first that a backward saves and that models hand no gradient to.
_SIDE_RESULTS = {"Attention", "BatchNormalization", "Dropout", "GRU", "LSTM", "LayerNormalization", "MaxPool", "RNN"}

MESHES = (DeviceMesh.of(2), DeviceMesh.of(3), DeviceMesh.of(2, 2), DeviceMesh.of(3, 2))


@dataclass(frozen=True, eq=False)
class Case:
    """An operator, its whole operands and results, and the graph around it."""

    name: str
    op: Op
    graph: Graph
    inputs: tuple[Array | None, ...]
    results: tuple[Array | None, ...]

    @property
    def half(self) -> bool:
        """Some tensor has two bytes per element: errors are larger."""
        return any(v is not None and v.dtype.itemsize <= 2 and is_floating(v) for v in (*self.inputs, *self.results))

    @property
    def rule(self) -> Rule:
        rule = rule_for(self.op, self.graph)
        assert rule is not None, f"{self.op.type} has no rule"
        return rule


@dataclass(frozen=True, slots=True)
class Finding:
    """A strategy that gave wrong numbers (or none at all), and what went wrong."""

    case: str
    strategy: str
    problem: str

    def __str__(self) -> str:
        return f"{self.case}: {self.strategy}: {self.problem}"


def case(
    type: str,
    inputs: Sequence[Any],
    *,
    opset: int = 20,
    results: int | Sequence[bool] = 1,
    constants: Iterable[int] = (),
    name: str = "",
    output_shapes: Sequence[tuple[int, ...]] | None = None,
    **attributes: Any,
) -> Case:
    """The case of one operator: `inputs` are arrays or None, `constants` those whose values the rule may read."""
    values = tuple(None if x is None else np.asarray(x) for x in inputs)
    asked = [True] * results if isinstance(results, int) else list(results)
    names = tuple("" if x is None else f"x{i}" for i, x in enumerate(values))
    outputs = tuple(f"y{j}" if wanted else "" for j, wanted in enumerate(asked))
    op = Op(next(filter(None, outputs)), type, names, outputs, attributes, opset)
    found = run_local(op, values, output_shapes=output_shapes)
    return from_values(op, values, tuple(found), set(constants), name)


def from_values(
    op: Op, inputs: tuple[Array | None, ...], results: tuple[Array | None, ...], constants: set[int], name: str = ""
) -> Case:
    """The case of an operator whose results are known."""
    tensors: dict[str, Tensor] = {}
    for i, (n, v) in enumerate(zip(op.inputs, inputs, strict=True)):
        if v is not None:
            tensors[n] = Tensor(n, v.shape, str(v.dtype), Role.INPUT, v if i in constants else None)
    for n, v in zip(op.outputs, results, strict=True):
        if v is not None and n:
            tensors[n] = Tensor(n, v.shape, str(v.dtype), Role.ACTIVATION)
    graph = Graph((op,), tensors, tuple(n for n in op.inputs if n), tuple(n for n in op.outputs if n))
    shapes = " ".join("-" if v is None else "x".join(map(str, v.shape)) or "." for v in inputs)
    return Case(name or f"{op.type}@{op.opset}({shapes}){dict(op.attributes) or ''}", op, graph, inputs, results)


def kernel_agrees(subject: Case) -> bool:
    """The unsplit local operator gives the expected results: only then does executing shards prove anything."""
    shapes = [None if v is None else v.shape for v in subject.results]
    try:
        found = run_local(subject.op, subject.inputs, output_shapes=shapes)
    except NoKernelError:
        return False
    pairs = zip(found, subject.results, strict=True)
    return all(
        v is None or (g is not None and g.shape == v.shape and _close(g, v, half=subject.half)) for g, v in pairs
    )


def prove(
    subject: Case,
    meshes: Iterable[DeviceMesh] = MESHES,
    *,
    backward: bool = True,
    gradients: tuple[list[Array | None], list[Array | None]] | None = None,
) -> tuple[int, int, list[Finding]]:
    """Executes every strategy on every mesh: (forward runs, backward runs, what was wrong).

    `gradients` are those of the results and those of the operands that must follow; without them, random ones and
    what the whole operator's vector-Jacobian product makes of them.
    """
    rule = subject.rule
    try:
        dy, whole = gradients or (_whole_gradients(subject, rule) if backward else ([], []))
    except Exception as e:
        return 0, 0, [Finding(subject.name, "the whole operator", f"backward: {type(e).__name__}: {e}")]
    differentiates = any(w is not None for w in whole)
    forward_runs = backward_runs = 0
    findings = []
    for mesh in meshes:
        cuts = Cuts(mesh, 7)
        offered = dict.fromkeys(strategies(rule, mesh, training=False))
        trained = dict.fromkeys(strategies(rule, mesh, training=True)) if differentiates else {}
        for s in {**offered, **trained}:
            try:
                forward_runs += 1
                backward_runs += s in trained
                _check(subject, rule, s, cuts, dy if s in trained else [], whole if s in trained else [])
            except Exception as e:  # a kernel that trips is as false as one that errs
                findings.append(Finding(subject.name, f"mesh {mesh}, {s.text(mesh)}", f"{type(e).__name__}: {e}"))
    return forward_runs, backward_runs, findings


def _whole_gradients(subject: Case, rule: Rule) -> tuple[list[Array | None], list[Array | None]]:
    """Random gradients of the results and those of the operands that follow; empty where there are none."""
    rng = np.random.default_rng(11)
    dy = [
        None
        if v is None or not is_floating(v) or (j > 0 and subject.op.type in _SIDE_RESULTS)
        else np.asarray(rng.standard_normal(v.shape)).astype(v.dtype)
        for j, v in enumerate(subject.results)
    ]
    wanted = [i in rule.differentiable for i in range(len(subject.inputs))]
    try:
        return dy, vjp(subject.op, subject.inputs, subject.results, dy, wanted) if any(wanted) else []
    except NoVjpError:
        return [], []


def _check(
    subject: Case,
    rule: Rule,
    strategy: Strategy,
    cuts: Cuts,
    dy: list[Array | None],
    whole: list[Array | None],
) -> None:
    mesh = cuts.mesh
    op = local_op(subject.op, rule, strategy, mesh)
    operands = _operands(subject, rule, strategy, cuts)
    split = strategy.split
    contexts = [ShardContext.of(rule, split, mesh, r) for r in range(mesh.devices)]
    kernel = spmd_forward(subject.op, rule, split)
    if kernel is not None:
        rows = [kernel(op, x, c) for x, c in zip(operands, contexts, strict=True)]
        performed: list[Performed] = []
        results = run_ranks(rows, mesh, split, performed)
        _check_payloads(strategy, performed, backward=False)
    else:
        shapes = [
            None if v is None or layout is None else layout.local_shape(v.shape, mesh)
            for v, layout in zip(subject.results, strategy.results, strict=True)
        ]
        results = [run_local(op, x, output_shapes=shapes) for x in operands]
    if strategy.scale != 1.0:
        results = [[None if v is None else (v * strategy.scale).astype(v.dtype) for v in row] for row in results]
    for j, expected in enumerate(subject.results):
        if expected is not None:
            compare(f"result {j}", [r[j] for r in results], strategy.results[j], expected, mesh, half=subject.half)
    if not whole:
        return
    for i, gradient in enumerate(_gradients(subject, rule, strategy, cuts, dy, op, operands, results, contexts)):
        expected = whole[i]
        if expected is not None:
            compare(f"gradient {i}", gradient, strategy.operand_gradients[i], expected, mesh, half=subject.half)


def _gradients(
    subject: Case,
    rule: Rule,
    strategy: Strategy,
    cuts: Cuts,
    dy: list[Array | None],
    op: Op,
    operands: list[list[Array | None]],
    results: list[list[Array | None]],
    contexts: list[ShardContext],
) -> list[list[Array | None]]:
    """Local gradients: operand → rank."""
    mesh = cuts.mesh
    wanted = [i in rule.differentiable for i in range(len(subject.inputs))]
    columns = [
        (None,) * mesh.devices if g is None else cuts(f"gradient {j}", g, strategy.result_gradients[j])
        for j, g in enumerate(dy)
    ]
    gradients: list[list[Array | None]] = [
        [None if (v := c[r]) is None else np.multiply(v, strategy.scale).astype(v.dtype) for c in columns]
        for r in range(mesh.devices)
    ]
    split = strategy.split
    kernel = spmd_backward(subject.op, rule, split)
    rows = list(zip(operands, results, gradients, strict=True))
    if kernel is not None:
        started = [kernel(op, x, y, g, wanted, c) for (x, y, g), c in zip(rows, contexts, strict=True)]
        performed: list[Performed] = []
        found = run_ranks(started, mesh, split, performed)
        _check_payloads(strategy, performed, backward=True)
    else:
        found = [list(vjp(op, x, y, g, wanted)) for x, y, g in rows]
    return [[f[i] for f in found] for i in range(len(subject.inputs))]


def _check_payloads(strategy: Strategy, performed: Sequence[Performed], *, backward: bool) -> None:
    """What the rule declares is what the kernel communicates, over the same axes, to the byte.  A ring of permutes is
    an exchange.  Two kinds of exchange may come to less: where further dimensions are split a rank may send less of
    them than it has, and an all-to-all counts what stays and every row as changing its owner (`given_to_many`).  Of
    what values route, ranks distribute on average exactly what is declared."""
    split = strategy.split
    distributed = {c.axes for c in strategy.inner if c.kind == "all_to_all" and c.backward == backward}
    routed = {tuple(split[p.factor]) for p in performed if p.kind == "routed"}
    declared: dict[tuple[tuple[str, ...], str], int] = {}
    for c in strategy.inner:
        if c.backward == backward:
            kind = "exchange" if c.kind in ("permute", "all_to_all") else c.kind
            key = c.axes, "routed" if c.kind == "all_to_all" and c.axes in routed else kind
            declared[key] = declared.get(key, 0) + c.bytes * c.count
    done: dict[tuple[tuple[str, ...], str], int] = {}
    for p in performed:
        key = tuple(split[p.factor]), p.kind
        done[key] = done.get(key, 0) + p.bytes
    for key in declared.keys() | {k for k, n in done.items() if n}:
        said, moved = declared.get(key, 0), done.get(key, 0)
        side = "backward" if backward else "forward"
        slack = 1.0
        if key[1] == "exchange":
            slack = 4.0 if key[0] in distributed else 1.5 if len(split) > 1 else 1.0
        if not moved <= said <= slack * moved:
            raise VerificationError(f"{side} {key[1]} over {key[0]}: the rule says {said} bytes, {moved} were moved")


def _layout(layout: Layout | None, value: Array) -> Layout:
    return Layout.replicated(value.ndim) if layout is None else layout


class Cuts:
    """Shards on one mesh of values that have a name, each made once: pending sums in random terms, and whole where a
    rule leaves the tensor out."""

    def __init__(self, mesh: DeviceMesh, seed: int) -> None:
        self.mesh, self.seed = mesh, seed
        self._known: dict[tuple[str, Layout | None], tuple[Array, ...]] = {}

    def __call__(self, name: str, value: Array, layout: Layout | None) -> tuple[Array, ...]:
        if (name, layout) not in self._known:
            pending = layout is not None and layout.partial
            rng = np.random.default_rng([self.seed, *name.encode()]) if pending else None
            self._known[name, layout] = cut(value, layout, self.mesh, rng)
        return self._known[name, layout]


def cut(value: Array, layout: Layout | None, mesh: DeviceMesh, rng: np.random.Generator | None) -> tuple[Array, ...]:
    """Shards of a value, pending sums in random terms; whole where the rule leaves the tensor out."""
    target = _layout(layout, value)
    shape = target.local_shape(value.shape, mesh)
    pieces: dict[int, Array] = {}
    return tuple(pieces.setdefault(id(x), x.reshape(shape)) for x in shard(value, target, mesh, rng))


def _operands(subject: Case, rule: Rule, strategy: Strategy, cuts: Cuts) -> list[list[Array | None]]:
    mesh = cuts.mesh
    columns: list[Sequence[Array | None]] = []
    for i, value in enumerate(subject.inputs):
        target, result = strategy.results[0], subject.results[0]
        if value is None:
            columns.append((None,) * mesh.devices)
        elif i == rule.shape_operand and target is not None and result is not None:
            local = np.array(target.local_shape(result.shape, mesh), dtype=np.int64)
            columns.append((local,) * mesh.devices)
        else:
            columns.append(cuts(f"operand {i}", value, strategy.operands[i]))
    return [[c[r] for c in columns] for r in range(mesh.devices)]


def compare(
    what: str, pieces: list[Array | None], layout: Layout | None, whole: Array, mesh: DeviceMesh, *, half: bool = False
) -> None:
    if any(p is None for p in pieces):
        raise VerificationError(f"{what}: a rank computed none")
    found = assemble(tuple(p for p in pieces if p is not None), _layout(layout, whole), whole.shape, mesh, what=what)
    if _close(found, whole, half=half):
        return
    # A pending sum of large terms carries their rounding.
    terms = max((float(np.max(np.abs(p), initial=0.0, where=np.isfinite(p))) for p in _floats(pieces)), default=0.0)
    rounding = 4 * len(pieces) * terms * (1e-3 if half else 1.2e-7)
    if not rounding or not _close(found, whole, half=half, slack=rounding):
        with np.errstate(all="ignore"):
            off = np.max(np.abs(found.astype(np.float64) - whole.astype(np.float64)), initial=0.0)
        raise VerificationError(f"{what} under {layout}: off by up to {off:.3g}")


def is_floating(value: Array) -> bool:
    return value.dtype.kind == "f" or value.dtype.name.startswith(("bfloat", "float"))


def _floats(pieces: list[Array | None]) -> Iterator[Array]:
    """The floating-point ones, each array once."""
    yield from (
        np.asarray(p, dtype=np.float64) for p in {id(p): p for p in pieces if p is not None}.values() if is_floating(p)
    )


def _close(found: Array, whole: Array, *, half: bool = False, slack: float = 0.0) -> bool:
    if np.array_equal(found, whole):  # as it mostly is
        return True
    if not is_floating(whole):
        return False
    found, whole = (np.asarray(v, dtype=np.float64) for v in (found, whole))
    finite = np.isfinite(whole)
    if not np.array_equal(finite, np.isfinite(found)):
        return False
    if not finite.all():
        found, whole = found[finite], whole[finite]
    size = np.abs(whole)
    tolerance = 5e-2 if half else 1e-3
    floor = tolerance * float(np.max(size, initial=0.0)) + 1e-6 + slack
    return bool(np.all(np.abs(found - whole) <= floor + tolerance * size))
