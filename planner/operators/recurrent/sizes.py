"""How recurrent layers carry a new size."""

from __future__ import annotations

from planner.frontends.facts.sizes import carries
from planner.frontends.resized.carry import Carrier
from planner.ir import Op

__all__: list[str] = []


@carries("GRU", "LSTM", "RNN")
def _recurrent(c: Carrier, op: Op) -> None:
    """Initial states [directions, batch, hidden] follow the batch of the sequence [steps, batch, features]."""
    first = bool(op.attributes.get("layout", 0))
    size = c.after(op.inputs[0])[0 if first else 1]
    for k in (5, 6):
        if len(op.inputs) > k and op.inputs[k]:
            c.demand(op.inputs[k], 0 if first else 1, size, op)
