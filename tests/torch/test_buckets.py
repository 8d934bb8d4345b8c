"""Which redistributions go together."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.peer

import planner.torch  # noqa: E402
from planner.ir import Layout, Reduction  # noqa: E402
from planner.lowering import Redistribute, Run  # noqa: E402
from planner.redistribute import RedistributionStep, StepKind  # noqa: E402
from planner.runtime.buckets import BUCKET_BYTES, buckets  # noqa: E402
from planner.runtime.planned import planned_traffic  # noqa: E402
from planner.runtime.workers import Context, Workers  # noqa: E402
from tests.torch.training import made, planned, step_loss  # noqa: E402

WHOLE, PENDING = Layout.replicated(1), Layout(((),), (("x", Reduction.SUM),))
EXTREME = Layout(((),), (("x", Reduction.MAX),))


def summed(name: str, axis: str = "x", source: Layout = PENDING) -> Redistribute:
    step = RedistributionStep(StepKind.ALL_REDUCE, (axis,), source, WHOLE)
    return Redistribute(name, True, source, WHOLE, (step,))


def grouped(moves: list[Any], size: int = 8, types: dict[str, torch.dtype] | None = None) -> list[list[int]]:
    kinds = types or {}
    return list(buckets(moves, lambda i: size, lambda i: kinds.get(i.tensor, torch.float32)).values())


def test_sums_over_the_same_axes_go_together() -> None:
    assert grouped([summed("a"), summed("b", "y"), summed("c"), summed("d", "y")]) == [[0, 2], [1, 3]]


def test_a_bucket_is_carried_out_where_its_last_member_stands() -> None:
    assert list(buckets([summed("a"), summed("b")], lambda i: 8, lambda i: torch.float32)) == [1]


def test_types_do_not_mix() -> None:
    assert grouped([summed("a"), summed("b"), summed("c")], types={"b": torch.bfloat16}) == [[0, 2]]


def test_a_bucket_has_so_many_bytes_at_most() -> None:
    assert grouped([summed(n) for n in "abcde"], BUCKET_BYTES // 2) == [[0, 1], [2, 3]]


def test_a_tensor_larger_than_a_bucket_goes_alone() -> None:
    assert grouped([summed("a"), summed("b")], 2 * BUCKET_BYTES) == []


def test_extremes_go_alone() -> None:
    assert grouped([summed("a", source=EXTREME), summed("b", source=EXTREME)]) == []


def test_a_bucket_ends_before_what_reads_it() -> None:
    split = Layout((("x",),))
    cut = RedistributionStep(StepKind.ALL_GATHER, ("x",), WHOLE, split, 0)
    reading = Redistribute("a", True, WHOLE, split, (cut,))
    assert grouped([summed("a"), summed("b"), reading, summed("c"), summed("d")]) == [[0, 1], [3, 4]]


def gathered(name: str) -> Redistribute:
    split = Layout((("x",),))
    return Redistribute(name, False, split, WHOLE, (RedistributionStep(StepKind.ALL_GATHER, ("x",), split, WHOLE, 0),))


def test_weights_are_there_when_an_operator_runs_and_gradients_may_wait() -> None:
    listed = [
        gathered("a"),
        gathered("b"),
        Run("op"),
        summed("c"),
        gathered("d"),
        gathered("e"),
        Run("op"),
        summed("f"),
    ]
    assert sorted(grouped(listed)) == [[0, 1], [3, 7], [4, 5]]


def _sent(context: Context, strategy: str) -> tuple[dict[str, tuple[int, int]], dict[str, tuple[int, int]]]:
    torch.set_num_threads(1)
    case = made("gpt")
    module = planner.torch.parallelize(case.module, planned(case, {"strategy": strategy}))
    runner = module._planner
    runner.context.ledger.clear()
    step_loss(case, module, parallel=True)
    return dict(runner.context.ledger.steps), planned_traffic(runner.stage)


@pytest.mark.parametrize(("strategy", "passes"), [("fsdp:micro_batch=1", 4), ("zero2:micro_batch=1", 4)])
def test_every_pass_scatters_gradients_in_buckets(strategy: str, passes: int) -> None:
    """A tenth of a collective for each tensor, at most: of one kind and type all go together, up to 25 MB."""
    with Workers(2) as workers:
        executed, plan = workers.call(_sent, strategy)[0]
    assert executed == plan
    tensors = len(list(made("gpt").module.parameters()))
    assert 0 < executed["reduce_scatter"][0] <= passes * (tensors / 10 + 4)
