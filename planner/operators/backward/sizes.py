"""How gradient operators of exported graphs carry a new size."""

from __future__ import annotations

from planner.frontends.facts.sizes import carries
from planner.frontends.resized.carry import Carrier
from planner.frontends.steps.draft import split_type
from planner.ir import Op

__all__: list[str] = []


@carries("MaxPoolGrad")
def _pooling_gradient(c: Carrier, op: Op) -> None:
    """MaxPoolGrad(dY, mask): samples and channels follow dY; space, which only the forward knew, stays."""
    dy, o = op.inputs[0], op.outputs[0]
    if c.after(dy)[2:] == c.before(dy)[2:]:
        c.factors[o] = (*c.parts(dy)[:2], *(((s, s),) for s in c.before(o)[2:]))


@carries("GatherGrad", "SliceGrad")
def _stated_gradient(c: Carrier, op: Op) -> None:
    """GatherGrad(shape, indices, dY) and SliceGrad(dY, shape, …) spell out the shape of the result."""
    gather = split_type(op.type)[1] == "GatherGrad"
    k, dy, o = (0, op.inputs[2], op.outputs[0]) if gather else (1, op.inputs[0], op.outputs[0])
    before, after, old = c.before(dy), c.after(dy), c.before(o)
    axis = int(op.attributes.get("axis", 0)) % len(old) if gather else -1
    inserted = len(before) - len(old)  # dimensions of the indices in place of the gathered one
    new = []
    for d, size in enumerate(old):
        j = d if not gather or d < axis else d + inserted
        moved = d != axis and before[j] == size
        new.append(c.wanted.get((o, d), after[j] if moved else size))
    c.rewrite(op, k, new)
    c.factors[o] = tuple(((a, b),) for a, b in zip(old, new, strict=True))
