"""A program checked without data: every value is read where it is, every step does what it says.

Execution proves numbers; this proves in milliseconds, for graphs of any size, that nothing is missing.
"""

from __future__ import annotations

from collections.abc import Iterable

from planner.ir import DeviceMesh, Layout, Reduction
from planner.lowering.program import Convert, Load, Program, Run, Seed
from planner.redistribute import StepKind
from planner.redistribute.steps import steps_from

__all__ = ["check_program"]

_Key = tuple[str, Layout]


def check_program(program: Program) -> list[str]:
    """What is wrong, in order of execution; empty when nothing is."""
    graph, mesh = program.graph, program.mesh
    wrong: list[str] = []
    values: set[_Key] = set()
    gradients: set[_Key] = set()

    def placed(names: tuple[str, ...], layouts: Iterable[Layout | None]) -> list[_Key]:
        pairs = zip(names, layouts, strict=True)
        return [(n, x or Layout.replicated(graph.tensors[n].rank)) for n, x in pairs if n]

    for i in program.instructions:
        if isinstance(i, Load | Seed):
            wrong += _layout_errors(i.tensor, i.layout, graph.tensors[i.tensor].shape, mesh)
            (values if isinstance(i, Load) else gradients).add((i.tensor, i.layout))
        elif isinstance(i, Convert):
            store = gradients if i.gradient else values
            what = f"gradient of {i.tensor}" if i.gradient else i.tensor
            if (i.tensor, i.source) not in store:
                wrong.append(f"{what} is converted from {i.source}, where it is not")
            wrong += _step_errors(what, i, graph.tensors[i.tensor].shape, mesh)
            if i.gradient:
                store.discard((i.tensor, i.source))
            store.add((i.tensor, i.target))
        elif isinstance(i, Run):
            op, s = graph.op(i.op), program.strategies[i.op]
            rule = program.rules[i.op]
            read = [k for j, k in enumerate(placed(op.inputs, s.operands)) if op.inputs[j] or k]
            missing = [k for k in read if k not in values and k[0] != _shape_name(op.inputs, rule.shape_operand)]
            wrong += [f"{op.type} {i.op} reads {n} as {x}, where it is not" for n, x in missing]
            if not i.backward:
                values.update(placed(op.outputs, s.results))
                continue
            given = [k for k in placed(op.outputs, s.result_gradients) if k[0] in program.active]
            wrong += [f"gradient of {n} is wanted as {x}, where it is not" for n, x in given if (n, x) not in gradients]
            gradients.difference_update(given)
            gradients.update(k for k in placed(op.inputs, s.operand_gradients) if k[0] in program.active)
    wrong += [
        f"gradient of {n} never comes to {x}, where it is stored"
        for n, x in program.final_gradients.items()
        if (n, x) not in gradients
    ]
    return wrong


def _shape_name(inputs: tuple[str, ...], operand: int | None) -> str | None:
    return None if operand is None or operand >= len(inputs) else inputs[operand]


def _layout_errors(what: str, layout: Layout, shape: tuple[int, ...] | None, mesh: DeviceMesh) -> list[str]:
    used = [*layout.split_axes, *layout.partial_axes]
    if len(set(used)) < len(used) or not set(used) <= set(mesh.names):
        return [f"{what}: layout {layout} names an axis twice or one that the mesh does not have"]
    if shape is None:
        return []
    if len(layout.dims) != len(shape):
        return [f"{what}: layout {layout} has {len(layout.dims)} dimensions, the tensor {len(shape)}"]
    try:
        layout.local_shape(shape, mesh)
    except ValueError as e:
        return [f"{what}: {e}"]
    return []


def _step_errors(what: str, convert: Convert, shape: tuple[int, ...] | None, mesh: DeviceMesh) -> list[str]:
    here = convert.source
    for step in convert.steps:
        wrong = _layout_errors(what, step.target, shape, mesh) or _layout_errors(what, here, shape, mesh)
        if wrong:
            return wrong
        if step.source != here:
            return [f"{what}: a step starts from {step.source}, the value is in {here}"]
        if step.kind is StepKind.PERMUTE:
            legal = here.partial == step.target.partial and [mesh.size(d) for d in here.dims] == [
                mesh.size(d) for d in step.target.dims
            ]
        else:
            reduction = next((r for layout in (here, step.target) for _, r in layout.partial), Reduction.SUM)
            legal = shape is not None and step in set(steps_from(here, shape, mesh, reduction))
        if not legal:
            return [f"{what}: step {step} does not lead from {here} to {step.target}"]
        here = step.target
    return [] if here == convert.target else [f"{what}: its steps end in {here}, not in {convert.target}"]
