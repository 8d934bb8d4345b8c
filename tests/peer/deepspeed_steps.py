"""Three steps of a small Llama by DeepSpeed, beside the same on one process; started by our launch scripts.

    run_torchrun.sh deepspeed_steps.py --deepspeed --deepspeed_config ds_config.json --out FILE

Rank 0 writes losses, [one process, ours] step by step, and the shapes of its parameters as JSON.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
from pathlib import Path
from typing import Any

import deepspeed
import torch
from transformers import LlamaConfig, LlamaForCausalLM

BATCH, STEPS, RATE = 8, 3, 0.5


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    deepspeed.add_config_arguments(parser)
    options = parser.parse_args()
    config: dict[str, Any] = json.loads(Path(options.deepspeed_config).read_text(encoding="utf-8"))
    torch.manual_seed(0)
    # sample_graphs/llama_tiny.onnx
    sizes = LlamaConfig(
        vocab_size=128, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=16, attn_implementation="eager",
    )  # fmt: skip
    network = LlamaForCausalLM(sizes)
    alone = copy.deepcopy(network)
    tokens = torch.randint(0, 128, (BATCH, 16))
    # Plain steps: others do not show gradients of the wrong size.  Clipping, which would hide it, too, is off in ours.
    config |= {"zero_allow_untested_optimizer": True}
    steps = torch.optim.SGD(network.parameters(), lr=RATE)
    engine, *_ = deepspeed.initialize(model=network, optimizer=steps, config=config)
    optimizer = torch.optim.SGD(alone.parameters(), lr=RATE)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    tensor = config.get("tensor_parallel", {}).get("autotp_size", 1)
    # Tensor-parallel ranks are neighbours and take the same samples.
    local = BATCH * tensor // world
    mine = tokens[rank // tensor * local :][:local]
    parts = engine.gradient_accumulation_steps()
    losses = []
    for _ in range(STEPS):
        wanted = alone(tokens, labels=tokens).loss
        optimizer.zero_grad()
        wanted.backward()
        optimizer.step()
        found = torch.zeros(())
        for part in mine.chunk(parts):
            loss = engine(part, labels=part).loss
            engine.backward(loss)
            engine.step()
            found += loss.detach() / parts
        torch.distributed.all_reduce(found)
        losses.append([wanted.item(), found.item() / world])
    if rank == 0:
        shapes = {n: list(p.shape) for n, p in engine.module.named_parameters()}
        told = {"losses": losses, "shapes": shapes, "zero": engine.zero_optimization_stage()}
        options.out.write_text(json.dumps(told), encoding="utf-8")


if __name__ == "__main__":
    main()
