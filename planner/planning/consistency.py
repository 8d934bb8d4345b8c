"""Whether the parts of a plan.json agree, whoever wrote it: what reads a plan need not ask again."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

from planner.cost_models.pipeline import chunks_of_schedule, stage_numbers
from planner.planning.document import LayoutDocument, OperatorDocument, PlanDocument
from planner.planning.roles import role_from_text
from planner.redistribute import StepKind
from planner.redistribute.steps import FREE

__all__ = ["contradiction"]

_MOST_DEVICES: Final = 1 << 20
_MOST_DIMS: Final = 64
_COLLECTIVES: Final = frozenset(str(kind) for kind in StepKind if kind not in FREE)


def contradiction(plan: PlanDocument) -> str | None:
    """The first thing that cannot be, with where it stands; None where all is well."""
    return next(_contradictions(plan), None)


def _contradictions(plan: PlanDocument) -> Iterator[str]:
    yield from _stages(plan)
    yield from _devices(plan)
    for where, layout, shape in _layouts(plan):
        yield from (f"at {where}: {p}" for p in _layout(plan, layout, shape))
    for name, op in plan.operators.items():
        for axis, role in op.strategy.items():
            try:
                role_from_text(role)
            except ValueError as e:
                yield f"at operators.{name}.strategy.{axis}: {e}"
        yield from (f"at operators.{name}{wrong}" for wrong in _ends(plan, op))
    for name, p in plan.parameters.items():
        for r in p.readers:
            found = plan.operators.get(r.operator)
            if found is None or r.slot >= len(found.operands):
                yield f"at parameters.{name}.readers: {r.operator}:{r.slot} is no operand of the plan"


def _ends(plan: PlanDocument, op: OperatorDocument) -> Iterator[str]:
    """What is wrong with an operator's operands, results and collectives; older plans do not tell its tensors."""
    ends = (("operands", op.inputs, op.operands), ("results", op.outputs, op.results))
    for what, tensors, layouts in ends if op.inputs or op.outputs else ():
        if len(tensors) != len(layouts):
            yield f".{what}: expected a layout or null for each of {len(tensors)} tensors, found {len(layouts)}"
        for i, (tensor, layout) in enumerate(zip(tensors, layouts, strict=False)):
            stated = plan.tensors.get(tensor) or plan.inputs.get(tensor)
            if stated is None or stated.shape is None:
                continue
            if layout is None or len(layout.dims) != len(stated.shape):
                found = "none" if layout is None else f"one of {len(layout.dims)}"
                yield f".{what}.{i}: expected a layout of the {len(stated.shape)} dimensions of {tensor}, found {found}"
    for c in op.inner:
        if c.kind not in _COLLECTIVES:
            yield f".inner: {c.kind!r} is no collective; expected one of {', '.join(sorted(_COLLECTIVES))}"


def _stages(plan: PlanDocument) -> Iterator[str]:
    unknown = [s.mesh for s in plan.stages if s.mesh not in plan.meshes]
    if unknown:
        yield f"at stages: mesh {unknown[0]!r} is not among {', '.join(plan.meshes)}"
    count, stated = len(plan.stages), plan.schedule.stages
    highest = max((o.stage for o in plan.operators.values()), default=0)
    if stated != count or highest >= count:
        yield (
            f"at stages: expected {stated} as of schedule.stages, with operators in these alone; found {count}, and "
            f"operators in stage {highest}"
        )
        return
    wrong = _wrong_order(plan)
    if wrong is not None:
        yield wrong
        return
    s = plan.schedule
    numbers = stage_numbers(s.pass_order, s.stages, s.chunks)
    made: dict[str, int] = {}
    for name, op in plan.operators.items():
        here = numbers[op.stage][op.chunk]
        late = [t for t in op.inputs if made.get(t, 0) > here]
        if late:
            what = "stage" if plan.schedule.chunks == 1 else "chunk"
            yield f"at operators.{name}: runs in {what} {here} and reads {late[0]} of {what} {made[late[0]]}"
        made.update(dict.fromkeys(op.outputs, here))


