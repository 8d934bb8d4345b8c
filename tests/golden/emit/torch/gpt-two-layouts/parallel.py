"""gpt-two-layouts on 4 devices (mesh 2x2): trains your own module.

    from parallel import parallelize

    dist.init_process_group()          # in each of 4 processes that torchrun started
    parallelize(module)                # as plan.json says; before the optimizer is made
    loss = module(input_ids, labels)   # a whole step: forward and backward, of one batch
    loss.backward()                    # hands the gradients over
    optimizer.step()

The module is the one that was exported: its parameters have the names and shapes that model.onnx has for them.  It is
called with the inputs of model.onnx in their order, or by their names, and returns the loss, the same on every rank.
A batch is given whole on every rank, or as the samples of the rank's data-parallel group.  Checkpoints:
planner.torch.state_dict.

    torchrun --nproc-per-node 4 parallel.py PACKAGE.MODULE:FUNCTION

takes three steps of AdamW on made-up inputs with the module that the function returns.
Made by `planner emit --target torch`, for Python with graph-planner[torch]; the plan is plan.json, search again to
change it.
"""

import os
import sys
from importlib import import_module
from pathlib import Path

import torch
import torch.distributed as dist

import planner.torch

__all__ = ["INPUTS", "example_inputs", "parallelize"]

# What a step reads, in order: (name, shape of the whole batch, type).
INPUTS = [
    ('input_ids', (16, 8), torch.int64),
    ('labels', (16, 8), torch.int64),
]


def parallelize(module, mode="eager"):
    """Makes the module run under the plan; returns it.

    mode: eager interprets the plan's program, traced runs it as graphs of ATen operators, compiled has Inductor compile
    them.  planner.errors.InputError where the plan is for another module, and says what is different.
    """
    plan = planner.torch.load_exported(Path(__file__).parent, module)
    return planner.torch.parallelize(module, plan, mode=mode)


def example_inputs():
    """Inputs of the right shapes: normal numbers, and zeros where indices are read."""
    return [
        torch.randn(shape).to(dtype) if dtype.is_floating_point else torch.zeros(shape, dtype=dtype)
        for _, shape, dtype in INPUTS
    ]


def main(function):
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group()
    torch.manual_seed(0)
    name, _, member = function.partition(":")
    module = getattr(import_module(name), member)()
    parallelize(module.cuda() if torch.cuda.is_available() else module)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
    inputs = example_inputs()
    for step in range(3):
        loss = module(*inputs)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0:
            print(f"step {step}: loss {loss.item():.6f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.path.insert(0, "")  # the package that the function is in, from where this is started
    main(sys.argv[1])
