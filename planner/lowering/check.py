"""A program checked without data: every value is read where it is, every step does what it says.

Execution proves numbers; this proves in milliseconds, for graphs of any size, that nothing is missing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from planner.ir import DeviceMesh, Layout, Reduction
from planner.lowering.program import Instruction, Load, Program, Redistribute, Run, Seed
from planner.redistribute import StepKind
from planner.redistribute.steps import steps_from
from planner.work.activity import active_tensors, gradient_sources

__all__ = ["check_program"]

_Key = tuple[str, Layout]


def check_program(program: Program) -> list[str]:
    """What is wrong, in order of execution; empty when nothing is."""
    graph, mesh = program.graph, program.mesh
    wrong: list[str] = []
    values: set[_Key] = set()
    gradients: set[_Key] = set()

    def placed(names: tuple[str, ...], layouts: Iterable[Layout | None]) -> list[_Key]:
        """A key for each name; of one that is absent a key that nothing has."""
        pairs = zip(names, layouts, strict=True)
        return [(n, x or Layout.replicated(graph.tensors[n].rank if n else 0)) for n, x in pairs]

    for i in program.instructions:
        if isinstance(i, Load | Seed):
            wrong += _layout_errors(i.tensor, i.layout, graph.tensors[i.tensor].shape, mesh)
            (values if isinstance(i, Load) else gradients).add((i.tensor, i.layout))
        elif isinstance(i, Redistribute):
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
            read = [k for k in placed(op.inputs, s.operands) if k[0]]
            missing = [k for k in read if k not in values and k[0] != _shape_name(op.inputs, rule.shape_operand)]
            wrong += [f"{op.type} {i.op} reads {n} as {x}, where it is not" for n, x in missing]
            if not i.backward:
                made = [k for k in placed(op.outputs, s.results) if k[0]]
                misfits = (e for n, x in (*read, *made) for e in _layout_errors(n, x, graph.tensors[n].shape, mesh))
                wrong += dict.fromkeys(misfits)
                values.update(made)
                continue
            given = [k for k in placed(op.outputs, s.result_gradients) if k[0] in program.active]
            wrong += [f"gradient of {n} is wanted as {x}, where it is not" for n, x in given if (n, x) not in gradients]
            gradients.difference_update(given)
            given = placed(op.inputs, s.operand_gradients)
            gradients.update(given[j] for j in rule.differentiable if j < len(given) and given[j][0] in program.active)
    return wrong + _beginnings(program) + _repeated(program) + _ends(program, gradients)


def _beginnings(program: Program) -> list[str]:
    """What is wrong with the gradients that are computed at all, and with where they begin: every output that has one
    gives it once, and every parameter that is trained gets one."""
    if not program.active:
        return []
    active = active_tensors(program.graph, program.rules)
    wrong = [f"gradient of {t} is not computed, though it is needed" for t in sorted(active - program.active)]
    wrong += [f"gradient of {t} is computed, though nothing depends on it" for t in sorted(program.active - active)]
    seeds = Counter(i.tensor for i in program.instructions if isinstance(i, Seed))
    sources = {t for t in gradient_sources(program.graph) if t in active}
    wrong += [f"no gradient enters at {t}" for t in sorted(sources - seeds.keys())]
    wrong += [f"a gradient enters at {t}, where there is none" for t in sorted(seeds.keys() - sources)]
    return wrong + [f"the gradient of {t} enters {n} times" for t, n in seeds.items() if n > 1]


def _repeated(program: Program) -> list[str]:
    """Instructions that are there twice: in the forward pass, or behind it, where a block may be run again."""
    back = (k for k, i in enumerate(program.instructions) if isinstance(i, Seed) or (isinstance(i, Run) and i.backward))
    cut = next(back, len(program.instructions))
    halves = Counter(program.instructions[:cut]), Counter(program.instructions[cut:])
    return [f"{_named(i)} {n} times in one pass" for half in halves for i, n in half.items() if n > 1]


def _named(i: Instruction) -> str:
    match i:
        case Run(op, backward):
            return f"{'the backward pass of ' if backward else ''}operator {op} runs"
        case Redistribute(tensor, gradient):
            return f"{'gradient of ' if gradient else ''}{tensor} is converted from {i.source} to {i.target}"
        case Load(tensor, layout):
            return f"{tensor} is loaded as {layout}"
        case Seed(tensor):
            return f"the gradient of {tensor} enters"


def _ends(program: Program, gradients: set[_Key]) -> list[str]:
    """What is wrong with the gradients that are there in the end: those of the parameters, where they are stored."""
    final = program.final_gradients
    trained = [t.name for t in program.graph.parameters if t.name in program.active]
    wrong = [f"gradient of {n} comes to no layout, though it is trained" for n in trained if n not in final]
    wrong += [f"gradient of {n} stays a pending sum, {x}" for n, x in final.items() if x.partial]
    wrong += [
        f"gradient of {n} never comes to {x}, where it is stored" for n, x in final.items() if (n, x) not in gradients
    ]
    left = sorted((n, str(x)) for n, x in gradients if final.get(n) != x)
    return wrong + [f"gradient of {n} is left in {x}, where nobody reads it" for n, x in left]


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


def _step_errors(what: str, redistribution: Redistribute, shape: tuple[int, ...] | None, mesh: DeviceMesh) -> list[str]:
    here = redistribution.source
    for step in redistribution.steps:
        wrong = _layout_errors(what, step.target, shape, mesh) or _layout_errors(what, here, shape, mesh)
        if wrong:
            return wrong
        if step.source != here:
            return [f"{what}: a step starts from {step.source}, the value is in {here}"]
        if step.kind is StepKind.PERMUTE:
            alike = here.partial == step.target.partial and here.parts == step.target.parts
            legal = alike and [mesh.size(d) for d in here.dims] == [mesh.size(d) for d in step.target.dims]
        else:
            reduction = next((r for layout in (here, step.target) for _, r in layout.partial), Reduction.SUM)
            parts = tuple((n,) if n > 1 else () for n in step.target.parts)
            legal = shape is not None and step in set(steps_from(here, shape, mesh, reduction, parts))
        if not legal:
            return [f"{what}: step {step} does not lead from {here} to {step.target}"]
        here = step.target
    return [] if here == redistribution.target else [f"{what}: its steps end in {here}, not in {redistribution.target}"]