def _wrong_order(plan: PlanDocument) -> str | None:
    """What does not fit of the order of passes and the chunks of the model."""
    s, most = plan.schedule, max(1, len(plan.operators))
    if s.stages * s.chunks > most:
        return (
            f"at schedule.chunks: expected at most {most} chunks in all, one per operator, found {s.stages * s.chunks}"
        )
    if s.micro_batches % s.copies:
        return (
            f"at schedule.run.copies: expected a divisor of schedule.micro_batches = {s.micro_batches}, of which so "
            f"many pass together, found {s.copies}"
        )
    if s.chunks != chunks_of_schedule(s.pass_order, s.chunks):
        return f"at schedule.order: {s.pass_order} does not run {s.chunks} chunks of the model per stage"
    said = 0 if s.pass_order == "1f1b" else s.chunks
    for number, stage in enumerate(plan.stages):
        if len(stage.chunks) != said:
            return f"at stages[{number}].chunks: expected {said}, as of schedule.order, found {len(stage.chunks)}"
        if any(c.weights_s > c.backward_s for c in stage.chunks):
            return f"at stages[{number}].chunks: weights_s is more than backward_s, of which it is a part"
    beyond = next((n for n, o in plan.operators.items() if o.chunk >= s.chunks), None)
    if beyond is not None:
        found = plan.operators[beyond].chunk
        return f"at operators.{beyond}.chunk: expected less than {s.chunks}, as of schedule.chunks, found {found}"
    held = {(o.stage, o.chunk) for o in plan.operators.values()}
    lacking = [(stage, c) for stage in range(s.stages) for c in range(s.chunks) if (stage, c) not in held]
    if s.chunks > 1 and lacking:
        return (
            f"at operators: expected some in every chunk, found none in chunk {lacking[0][1]} of stage {lacking[0][0]}"
        )
    return None


def _devices(plan: PlanDocument) -> Iterator[str]:
    for name, m in plan.meshes.items():
        axes = [a.name for a in m.axes]
        if len(set(axes)) < len(axes):
            yield f"at meshes.{name}.axes: expected distinct names, found {', '.join(axes)}"
        if math.prod(a.size for a in m.axes) > _MOST_DEVICES:
            yield f"at meshes.{name}: more than {_MOST_DEVICES:,} devices"
    expected = sum(math.prod(a.size for a in plan.meshes[s.mesh].axes) for s in plan.stages)
    if plan.cluster.devices != expected:
        yield f"at cluster.devices: expected {expected}, as the stages' meshes have, found {plan.cluster.devices}"


def _layouts(plan: PlanDocument) -> Iterator[tuple[str, LayoutDocument | None, Sequence[int] | None]]:
    for name, x in plan.inputs.items():
        yield f"inputs.{name}.layout", x.layout, x.shape
    for name, t in plan.tensors.items():
        yield f"tensors.{name}.layout", t.layout, t.shape
        yield f"tensors.{name}.gradient", t.gradient, t.shape
    for name, op in plan.operators.items():
        for i, operand in enumerate(op.operands):
            yield f"operators.{name}.operands.{i}", operand, None
        for i, result in enumerate(op.results):
            yield f"operators.{name}.results.{i}", result, None
    for name, p in plan.parameters.items():
        for key, layout in (("stored", p.stored), ("gradient", p.gradient), ("optimizer", p.optimizer)):
            yield f"parameters.{name}.{key}", layout, p.shape
        for i, layout in enumerate(p.compute):
            yield f"parameters.{name}.compute.{i}", layout, p.shape
    for i, r in enumerate(plan.redistributions):
        for layout in (r.source, r.target, *(s.target for s in r.steps)):
            yield f"redistributions.{i} ({r.tensor})", layout, None


def _layout(plan: PlanDocument, layout: LayoutDocument | None, shape: Sequence[int] | None) -> Iterator[str]:
    if shape is not None and (len(shape) > _MOST_DIMS or any(n < 0 for n in shape)):
        yield f"expected a shape of at most {_MOST_DIMS} sizes, found {str(list(shape))[:80]}"
    if layout is None:
        return
    if layout.mesh not in plan.meshes:
        yield f"mesh {layout.mesh!r} is not among {', '.join(plan.meshes)}"
        return
    if layout.parts and any(n > 1 and not d for n, d in zip(layout.parts, layout.dims, strict=True)):
        yield f"{layout.layout()} splits a dimension in parts, but over no axis"
    axes = [a for d in layout.dims for a in d] + list(layout.partial)
    known = {a.name for a in plan.meshes[layout.mesh].axes}
    unknown = [a for a in axes if a not in known]
    if unknown:
        yield f"axis {unknown[0]!r} is not one of the mesh ({', '.join(sorted(known))})"
    if len(set(axes)) < len(axes):
        yield f"an axis is used twice in {layout.layout()}"
    if shape is not None and len(layout.dims) != len(shape):
        yield f"{len(layout.dims)} dimensions, and the shape {list(shape)} has {len(shape)}"
