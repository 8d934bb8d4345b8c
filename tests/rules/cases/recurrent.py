"""Small operators of one family: recurrent."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.rules.cases.values import f
from tests.rules.prover import Case, case

__all__ = ["recurrent"]

_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_RESULTS = {"LSTM": 3, "GRU": 2, "RNN": 2}


def _layer(
    t: str, directions: int, *extra: np.ndarray | None, hidden: int = 5, batch: int = 6, **options: object
) -> Case:
    g = _GATES[t] * hidden
    weights = [f(directions, g, 4) / 2, f(directions, g, hidden) / 2, f(directions, 2 * g)]
    x = f(batch, 3, 4) if options.get("layout") else f(3, batch, 4)
    return case(t, [x, *weights, *extra], hidden_size=hidden, results=_RESULTS[t], **options)


def recurrent() -> Iterator[Case]:
    lengths = np.array([3, 1, 2, 3, 2, 1], np.int32)
    for t in ("LSTM", "GRU", "RNN"):
        cell = [f(2, 6, 5)] if t == "LSTM" else []
        yield _layer(t, 1)
        yield _layer(t, 1, direction="reverse")
        yield _layer(t, 2, direction="bidirectional")
        yield _layer(t, 2, lengths, direction="bidirectional")
        yield _layer(t, 2, None, f(2, 6, 5), *cell, direction="bidirectional")
        yield _layer(t, 2, lengths, f(2, 6, 5), *cell, direction="bidirectional")
        turned = [c.transpose(1, 0, 2) for c in cell]
        yield _layer(t, 2, None, f(6, 2, 5), *turned, direction="bidirectional", layout=1)
    yield _layer("LSTM", 2, None, None, None, f(2, 15), direction="bidirectional")
    yield _layer("LSTM", 1, None, None, None, f(1, 15), input_forget=1)
    yield _layer("GRU", 2, direction="bidirectional", linear_before_reset=1)
    mixed = ("LeakyRelu", "Tanh", "HardSigmoid", "Softsign")
    yield _layer(
        "GRU",
        2,
        direction="bidirectional",
        activations=mixed,
        activation_alpha=(0.3, 0.25),
        activation_beta=(0.4,),
    )
    yield _layer("RNN", 2, direction="bidirectional", activations=("Relu", "Tanh"))
    without_bias = [f(3, 6, 4), f(1, 20, 4), f(1, 20, 5)]
    yield case("LSTM", without_bias, hidden_size=5, results=[True, False, True])
