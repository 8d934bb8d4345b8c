"""The verifier notices what is wrong with how a step is run: some sites of every kind, all of them caught."""

from __future__ import annotations

import os
from itertools import islice
from typing import Final

import pytest

from planner.planning.programs import program_of
from planner.verify.pipelined import pipeline_of
from tests.corpus.levers import LEVERS, plan_of
from tests.mutation.stages import KINDS

SITES: Final = 40 if os.environ.get("PLANNER_ALL_MUTANTS") else 3
PLAIN: Final = {"zero": "0", "recompute": "none", "copies": "1", "offload": "0"}


def combination(levers: dict[str, str]) -> tuple[str, ...]:
    """The levers on two stages of two data-parallel ranks, four micro-batches."""
    told = {"pp": "2", "dp": "2", **PLAIN, **levers}
    of = {
        "stages": ("pp", "schedule", "vpp"),
        "ranks": ("dp", "tp", "sp"),
        "recompute": ("recompute", "recompute_blocks", "recompute_layers"),
    }
    of |= {"zero": ("zero", "shard"), "copies": ("copies",), "offload": ("offload",)}
    return tuple(
        "4" if lever == "micro_batches" else ",".join(f"{k}={told[k]}" for k in of[lever] if k in told)
        for lever in LEVERS
    )


@pytest.mark.parametrize("name", KINDS)
def test_faults_of_how_a_step_is_run_are_caught(name: str) -> None:
    kind = KINDS[name]
    made = plan_of("gpt", combination(kind.levers))
    assert not isinstance(made, str), made
    plan, graph = made
    pipeline = pipeline_of(plan, program_of(plan, graph), plan.schedule.micro_batches)
    every = list(kind.of(pipeline))
    assert every, "no site any more"
    for proof in islice(every, 0, None, -(-len(every) // SITES)):
        assert proof().run().failures
