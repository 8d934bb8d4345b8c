"""A plan for the user's own PyTorch module: where every parameter is kept, how it is computed with, how inputs lie.

What happens between operators is DTensor's to decide: it propagates placements from parameters and inputs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pprint import pformat
from string import Template
from typing import Any, Final

from planner.emit.emission import Emission
from planner.emit.hosts import Server
from planner.emit.launch import hosts_of, launch_scripts
from planner.emit.names import Name, plain
from planner.emit.torch.boundaries import boundaries
from planner.emit.torch.placements import placements
from planner.errors import InputError
from planner.ir import Layout
from planner.planning.document import PlanDocument

__all__ = ["emit_torch"]

_MODULE: Final = Template('''"""$model on $devices devices (mesh $mesh): parameters and inputs as DTensors.

    mesh = device_mesh()                  # in every process that torchrun started
    parallelize(module, mesh)             # before the optimizer is made
    inputs = shard_inputs(inputs, mesh)   # whole on every process, by name
    with implicit_replication():          # for tensors that the module makes itself (positions, masks)
        loss(module(**inputs).full_tensor(), labels).backward()

The result is made whole before the loss: of a mean over a divided batch DTensor (2.13) gives gradients that are too
large by the number of ranks.
Made by `planner emit --target torch`; the plan decides, edit that.
"""

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.experimental import implicit_replication  # noqa: F401
from torch.nn.utils import parametrize

SIZES = $sizes
AXES = $axes

# Fully qualified name -> (kept as, computed with): for every mesh axis the dimension that it splits, None where it
# repeats.  Where the two differ, the parameter is gathered before use and its gradient scattered.
PARAMETERS = $parameters

INPUTS = $inputs

# Module -> how its input and its result lie: (number of dimensions, what each mesh axis splits).  What DTensor would do
# otherwise is brought there.
MODULES = $modules


def device_mesh(device="cuda" if torch.cuda.is_available() else "cpu"):
    return init_device_mesh(device, SIZES, mesh_dim_names=AXES)


def _placements(dims):
    return [Replicate() if d is None else Shard(d) for d in dims]


class _Gathered(nn.Module):
    """Redistributes a parameter to what operators compute with; gradients come back as it is kept."""

    def __init__(self, mesh, dims):
        super().__init__()
        self.mesh, self.dims = mesh, dims

    def forward(self, kept):
        return kept.redistribute(self.mesh, _placements(self.dims))


def parallelize(module, mesh):
    """Makes every parameter a DTensor, as the plan says, and every buffer one that all repeat.

    KeyError where module and plan differ in their parameters.
    """
    names = dict(module.named_parameters(remove_duplicate=False))
    missing = [n for n in PARAMETERS if n not in names]
    if missing:
        raise KeyError(f"the module has no parameter {missing[0]!r}; emit with --names that agree")
    told = {id(names[name]): layouts for name, layouts in PARAMETERS.items()}  # a tied parameter has several names
    missing = [n for n, parameter in names.items() if id(parameter) not in told]
    if missing:
        raise KeyError(f"the plan has no parameter {missing[0]!r}; emit with --names that agree")
    made = {}
    for name, parameter in names.items():
        kept, computed = told[id(parameter)]
        if id(parameter) not in made:
            data = distribute_tensor(parameter.data, mesh, _placements(kept))
            made[id(parameter)] = nn.Parameter(data, requires_grad=parameter.requires_grad)
        path, _, last = name.rpartition(".")
        owner = module.get_submodule(path)
        setattr(owner, last, made[id(parameter)])
        if kept != computed:
            parametrize.register_parametrization(owner, last, _Gathered(mesh, computed), unsafe=True)
    for name, buffer in list(module.named_buffers()):
        path, _, last = name.rpartition(".")
        setattr(module.get_submodule(path), last, distribute_tensor(buffer, mesh, [Replicate()] * len(SIZES)))
    for path, (before, after) in MODULES.items():
        inner = module.get_submodule(path)
        inner.register_forward_pre_hook(lambda _, x, told=before: (_brought(x[0], mesh, told), *x[1:]) if x else x)
        inner.register_forward_hook(lambda _, x, y, told=after: _brought(y, mesh, told))
    return module


def _brought(x, mesh, told):
    """A DTensor as the plan has it at this place."""
    if told is None or not isinstance(x, DTensor) or x.ndim != told[0]:
        return x
    return x.redistribute(mesh, _placements(told[1]))


def shard_inputs(inputs, mesh):
    """Inputs by their names in the graph, whole on every process -> DTensors."""
    return {n: distribute_tensor(x, mesh, _placements(INPUTS[n])) for n, x in inputs.items()}
''')


def emit_torch(plan: PlanDocument, names: Mapping[str, Name], *, servers: Sequence[Server] = ()) -> Emission:
    """`servers`: from a hosts file.

    InputError where a parameter has no one layout to compute with, or DTensor no words for it.
    """
    mesh = plan.mesh
    parameters: dict[str, tuple[Any, Any]] = {}
    for name, p in plan.parameters.items():
        told = names[name]
        # A bias added to a pending sum is read as one (by one rank, zeros on the others); DTensor sees to that itself.
        reads = list(dict.fromkeys(Layout(x.layout().dims) for x in p.compute))
        if len(reads) != 1:
            readers = ", ".join(r.operator for r in p.readers) or "several operators"
            raise InputError(
                f"plan: parameter {name} is computed with as {' and as '.join(map(str, reads))} (read by {readers}); a "
                "DTensor is in one layout at a time: search with --target mindspore, or pin `compute`"
            )
        parameters[told.name] = (
            _words(plan, f"parameter {name}", _oriented(p.stored.layout(), told)),
            _words(plan, f"parameter {name}", _oriented(reads[0], told)),
        )
    inputs = {
        n: _words(plan, f"input {n}", Layout.replicated(len(x.shape or ())) if x.layout is None else x.layout.layout())
        for n, x in plan.inputs.items()
    }
    modules = {m: (_place(plan, b.input), _place(plan, b.result)) for m, b in boundaries(plan, names).items()}
    document = {
        "schema": "planner.torch/1",
        "model": plan.model.name,
        "mesh": {"sizes": list(mesh.shape), "names": list(mesh.names)},
        "parameters": {n: {"kept": kept, "computed": computed} for n, (kept, computed) in parameters.items()},
        "inputs": inputs,
        "modules": {
            m: {"input": before and before[1], "result": after and after[1]} for m, (before, after) in modules.items()
        },
    }
    module = _MODULE.substitute(
        model=plain(plan.model.name),
        devices=mesh.devices,
        mesh=str(mesh),
        sizes=repr(mesh.shape),
        axes=repr(mesh.names),
        parameters=pformat(parameters, width=116, sort_dicts=False),
        inputs=pformat(inputs, width=116, sort_dicts=False),
        modules=pformat(modules, width=116, sort_dicts=False),
    )
    files = {
        "parallel_plan.json": (json.dumps(document, indent=1) + "\n").encode(),
        "parallel.py": module.encode(),
        **launch_scripts(hosts_of(plan, servers)),
    }
    return Emission(files, tuple(_lost(plan)))


def _lost(plan: PlanDocument) -> list[str]:
    out = [
        f"how {len(plan.operators)} operators are split, and {len(plan.redistributions)} redistributions: DTensor "
        "derives them from the parameters and inputs in its own way; `planner run` executes the plan to the letter"
    ]
    if plan.schedule.recompute:
        out.append(f"{len(plan.schedule.recompute)} recomputed blocks: wrap them in torch.utils.checkpoint")
    return out


def _oriented(layout: Layout, told: Name) -> Layout:
    return Layout(layout.dims[::-1], layout.partial) if told.transposed else layout


def _place(plan: PlanDocument, layout: Layout | None) -> tuple[int, list[int | None]] | None:
    """None where DTensor has no words for it: there it goes its own way."""
    if layout is None:
        return None
    try:
        return len(layout.dims), placements(layout, plan.mesh)
    except ValueError:
        return None


def _words(plan: PlanDocument, what: str, layout: Layout) -> list[int | None]:
    try:
        return placements(layout, plan.mesh)
    except ValueError as e:
        raise InputError(f"plan: {what}: {e}; pin its layout, or give --mesh another order") from e
