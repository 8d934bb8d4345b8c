"""The verifier notices what is wrong: a sample of the mutants that `tests.mutation.run` makes.

Set PLANNER_ALL_MUTANTS for more of them.
"""

from __future__ import annotations

import os
from typing import Final

import pytest

from tests.mutation.faults import KINDS, faults
from tests.mutation.run import Result, named, rate, run, table
from tests.mutation.subjects import subject

SEED: Final = 0
SITES: Final = 4 if os.environ.get("PLANNER_ALL_MUTANTS") else 1
LEAST: Final = 0.995
# (graph, mesh, seed, training, recomputation), and which kinds; between them every kind has a site.
SUBJECTS: Final = (
    ("mlp", (4,), 0, True, False, "*"),
    ("windows", (2, 2), 0, True, False, "*"),
    ("reductions", (4,), 0, True, False, "*"),
    ("attention", (2, 2), 0, True, False, "*"),
    ("split_product", (2, 2), 1, True, False, "*in parts*"),
    ("reductions", (2, 2), 1, False, False, "scale left out,rule of a maximum for a sum"),
    ("shuffled", (2, 2), 1, True, False, "counts*,rule that counts*"),
    ("gpt_two_layers", (4,), 0, True, True, "recomputation*,shape*,seed*,offset*,maximum*,*missing,*exchanged"),
)


def test_there_are_forty_kinds_and_more() -> None:
    assert len(faults()) >= 40
    assert all(k.of is not None for k in KINDS.values())


def test_mutants_are_caught(capsys: pytest.CaptureFixture[str]) -> None:
    kinds, results = faults(), dict[str, Result]()
    for name, mesh, seed, training, recompute, patterns in SUBJECTS:
        chosen = [k for k in kinds.values() if named(k.name, patterns)]
        found = run([subject(name, mesh, seed, training, recompute)], chosen, SEED, SITES)
        for n, result in found.items():
            results[n] = results[n].and_also(result) if n in results else result
    caught, total = rate(results)
    text = table(results)
    with capsys.disabled():
        print(f"\n{caught} of {total} mutants caught")
    assert caught >= LEAST * total, text
    idle = [n for n in kinds if n not in results or not results[n].mutants]
    assert not idle, f"no site any more for {idle}\n{text}"
