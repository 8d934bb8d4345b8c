"""Bounds under memory prices hold however far apart the prices are, and whichever sign presolve gave the usage."""

from __future__ import annotations

import numpy as np
import pytest

from planner.search.messages.trws import Messages
from planner.search.reduction.arrays import Interner
from planner.search.reduction.reduced import Factor, Reduced


def single_node(costs: list[float], usages: list[tuple[tuple[int, int], list[float]]], limits: list[float]) -> Reduced:
    arrays = Interner()
    held = tuple((span, arrays.add(np.array(u))) for span, u in usages)
    return Reduced(
        arrays=arrays,
        origin=(0,),
        states=(np.arange(len(costs)),),
        nodes=(Factor(arrays.add(np.array(costs)), held),),
        edges=(),
        limits=np.array(limits),
        offset=0,
        scale=1,
        fixed=(0,),
        instants=tuple(range(len(limits))),
    )


def test_a_small_price_behind_a_large_one_does_not_lift_the_bound() -> None:
    problem = single_node([0.0, 5.0], [((0, 1), [0.0, 0.0]), ((1, 2), [1e12, 1e12])], [0.0, 1e12])
    messages = Messages(problem, 100.0 * 10**6)
    messages.set_prices({0: 1e8, 1: 0.8e-8})
    assert messages.certified().bound <= 0  # what the first state costs, which is within the limits


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_rounding_of_prices_never_lifts_the_bound(sign: float) -> None:
    held = sign * 1e13
    problem = single_node([0.0], [((0, 1), [held])], [held])  # limits shift with what presolve takes out
    messages = Messages(problem, 1e15)
    messages.set_prices({0: 3.7})
    assert messages.certified().bound <= 0


def test_large_costs_and_small_prices_are_added_exactly() -> None:
    cost = float(2**51 + 1)
    problem = single_node([cost], [((0, 1), [9.0])], [9.0])
    messages = Messages(problem, float(2**52))
    messages.set_prices({0: 0.1})
    assert messages.certified().bound <= cost
