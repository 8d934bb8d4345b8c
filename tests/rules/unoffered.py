"""Strategies that a rule does not offer: every assignment over one mesh axis is executed, and those found right listed.

An assignment gives each operand and each result a layout over one axis: whole, split along a dimension, or (floating
point) a pending sum.  Ranks run the local operator.  It is right when the results put together are the whole
operator's, on the operands of the case and on a second draw of them, cut into other terms three times, so that
accidents do not count; and worth counting when at least one result is split or pending: what is computed on every rank
in full saves nothing.  Operands that are no data stay whole: shapes, axes, and what is not read (the second of CastLike
gives but its element type).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from planner.errors import VerificationError
from planner.ir import DeviceMesh, Layout, Reduction
from planner.kernels import NoKernelError, run_local
from planner.kernels.shards import Array
from planner.rules import Rule, strategies
from tests.rules.prover import Case, Cuts, compare, is_floating
from tests.rules.variants import redrawn

__all__ = ["Assignments", "assignments"]

_Layouts = tuple["Layout | None", ...]
_FAILURES = (VerificationError, NoKernelError, ValueError, AssertionError, IndexError, TypeError, ZeroDivisionError)


@dataclass(frozen=True, slots=True)
class Assignments:
    """`offered` strategies over one axis beside replication, `missing` ones as text, how many were `tried`, and
    whether there were too many to try all."""

    offered: int
    missing: tuple[str, ...]
    tried: int
    truncated: bool


def assignments(subject: Case, rule: Rule, mesh: DeviceMesh, limit: int = 3000) -> Assignments:
    """All assignments over the one axis of `mesh`, at most `limit` of them tried."""
    offered = {
        (_filled(s.operands, subject.inputs), _filled(s.results, subject.results))
        for s in strategies(rule, mesh, training=False)
        if any(r.kind != "replicate" for r in s.roles)
    }
    operand_choices = [
        _layouts(v, mesh) if _is_data(subject, rule, i) else _layouts(v, mesh)[:1] for i, v in enumerate(subject.inputs)
    ]
    result_choices = [_layouts(v, mesh) for v in subject.results]
    cuts, *again = (Cuts(mesh, seed) for seed in (3, 5, 7, 11))  # a comparison may be right of two terms by accident
    second: Case | bool | None = False  # not drawn yet
    found, tried = [], 0
    total = int(np.prod([len(c) for c in operand_choices]))
    for operands in itertools.islice(itertools.product(*operand_choices), limit):
        if all(x is None or x.is_replicated for x in operands):
            continue
        tried += 1
        for shape in _shape_operands(rule, result_choices[0], subject, mesh):
            results = _right(subject, rule, operands, result_choices, cuts, shape)
            if results is None or (operands, results) in offered:
                continue
            if all(x is None or x.is_replicated for x in results):
                continue
            if second is False:
                second = redrawn(subject)
            exact = [[x] for x in results]
            if isinstance(second, Case) and any(
                _right(second, rule, operands, exact, other, shape) is None for other in again
            ):
                continue
            text = f"{' '.join(map(_text, operands))} -> {' '.join(map(_text, results))}"
            if text not in found:
                found.append(text)
    return Assignments(len(offered), tuple(found), tried, total > limit)


def _is_data(subject: Case, rule: Rule, index: int) -> bool:
    """No argument such as a shape or axes, and the results change with its values."""
    value = subject.inputs[index]
    if value is None or not value.size or index == rule.shape_operand:
        return False
    if rule.operands[index] is None and value.ndim < 2 and not is_floating(value):
        return False
    other = ~value if value.dtype == bool else np.roll(value, 1) + np.ones(1, value.dtype)
    inputs = [other if i == index else v for i, v in enumerate(subject.inputs)]
    try:
        found, before = run_local(subject.op, inputs), run_local(subject.op, subject.inputs)
    except _FAILURES:
        return True
    return any(
        v is not None and (f is None or f.shape != v.shape or not np.array_equal(f, v, equal_nan=v.dtype.kind == "f"))
        for f, v in zip(found, before, strict=True)
    )


def _text(layout: Layout | None) -> str:
    return "-" if layout is None else str(layout)


def _filled(layouts: _Layouts, values: tuple[Array | None, ...]) -> _Layouts:
    return tuple(
        None if v is None else Layout.replicated(v.ndim) if x is None else x
        for x, v in zip(layouts, values, strict=True)
    )


def _layouts(value: Array | None, mesh: DeviceMesh) -> list[Layout | None]:
    if value is None:
        return [None]
    axis = mesh.names[0]
    whole = Layout.replicated(value.ndim)
    out: list[Layout | None] = [whole]
    for d, size in enumerate(value.shape):
        if size and size % mesh.devices == 0:
            out.append(Layout(tuple((axis,) if i == d else () for i in range(value.ndim))))
    if is_floating(value):
        out.append(Layout(whole.dims, ((axis, Reduction.SUM),)))
    return out


def _shape_operands(
    rule: Rule, choices: list[Layout | None], subject: Case, mesh: DeviceMesh
) -> Iterator[tuple[int, ...] | None]:
    whole = subject.results[0]
    if rule.shape_operand is None or whole is None:
        yield None
        return
    yield from dict.fromkeys(x.local_shape(whole.shape, mesh) for x in choices if x is not None)


def _right(
    subject: Case,
    rule: Rule,
    operands: _Layouts,
    choices: list[list[Layout | None]],
    cuts: Cuts,
    shape: tuple[int, ...] | None,
) -> _Layouts | None:
    """The layouts in which the local results are the whole ones; None where there are none."""
    mesh = cuts.mesh
    columns: list[tuple[Array | None, ...]] = []
    try:
        for i, (v, layout) in enumerate(zip(subject.inputs, operands, strict=True)):
            columns.append((None,) * mesh.devices if v is None else cuts(f"operand {i}", v, layout))
        rows = []
        for r in range(mesh.devices):
            local = [c[r] for c in columns]
            if rule.shape_operand is not None and shape is not None:
                local[rule.shape_operand] = np.array(shape, dtype=np.int64)
            rows.append(run_local(subject.op, local))
            if r == 0 and not _fit(subject, rows[0], choices, mesh):
                return None
    except _FAILURES:
        return None
    chosen: list[Layout | None] = []
    for j, whole in enumerate(subject.results):
        if whole is None:
            chosen.append(None)
            continue
        for layout in choices[j]:
            try:
                compare("result", [row[j] for row in rows], layout, whole, mesh, half=subject.half)
            except _FAILURES:
                continue
            chosen.append(layout)
            break
        else:
            return None
    return tuple(chosen)


def _fit(subject: Case, found: Sequence[Array | None], choices: list[list[Layout | None]], mesh: DeviceMesh) -> bool:
    """Whether every local result has the shape of a shard in one of its layouts."""
    return all(
        whole is None
        or (f is not None and any(x is not None and x.local_shape(whole.shape, mesh) == f.shape for x in c))
        for whole, f, c in zip(subject.results, found, choices, strict=True)
    )
