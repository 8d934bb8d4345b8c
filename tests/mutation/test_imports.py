"""A graph that is not what its file says is noticed: one mutant of every kind of some small models."""

from __future__ import annotations

import numpy as np
import pytest

from tests.mutation.graphs import GRAPHS
from tests.mutation.imports import IMPORTS, differs, noticed

NAMES = ("gpt", "llama", "mobile", "reductions", "gates", "bert")


def missed(name: str, count: int, seed: int) -> tuple[int, list[str]]:
    """How many mutants there were that compute something else, and those that were not noticed."""
    graph, total, out = GRAPHS[name](), 0, []
    assert noticed(name, graph, seed) == ""
    for kind, wrong in IMPORTS.items():
        mutants = wrong(graph, np.random.default_rng([seed, *map(ord, kind)]))
        for (site, mutant), _ in zip(mutants, range(count), strict=False):
            if differs(graph, mutant, seed + 7):
                total += 1
                if not noticed(name, mutant, seed):
                    out.append(f"{kind}: {site}")
    return total, out


@pytest.mark.parametrize("name", NAMES)
def test_imports_that_are_wrong(name: str) -> None:
    total, out = missed(name, 1, 0)
    assert total >= 2
    assert not out
