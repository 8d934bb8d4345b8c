"""Small operators of one family: random."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.rules.cases.values import f, p
from tests.rules.prover import Case, case

__all__ = ["random"]


def random() -> Iterator[Case]:
    for t in ("RandomNormal", "RandomUniform"):
        yield case(t, [], shape=(4, 6, 3))
        yield case(t, [], shape=(12,), dtype=11, seed=3.0)
        yield case(f"{t}Like", [f(4, 6)], seed=1.0)
        yield case(f"{t}Like", [f(6, 1, 2)], dtype=10)
    yield case("RandomNormal", [], shape=(4, 6), mean=3.0, scale=0.1)
    yield case("RandomUniform", [], shape=(4, 6), low=-2.0, high=2.0)
    yield case("Bernoulli", [p(4, 6) / 4])
    yield case("Bernoulli", [p(6, 4) / 4], dtype=9, seed=2.0)
    yield case("Multinomial", [f(4, 5)], sample_size=6)
    yield case("Multinomial", [f(6, 4)], sample_size=2, dtype=7, seed=5.0)
    on = np.array(True)
    for results in (1, 2):
        yield case("Dropout", [f(2, 6, 3), np.float32(0.3), on], results=results, constants=[1, 2])
    yield case("Dropout", [f(4, 6), None, on], seed=4)
    yield case("Dropout", [f(4, 6), np.float32(0.0), on])
    yield case("Dropout", [f(4, 6), np.float32(0.5), np.array(False)])
    yield case("Dropout", [f(4, 6).astype(np.float16), np.float32(0.75), on], opset=13)
    yield case("Dropout", [f(4, 6)])
    yield case("Dropout", [f(4, 6)], opset=7, ratio=0.5)
    drops = np.float32(0.4), on
    yield case("com.microsoft::BiasDropout", [f(2, 4, 6), f(6), None, *drops], results=2, opset=1)
    yield case("com.microsoft::BiasDropout", [f(2, 4, 6), f(6), f(2, 4, 6), *drops], opset=1)
