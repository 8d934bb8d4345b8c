"""Which operands of convolutions hold weights: filter and bias."""

from __future__ import annotations

from planner.frontends.facts.weights import quantised_at, weights_at

__all__: list[str] = []

weights_at((1, 2), "Conv", data=(0,))
weights_at((1, 2), "ConvTranspose", "com.microsoft::FusedConv")

quantised_at({"ConvInteger": {1: (3,)}, "QLinearConv": {3: (4, 5), 8: ()}})
