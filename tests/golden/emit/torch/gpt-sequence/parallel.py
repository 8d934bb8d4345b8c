"""gpt-sequence on 4 devices (mesh 2x2): parameters and inputs as DTensors.

    mesh = device_mesh()                  # in every process that torchrun started
    parallelize(module, mesh)             # before the optimizer is made
    inputs = shard_inputs(inputs, mesh)   # whole on every process, by name
    loss(module(**inputs).full_tensor(), labels).backward()

The result is made whole before the loss: of a mean over a divided batch DTensor (2.13) gives gradients that are too
large by the number of ranks.
Made by `planner emit --target torch`; the plan decides, edit that.
"""

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn.utils import parametrize

SIZES = (2, 2)
AXES = ('x', 'y')

# Fully qualified name -> (kept as, computed with): for every mesh axis the dimension that it splits, None where it
# repeats.  Where the two differ, the parameter is gathered before use and its gradient scattered.
PARAMETERS = {'transformer.wte.weight': ([None, 0], [None, 0]),
 'transformer.wpe.weight': ([None, 0], [None, 0]),
 'transformer.h.0.ln_1.weight': ([None, None], [None, None]),
 'transformer.h.0.ln_1.bias': ([None, None], [None, None]),
 'transformer.h.0.attn.c_attn.weight': ([None, 1], [None, 1]),
 'transformer.h.0.attn.c_attn.bias': ([None, 0], [None, 0]),
 'transformer.h.0.attn.c_proj.weight': ([None, 0], [None, 0]),
 'transformer.h.0.attn.c_proj.bias': ([None, None], [None, None]),
 'transformer.h.0.ln_2.weight': ([None, None], [None, None]),
 'transformer.h.0.ln_2.bias': ([None, None], [None, None]),
 'transformer.h.0.mlp.c_fc.weight': ([None, 1], [None, 1]),
 'transformer.h.0.mlp.c_fc.bias': ([None, 0], [None, 0]),
 'transformer.h.0.mlp.c_proj.weight': ([None, 0], [None, 0]),
 'transformer.h.0.mlp.c_proj.bias': ([None, None], [None, None]),
 'transformer.h.1.ln_1.weight': ([None, None], [None, None]),
 'transformer.h.1.ln_1.bias': ([None, None], [None, None]),
 'transformer.h.1.attn.c_attn.weight': ([None, 1], [None, 1]),
 'transformer.h.1.attn.c_attn.bias': ([None, 0], [None, 0]),
 'transformer.h.1.attn.c_proj.weight': ([None, 0], [None, 0]),
 'transformer.h.1.attn.c_proj.bias': ([None, None], [None, None]),
 'transformer.h.1.ln_2.weight': ([None, None], [None, None]),
 'transformer.h.1.ln_2.bias': ([None, None], [None, None]),
 'transformer.h.1.mlp.c_fc.weight': ([None, 1], [None, 1]),
 'transformer.h.1.mlp.c_fc.bias': ([None, 0], [None, 0]),
 'transformer.h.1.mlp.c_proj.weight': ([None, 0], [None, 0]),
 'transformer.h.1.mlp.c_proj.bias': ([None, None], [None, None]),
 'transformer.ln_f.weight': ([None, None], [None, None]),
 'transformer.ln_f.bias': ([None, None], [None, None])}

INPUTS = {'input_ids': [0, None], 'labels': [0, None]}


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
    for told, known, where in ((PARAMETERS, names, "module"), (names, PARAMETERS, "plan")):
        missing = [n for n in told if n not in known]
        if missing:
            raise KeyError(f"the {where} has no parameter {missing[0]!r}; emit with --names that agree")
    made = {}
    for name, (kept, computed) in PARAMETERS.items():
        parameter = names[name]
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
    return module


def shard_inputs(inputs, mesh):
    """Inputs by their names in the graph, whole on every process -> DTensors."""
    return {n: distribute_tensor(x, mesh, _placements(INPUTS[n])) for n, x in inputs.items()}
