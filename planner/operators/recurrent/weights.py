"""Which operands of recurrent layers hold weights: those of input, state and peepholes, and the bias."""

from __future__ import annotations

from planner.frontends.facts.weights import weights_at

__all__: list[str] = []

weights_at((1, 2, 3), "GRU", "RNN", data=(0,))
weights_at((1, 2, 3, 7), "LSTM", data=(0,))
