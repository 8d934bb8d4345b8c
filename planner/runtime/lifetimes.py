"""When values may be dropped."""

from __future__ import annotations

from planner.ir import Layout
from planner.lowering import Load, Program, Redistribute, Run

__all__ = ["last_uses"]

_Key = tuple[str, Layout]


def last_uses(program: Program) -> dict[int, list[_Key]]:
    """Instruction index → values that no later forward instruction reads.

    Outputs of the graph stay, and so does what is loaded.  What a backward reads is held by its record.
    """
    loaded = {i.tensor for i in program.instructions if isinstance(i, Load)}
    last: dict[_Key, int] = {}
    for at, i in enumerate(program.instructions):
        if isinstance(i, Redistribute) and not i.gradient:
            last[i.tensor, i.source] = last[i.tensor, i.target] = at
        elif isinstance(i, Run) and not i.backward:
            op, strategy = program.graph.op(i.op), program.strategies[i.op]
            named = [*zip(op.inputs, strategy.operands, strict=True), *zip(op.outputs, strategy.results, strict=True)]
            for name, layout in named:
                if name:
                    last[name, layout or Layout.replicated(program.graph.tensors[name].rank)] = at
    permanent = {*program.graph.outputs, *loaded}
    out: dict[int, list[_Key]] = {}
    for key, at in last.items():
        if key[0] not in permanent:
            out.setdefault(at, []).append(key)
    return out
