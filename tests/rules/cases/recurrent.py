"""Small operators of one family: recurrent."""

from __future__ import annotations

from collections.abc import Iterator

from tests.rules.cases.values import f
from tests.rules.prover import Case, case

__all__ = ["recurrent"]


def recurrent() -> Iterator[Case]:
    yield case("LSTM", [f(3, 6, 4), f(1, 20, 4), f(1, 20, 5), f(1, 40)], hidden_size=5, results=3)
    yield case("GRU", [f(3, 6, 4), f(1, 15, 4), f(1, 15, 5)], hidden_size=5, results=2)
    initial = [f(3, 6, 4), f(2, 5, 4), f(2, 5, 5), f(2, 10), None, f(2, 6, 5)]
    yield case("RNN", initial, hidden_size=5, direction="bidirectional", results=2)
