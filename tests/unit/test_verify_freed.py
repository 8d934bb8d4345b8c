"""What gives the same result whatever is drawn is proved on operands of its own, or there is no verdict."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.ir import Layout, Op, Role
from planner.kernels.shards import Shards
from planner.lowering import Program, Redistribute
from planner.redistribute import RedistributionStep, StepKind
from planner.verify import collectives
from planner.verify.check import verify_program
from planner.verify.execute import VirtualDevices
from tests.unit.test_verify_proof import graph, op, rows

ROWS, WHOLE = Layout((("x",),)), Layout.replicated(1)


def summed() -> Program:
    """The sum of each row's softmax, which is one, row by row on two devices, and gathered in the end."""
    g = graph(
        op("Softmax", "h", "p", axis=1),
        op("ReduceSum", "p a", "y", keepdims=0),
        h=((8, 4), Role.INPUT),
        a=((1,), Role.CONSTANT),
        p=((8, 4), Role.ACTIVATION),
        y=((8,), Role.ACTIVATION),
    )
    axes = replace(g.tensors["a"], dtype="int64", value=np.array([1]))
    program = rows(replace(g, tensors={**g.tensors, "a": axes}))
    gather = RedistributionStep(StepKind.ALL_GATHER, ("x",), ROWS, WHOLE, 0)
    return replace(program, instructions=(*program.instructions, Redistribute("y", False, ROWS, WHOLE, (gather,))))


@pytest.mark.parametrize("seed", range(4))
def test_a_sum_of_probabilities_is_proved(seed: int) -> None:
    verdict = verify_program(summed(), seed=seed)
    assert (verdict.verdict, verdict.unproved) == ("ok", ())


def test_ranks_exchanged_behind_it_are_never_ok(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the model's own values the exchange changes nothing."""
    forward = VirtualDevices.forward

    def exchanged(self: VirtualDevices, op: Op) -> list[Shards | None]:
        found = forward(self, op)
        return [None if f is None else f[::-1] for f in found] if op.name == "y" else found

    monkeypatch.setattr(VirtualDevices, "forward", exchanged)
    verdict = verify_program(summed())
    assert verdict.verdict == "no verdict"
    assert "all alike" in verdict.unproved[0]


def test_a_wrong_redistribution_of_it_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    gather = collectives._KINDS[StepKind.ALL_GATHER]
    monkeypatch.setitem(collectives._KINDS, StepKind.ALL_GATHER, lambda s, x, m: gather(s, x[::-1], m))
    verdict = verify_program(summed())
    assert verdict.verdict == "failed"
    assert verdict.failures[0].startswith("y from")
