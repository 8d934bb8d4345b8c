"""Programs of eight ranks, traced in one process whose collectives go nowhere: all ranks begin the same in order."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.peer

STRATEGIES = (
    "fsdp:micro_batch=1",
    "zero1:micro_batch=1",
    "megatron:tp=2,dp=4,micro_batch=2",
    "megatron:tp=4,dp=2,micro_batch=4",
)
ROOT = Path(__file__).parents[2]
SCRIPT = """
import sys, warnings
warnings.simplefilter("ignore")
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
import planner.torch
from planner.runtime.planned import planned_traffic
from tests.torch.training import made, planned, step_loss

strategy = sys.argv[1]
plan = planned(made("gpt"), {"strategy": strategy, "devices": 8})
for rank in (0, 3, 7):
    dist.init_process_group("fake", rank=rank, world_size=8, store=FakeStore())
    case = made("gpt")
    module = planner.torch.parallelize(case.module, plan, mode="traced")
    step_loss(case, module, parallel=True).backward()
    runner = module._planner
    assert dict(runner.context.ledger.steps) == planned_traffic(runner.stage), rank
    nodes = [n for g in runner.stepper.graphs for n in g.graph.nodes]
    print("".join("b" if k != "wait_tensor" else "w" for n in nodes if getattr(n.target, "namespace", "") ==
                  "_c10d_functional" for k in [n.target.overloadpacket.__name__]))
    dist.destroy_process_group()
"""


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_eight_ranks_trace_to_the_collectives_of_the_plan(strategy: str) -> None:
    paths = os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, strategy], capture_output=True, text=True, check=False, cwd=ROOT,
        env=os.environ | {"PYTHONPATH": paths},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    first, *others = done.stdout.split()
    assert first.count("b") == first.count("w") > 2
    assert others == [first, first]
