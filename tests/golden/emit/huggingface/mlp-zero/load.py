"""mlp-zero on 8 devices, as the plan says, in every process that torchrun started.

    model = load("path/or/name")       # a checkpoint of transformers; further options go to from_pretrained
    inputs = samples(inputs)           # of a batch that is whole on every process, the samples of this one

Gradients are means over the ranks with samples of their own: the loss is the mean over a rank's samples.
Made by `planner emit --target huggingface`; the plan decides, edit that.
"""

import json
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, DistributedConfig

CONFIG = Path(__file__).resolve().with_name("distributed_config.json")
DATA, TENSOR = 8, 1  # ranks with samples of their own; ranks that share those


def load(path, auto=AutoModelForCausalLM, **options):
    config = DistributedConfig.from_dict(json.loads(CONFIG.read_text(encoding="utf-8")))
    options.setdefault("dtype", torch.bfloat16)
    return auto.from_pretrained(path, distributed_config=config, **options)


def samples(inputs):
    place = torch.distributed.get_rank() // TENSOR % DATA
    return {name: value.chunk(DATA)[place] for name, value in inputs.items()}
