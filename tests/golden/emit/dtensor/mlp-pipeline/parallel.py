"""mlp-pipeline on 8 devices (mesh 4 in each of 2 stages): parameters and inputs as DTensors.

    mesh, stage = device_mesh()           # of the ranks of a stage; in every process that torchrun started
    parallelize(part, mesh)               # what of the module this stage runs; before the optimizer is made

STAGE_OF says which modules a stage runs, BEGINS is for the split_spec of torch.distributed.pipelining.  A part takes
and gives DTensors: what is sent to the next stage, 4 times a step, is the local tensor of each rank.

The result is made whole before the loss: of a mean over a divided batch DTensor (2.13) gives gradients that are too
large by the number of ranks.
What moves between operators DTensor decides by itself.  Where that was measured, it moved 1.1 to 6.7 times what the
plan does; `with Moved() as moved:` around a step counts `moved.bytes`.
Made by `planner emit --target dtensor`; the plan decides, edit that.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import _resolve_process_group
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.experimental import implicit_replication
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = ['device_mesh', 'Moved', 'implicit_replication', 'parallelize', 'shard_inputs']

SIZES = (4,)
AXES = ('x',)
MICRO_BATCHES = 4  # of a step: backward passes whose gradients are added up before they are summed over ranks

STAGES = 2

# Module -> the stage that runs it; the modules with which stages after the first begin.
STAGE_OF = {'layers.0': 0, 'layers.1': 0, 'layers.2': 1}
BEGINS = ('layers.2',)

# Fully qualified name -> (kept as, computed with): per mesh axis the dimension that it splits, None where it
# repeats.  Where the two differ, the parameter is gathered before use and its gradient scattered.
PARAMETERS = {'layers.0.weight': ([None], [None]),
 'layers.0.bias': ([None], [None]),
 'layers.1.weight': ([None], [None]),
 'layers.1.bias': ([None], [None]),
 'layers.2.weight': ([None], [None]),
 'layers.2.bias': ([None], [None])}

INPUTS = {'features': [0], 'labels': [0]}

# Module -> how its input and its result lie: (number of dimensions, what each mesh axis splits).  What DTensor would do
# otherwise is brought there.
MODULES = {'layers.0': ((2, [0]), (2, [0])), 'layers.1': ((2, [0]), (2, [0])), 'layers.2': ((2, [0]), (2, [0]))}


def device_mesh(device="cuda" if torch.cuda.is_available() else "cpu"):
    """The mesh of this process's stage, and that stage: ranks count stage by stage."""
    whole = init_device_mesh(device, (STAGES, *SIZES), mesh_dim_names=("stage", *AXES))
    return whole[AXES], whole.get_local_rank("stage")


def _placements(dims):
    return [Replicate() if d is None else Shard(d) for d in dims]


def _computed_with(owner, mesh, told):
    """The module reads parameters redistributed to what operators compute with; their gradients come back as they are
    kept.  The parameters themselves and their names in state_dict() stay."""

    def read(name, dims):
        return property(lambda self: self._parameters[name].redistribute(mesh, _placements(dims)))

    kind = type(owner)
    members = {name: read(name, dims) for name, dims in told.items()}
    owner.__class__ = type(kind.__name__, (kind,), {"__module__": kind.__module__, **members})


def _reduced(mesh):
    """Brings a gradient to where its parameter is, once a step: left to the optimizer, DTensor does so at each use."""
    passes = 0

    def reduce(parameter):
        nonlocal passes
        passes += 1
        if passes % MICRO_BATCHES == 0 and isinstance(parameter.grad, DTensor):
            parameter.grad = parameter.grad.redistribute(mesh, parameter.placements)

    return reduce


def parallelize(module, mesh):
    """Makes every parameter a DTensor, as the plan says, and every buffer one that all repeat.

    KeyError where module and plan differ in their parameters.
    """
    names = dict(module.named_parameters(remove_duplicate=False))
    # By identity: a tied parameter has several names.
    told = {id(names[name]): layouts for name, layouts in PARAMETERS.items() if name in names}
    missing = [n for n, parameter in names.items() if id(parameter) not in told]
    if missing:
        raise KeyError(f"the plan has no parameter {missing[0]!r}; emit with --names that agree")
    made, gathered = {}, {}
    for name, parameter in names.items():
        kept, computed = told[id(parameter)]
        if id(parameter) not in made:
            data = distribute_tensor(parameter.data, mesh, _placements(kept))
            made[id(parameter)] = nn.Parameter(data, requires_grad=parameter.requires_grad)
            if parameter.requires_grad:
                made[id(parameter)].register_post_accumulate_grad_hook(_reduced(mesh))
        path, _, last = name.rpartition(".")
        owner = module.get_submodule(path)
        setattr(owner, last, made[id(parameter)])
        if kept != computed:
            gathered.setdefault(owner, {})[last] = computed
    for owner, layouts in gathered.items():
        _computed_with(owner, mesh, layouts)
    for name, buffer in list(module.named_buffers()):
        path, _, last = name.rpartition(".")
        setattr(module.get_submodule(path), last, distribute_tensor(buffer, mesh, [Replicate()] * len(SIZES)))
    for path, inner in module.named_modules():
        if path in MODULES:
            _hook(inner, mesh, *MODULES[path])
    return module


def _hook(inner, mesh, before, after):
    inner.register_forward_pre_hook(lambda _, x: (_brought(x[0], mesh, before), *x[1:]) if x else x)
    inner.register_forward_hook(lambda _, x, y: _brought(y, mesh, after))


def _brought(x, mesh, told):
    """A DTensor as the plan has it at this place."""
    if told is None or not isinstance(x, DTensor) or x.ndim != told[0]:
        return x
    return x.redistribute(mesh, _placements(told[1]))


_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "alltoall", "broadcast")


class Moved(TorchDispatchMode):
    """Counts the bytes of the tensors that collectives work on, of this rank's groups: of a gather what is gathered, of
    a reduction what is reduced, of an exchange what all ranks of the group have."""

    bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(issubclass(t, DTensor) for t in types):
            return NotImplemented  # so that it comes again in local tensors
        result = func(*args, **(kwargs or {}))
        name = str(func)
        if func.namespace in ("_c10d_functional", "_dtensor") and any(kind in name for kind in _COLLECTIVES):
            given = [x for x in tree_leaves((args, result)) if isinstance(x, torch.Tensor)]
            whole = max(x.numel() * x.element_size() for x in given)
            exchanged = "_to_all" in name or "alltoall" in name
            self.bytes += whole * (dist.get_world_size(_resolve_process_group(args[-1])) if exchanged else 1)
        return result


def shard_inputs(inputs, mesh):
    """Inputs by their names in the graph, whole on every process -> DTensors."""
    return {n: distribute_tensor(x, mesh, _placements(INPUTS[n])) for n, x in inputs.items()}
