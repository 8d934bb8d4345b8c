"""CPU seconds that tracing a step takes, by the number of its operators: forward, backward, and collectives.

    python -m tests.bench.torch_trace [--layers 12,32] [--strategies NAMES]

Decoders of small width are planned for eight ranks, whose collectives go nowhere (PyTorch's fake process group), so
that a step is little but its operators.  The first step traces, a later one runs the graph that was traced; what counts
is the difference.
"""

from __future__ import annotations

import argparse
import time
import warnings
from statistics import median

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

import planner.torch
from tests.bench.torch_speed import LENGTH, WORDS, Decoder, loss_of

RANKS = 8
REPEATS = 3  # of the step that runs what was traced


def traced(layers: int, strategy: str) -> tuple[int, int, float]:
    """Operators of the model's graph and of the traced step, and CPU seconds to trace it."""
    torch.manual_seed(0)
    module = Decoder(layers, 64, 16)
    x = torch.randint(0, WORDS, (RANKS, LENGTH))
    plan = planner.torch.plan(
        module, x, targets=x, loss=loss_of, devices=RANKS, strategy=strategy, hardware="a100-80", cache=False
    )
    parallel = planner.torch.parallelize(module, plan, mode="traced")
    spent = []
    for _ in range(1 + REPEATS):
        begin = time.process_time()
        parallel(x, x).backward()
        spent.append(time.process_time() - begin)
    runner = parallel._planner
    made = sum(n.op == "call_function" for g in runner.stepper.graphs for n in g.graph.nodes)
    return len(runner.graph.ops), made, spent[0] - median(spent[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", default="12,32")
    parser.add_argument("--strategies", default="ddp;fsdp;megatron:tp=8,micro_batch=8", help="separated by semicolons")
    o = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for layers in map(int, o.layers.split(",")):
        for strategy in o.strategies.split(";"):
            dist.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
            operators, made, seconds = traced(layers, strategy)
            dist.destroy_process_group()
            print(
                f"{layers} layers, {strategy:32} a graph of {operators:,} operators, {made:,} of its step traced: "
                f"{seconds:.2f} CPU s, {seconds / made * 1000:.2f} per 1,000",
                flush=True,
            )


if __name__ == "__main__":
    main()
