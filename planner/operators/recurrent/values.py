"""What recurrent layers ask of the values of their operands: that their sums stay of one size."""

from __future__ import annotations

from planner.verify.uses import Reading, Use, Uses, reads

__all__: list[str] = []


@reads("LSTM", "GRU", "RNN")
def _layer(r: Reading) -> Uses:
    return {1: Use(fan_in=(r.shape(1) or (1,))[-1]), 2: Use(fan_in=(r.shape(2) or (1,))[-1]), 3: Use(shift=True)}
