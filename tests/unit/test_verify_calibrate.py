"""Weights are drawn so that every operator shows what goes wrong before it."""

from __future__ import annotations

import pytest

from planner.ir import Role
from planner.verify.check import verify_program
from tests.unit.test_verify_proof import graph, op, rows


@pytest.mark.parametrize("seed", range(12))
def test_of_few_channels_no_sample_is_cut_off(seed: int) -> None:
    """Of two channels behind a squeeze: a sample of which both are negative looks like one that was never computed."""
    g = graph(
        op("MatMul", "h w", "p"),
        op("Add", "p b", "a"),
        op("Relu", "a", "y"),
        h=((2, 8), Role.INPUT),
        w=((8, 2), Role.PARAMETER),
        b=((2,), Role.PARAMETER),
        p=((2, 2), Role.ACTIVATION),
        a=((2, 2), Role.ACTIVATION),
        y=((2, 2), Role.ACTIVATION),
    )
    verdict = verify_program(rows(g), seed=seed)
    assert (verdict.verdict, verdict.unproved) == ("ok", ())
