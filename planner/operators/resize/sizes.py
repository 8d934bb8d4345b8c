"""How resizing carries a new size."""

from __future__ import annotations

from planner.frontends.facts.sizes import carries
from planner.frontends.resized.carry import Carrier
from planner.ir import Op

__all__: list[str] = []


@carries("Resize")
def _resize(c: Carrier, op: Op) -> None:
    """Stated sizes follow: equal ones stay equal, others keep their ratio."""
    t = op.inputs[0]
    sizes = c.value(op.inputs[3]) if len(op.inputs) > 3 and op.inputs[3] else None
    if sizes is not None and len(sizes) == len(c.before(t)):
        c.rewrite(op, 3, [int(s) * n // o for s, o, n in zip(sizes, c.before(t), c.after(t), strict=True)])
