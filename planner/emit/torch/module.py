"""The Python module that attaches a plan to the user's own network."""

from __future__ import annotations

from string import Template
from typing import Final

from planner.emit.names import plain
from planner.emit.wording import literal
from planner.ir import Graph
from planner.planning.document import PlanDocument

__all__ = ["module_text"]

_MODULE: Final = Template('''"""$model on $devices devices (mesh $mesh$staged): trains your own module.

    from parallel import parallelize

    dist.init_process_group()          # in each of $devices processes that torchrun started
    parallelize(module)                # as plan.json says; before the optimizer is made
    loss = module($arguments)$taken$gap# a whole step: forward and backward, of $micro
    loss.backward()                    # hands the gradients over
    optimizer.step()

The module is the one that was exported: its parameters have the names and shapes that model.onnx has for them.  It is
called with the inputs of model.onnx in their order, or by their names, and returns the loss, the same on every rank.
A batch is given whole on every rank, or as the samples of the rank's data-parallel group.  Checkpoints:
planner.torch.state_dict.

    torchrun --nproc-per-node $devices parallel.py PACKAGE.MODULE:FUNCTION

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
INPUTS = $inputs


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
        loss = module(*inputs)$taken
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0:
            print(f"step {step}: loss {loss.item():.6f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.path.insert(0, "")  # the package that the function is in, from where this is started
    main(sys.argv[1])
''')


def module_text(plan: PlanDocument, graph: Graph) -> str:
    """`graph`: of a micro-batch, with a loss."""
    micro = plan.schedule.micro_batches
    arguments = ", ".join(_identifier(n, i) for i, n in enumerate(graph.inputs))
    taken = ".loss" if len(graph.outputs) > 1 else ""
    text = _MODULE.substitute(
        model=plain(plan.model.name),
        devices=plan.devices,
        mesh=str(plan.mesh),
        staged="" if plan.schedule.stages == 1 else f" in each of {plan.schedule.stages} stages",
        arguments=arguments,
        taken=taken,
        gap=" " * max(2, 39 - len(f"    loss = module({arguments}){taken}")),
        micro="one batch" if micro == 1 else f"{micro} micro-batches",
        inputs=_inputs(graph, micro),
    )
    compile(text, "parallel.py", "exec")  # names are data in it, never code
    return text


def _identifier(name: str, index: int) -> str:
    return name if name.isidentifier() and len(name) <= 40 else f"input_{index}"


def _inputs(graph: Graph, micro: int) -> str:
    lines = []
    for n in graph.inputs:
        t = graph.tensors[n]
        shape = t.shape or ()
        whole = (shape[0] * micro, *shape[1:]) if shape else ()
        lines.append(f"    ({literal(n)}, {whole!r}, torch.{t.dtype}),\n")
    return f"[\n{''.join(lines)}]"
