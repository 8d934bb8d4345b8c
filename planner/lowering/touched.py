"""Which values instructions read and write, by tensor and layout."""

from __future__ import annotations

from collections.abc import Iterator

from planner.ir import Layout
from planner.lowering.program import Host, Load, Program, Redistribute, Run, StageInstruction

__all__ = ["Key", "key_of", "of_gradient", "reads", "writes"]

Key = tuple[str, Layout]


def key_of(program: Program, name: str, layout: Layout | None) -> Key:
    """Whole on every rank where the rule leaves the tensor out."""
    return name, Layout.replicated(program.graph.tensors[name].rank) if layout is None else layout


def of_gradient(i: StageInstruction) -> bool:
    """Whether it redistributes a gradient."""
    return isinstance(i, Redistribute) and i.gradient


def writes(program: Program, i: StageInstruction) -> Iterator[Key]:
    """Values, not gradients."""
    if isinstance(i, Load) or (isinstance(i, Host) and i.back):
        yield i.tensor, i.layout
    elif isinstance(i, Redistribute) and not i.gradient:
        yield i.tensor, i.target
    elif isinstance(i, Run) and not i.backward:
        op, strategy = program.graph.op(i.op), program.strategies[i.op]
        yield from (key_of(program, n, x) for n, x in zip(op.outputs, strategy.results, strict=True) if n)


def reads(program: Program, i: StageInstruction) -> Iterator[Key]:
    """Values; of a backward pass operands and results, of which it may want either."""
    if isinstance(i, Redistribute) and not i.gradient:
        yield i.tensor, i.source
    elif isinstance(i, Host) and not i.back:
        yield i.tensor, i.layout
    elif isinstance(i, Run):
        op, strategy = program.graph.op(i.op), program.strategies[i.op]
        yield from (key_of(program, n, x) for n, x in zip(op.inputs, strategy.operands, strict=True) if n)
        if i.backward:
            yield from (key_of(program, n, x) for n, x in zip(op.outputs, strategy.results, strict=True) if n)
