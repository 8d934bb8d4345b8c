"""Schedules between live processes, on gloo: every rank gets its pieces, and the bytes that move are the schedule's."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner.checkpoint.layouts import Layouts, Spread
from planner.checkpoint.moving import transfer_plan
from planner.ir import DeviceMesh, Layout
from tests.checkpoint.layouts import Whole, of_rank, random_layouts, random_tensors

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.peer, pytest.mark.slow]

SHAPES = {"a": (8, 6), "b": (12,), "c": (4, 3, 2), "d": (5, 7)}
WORLD = 8


def cases(count: int) -> list[tuple[Layouts, Layouts, Whole]]:
    out = []
    for seed in range(count * 10):
        rng = random.Random(seed)
        before, after = random_layouts(rng, SHAPES), random_layouts(rng, SHAPES)
        if max(before.ranks, after.ranks) <= WORLD:
            out.append((before, after, random_tensors(rng, SHAPES)[0]))
    return out[:count]


def _rank(rank: int, store: str, count: int) -> None:
    import torch
    import torch.distributed as dist

    from planner.runtime.exchange import exchange

    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD)
    counted = {"sent": 0}
    batch = dist.batch_isend_irecv

    def watched(operations: list[Any]) -> Any:
        counted["sent"] += sum(o.tensor.nbytes for o in operations if o.op is dist.isend)
        return batch(operations)

    dist.batch_isend_irecv = watched
    for number, (before, after, weights) in enumerate(cases(count)):
        plan = transfer_plan(before, after, optimizer="sgd")
        mine = {}
        for name, value in weights.items():
            found = of_rank(value, before.parameters[name].pieces(value.shape), rank)
            if found is not None:
                mine[name] = torch.from_numpy(found)
        counted["sent"] = 0
        budget = (1 << 20, 64, 4)[number % 3]
        done = exchange(plan.schedule, mine, budget=budget, free=True)
        assert not mine
        total = torch.tensor([done.sent_bytes, done.received_bytes, counted["sent"]])
        dist.all_reduce(total)
        assert total.tolist() == [plan.schedule.moved_bytes] * 3, number
        held = [r for r, d in enumerate(plan.schedule.placement.tolist()) if d == rank]
        for name, value in weights.items():
            pieces = after.parameters[name].pieces(value.shape)
            expected = of_rank(value, pieces, held[0]) if held else None
            assert (name in done.tensors) == (expected is not None)
            if expected is not None:
                np.testing.assert_array_equal(done.tensors[name].numpy(), expected)
    _of_two_types(rank)
    dist.destroy_process_group()


def _of_two_types(rank: int) -> None:
    """Tensors that lie alike travel in one group, whatever their types."""
    from planner.runtime.exchange import exchange

    mesh = DeviceMesh.of(WORLD)
    rows, columns = (Spread(Layout(dims), mesh, (0,), (16, 8)) for dims in ((("x",), ()), ((), ("x",))))
    before, after = (Layouts("a plan", WORLD, dict.fromkeys(("half", "whole"), s)) for s in (rows, columns))
    value = torch.arange(128.0).reshape(16, 8)
    whole = {"half": value.bfloat16(), "whole": value}
    mine = {n: v[2 * rank : 2 * rank + 2].clone() for n, v in whole.items()}
    schedule = transfer_plan(before, after, optimizer="sgd").schedule
    done, held = exchange(schedule, mine), schedule.placement.tolist().index(rank)
    for name, v in whole.items():
        assert done.tensors[name].dtype == v.dtype
        assert torch.equal(done.tensors[name], v[:, held : held + 1])


def test_processes_exchange_what_the_schedule_says(tmp_path: Path) -> None:
    import multiprocessing

    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=_rank, args=(r, str(tmp_path / "store"), 24)) for r in range(WORLD)]
    for r in ranks:
        r.start()
    for r in ranks:
        r.join(240)
    assert [r.exitcode for r in ranks] == [0] * WORLD
