"""Weights are drawn so that every operator shows what goes wrong before it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.ir import Role
from planner.pricing import bind_rules
from planner.verify.calibrate import calibrate
from planner.verify.check import verify_program
from planner.verify.data import random_tensors
from planner.verify.whole import Whole
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


@pytest.mark.parametrize("beta", [1.0, 0.5, -1.0])
@pytest.mark.parametrize("cut", ["Relu", "Clip"])
def test_a_bias_counts_as_often_as_it_is_added(cut: str, beta: float) -> None:
    bounds = {"Relu": {}, "Clip": {"min": 0.0, "max": 6.0}}[cut]
    g = graph(
        op("Gemm", "h w b", "a", beta=beta),
        replace(op(cut, "a", "y", **bounds), opset=10),  # Clip's bounds are attributes there
        h=((2, 8), Role.INPUT),
        w=((8, 2), Role.PARAMETER),
        b=((2,), Role.PARAMETER),
        a=((2, 2), Role.ACTIVATION),
        y=((2, 2), Role.ACTIVATION),
    )
    assert [verify_program(rows(g), seed=s).verdict for s in range(12)] == ["ok"] * 12


def test_what_holds_no_element_is_calibrated_too() -> None:
    g = graph(
        op("Add", "h b", "a"),
        op("Relu", "a", "y"),
        h=((0, 4), Role.INPUT),
        b=((4,), Role.PARAMETER),
        a=((0, 4), Role.ACTIVATION),
        y=((0, 4), Role.ACTIVATION),
    )
    rules, _ = bind_rules(g)
    whole = Whole(g, random_tensors(g, 0), rules, frozenset())
    calibrate(whole)
    assert whole.forward(g.ops[-1])[0].shape == (0, 4)
