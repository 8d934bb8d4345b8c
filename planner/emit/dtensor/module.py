"""The Python module that applies a DTensor plan to the user's own network."""

from __future__ import annotations

from collections.abc import Mapping
from string import Template
from typing import Any, Final

from planner.emit.dtensor.fully import Fully
from planner.emit.dtensor.stages import Split
from planner.emit.names import plain
from planner.emit.wording import literal
from planner.planning.document import PlanDocument

__all__ = ["module_text"]

_MODULE: Final = Template('''"""$model on $devices devices (mesh $mesh$staged): parameters and inputs as DTensors.

$usage
The result is made whole before the loss: of a mean over a divided batch DTensor (2.13) gives gradients that are too
large by the number of ranks.
What moves between operators DTensor decides by itself.  Where that was measured, it moved 1.1 to 6.7 times what the
plan does; `with Moved() as moved:` around a step counts `moved.bytes`$planned
Made by `planner emit --target dtensor`; the plan decides, edit that.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import _resolve_process_group
$imports
__all__ = $offered

SIZES = $sizes
AXES = $axes
MICRO_BATCHES = $micro  # of a step: backward passes whose gradients are added up before they are summed over ranks
$stages# Fully qualified name -> (kept as, computed with): per mesh axis the dimension that it splits, None where it
# repeats.  Where the two differ, the parameter is gathered before use and its gradient scattered.
PARAMETERS = $parameters

INPUTS = $inputs

# Module -> how its input and its result lie: (number of dimensions, what each mesh axis splits).  What DTensor would do
# otherwise is brought there.
MODULES = $modules


def device_mesh(device="cuda" if torch.cuda.is_available() else "cpu"):
$device_mesh


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
$missing    # By identity: a tied parameter has several names.
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
$hooks    return module


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
$fully''')

_OFFERED: Final = ("Moved", "implicit_replication", "parallelize", "shard_inputs")
_USAGE: Final = """\
    mesh = device_mesh()                  # in every process that torchrun started
    parallelize(module, mesh)             # before the optimizer is made
    inputs = shard_inputs(inputs, mesh)   # whole on every process, by name
    with implicit_replication():          # for tensors that the module makes itself (positions, masks)
        loss(module(**inputs).full_tensor(), labels).backward()
"""
_STAGED_USAGE: Final = """\
    mesh, stage = device_mesh()           # of the ranks of a stage; in every process that torchrun started
    parallelize(part, mesh)               # what of the module this stage runs; before the optimizer is made

STAGE_OF says which modules a stage runs, BEGINS is for the split_spec of torch.distributed.pipelining.  A part takes
and gives DTensors: what is sent to the next stage, $micro times a step, is the local tensor of each rank.
"""
_FULLY_USAGE: Final = """
This plan is also what fully_shard does: fully(module) in place of parallelize(), without DTensors among the data.
"""
_MISSING: Final = """\
    buffers = dict(module.named_buffers())  # what the graph has as a parameter may be one
    missing = [n for n in PARAMETERS if n not in names and n not in buffers]
    if missing:
        raise KeyError(f"the module has no parameter {missing[0]!r}; emit with --names that agree")
"""
_HOOKS: Final = """\
    for path, (before, after) in MODULES.items():
        _hook(module.get_submodule(path), mesh, before, after)
"""
_STAGED_HOOKS: Final = """\
    for path, inner in module.named_modules():
        if path in MODULES:
            _hook(inner, mesh, *MODULES[path])
"""
_MESH: Final = """\
    return init_device_mesh(device, SIZES, mesh_dim_names=AXES)"""
_STAGED_MESH: Final = """\
    \"\"\"The mesh of this process's stage, and that stage: ranks count stage by stage.\"\"\"
    whole = init_device_mesh(device, (STAGES, *SIZES), mesh_dim_names=("stage", *AXES))
    return whole[AXES], whole.get_local_rank("stage")"""
_FULLY: Final = Template('''

def fully(module, device="cuda" if torch.cuda.is_available() else "cpu"):
    """The same plan by fully_shard, before the optimizer is made.  Every process gives its own samples, of which the
    loss is the mean; gradients are means over the processes.  What is gathered $stays.
    """
    mesh = init_device_mesh(device, $sizes, mesh_dim_names=$axes)
    for path in $blocks:
        fully_shard(module.get_submodule(path), mesh=mesh, reshard_after_forward=$freed)
    return fully_shard(module, mesh=mesh, reshard_after_forward=$freed)
''')
_STAGES: Final = Template("""
STAGES = $count

# Module -> the stage that runs it; the modules with which stages after the first begin.
STAGE_OF = $stage_of
BEGINS = $begins

""")


def module_text(
    plan: PlanDocument,
    parameters: Mapping[str, Any],
    inputs: Mapping[str, Any],
    modules: Mapping[str, Any],
    fully: Fully | None,
    split: Split | None,
    planned_bytes: int | None,
) -> str:
    """`parameters`, `inputs`, `modules`: as they stand in the text; `planned_bytes`: of a step, None where they are not
    known."""
    mesh = plan.mesh
    imports = [] if fully is None else ["from torch.distributed.fsdp import fully_shard"]
    imports += [
        "from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor",
        "from torch.distributed.tensor.experimental import implicit_replication",
        "from torch.utils._python_dispatch import TorchDispatchMode",
        "from torch.utils._pytree import tree_leaves",
    ]
    stages = "\n"
    usage = _USAGE + (_FULLY_USAGE if fully is not None else "")
    if split is not None:
        stages = _STAGES.substitute(
            count=plan.schedule.stages, stage_of=literal(split.stage_of), begins=literal(split.begins)
        )
        usage = Template(_STAGED_USAGE).substitute(micro=plan.schedule.micro_batches)
    text = _MODULE.substitute(
        model=plain(plan.model.name),
        devices=plan.devices,
        mesh=str(mesh),
        staged="" if split is None else f" in each of {plan.schedule.stages} stages",
        usage=usage,
        planned="." if planned_bytes is None else f";\nthe plan has {planned_bytes:,}, of its own precision.",
        imports="\n".join(imports) + "\n",
        offered=repr(["device_mesh", *["fully"] * (fully is not None), *_OFFERED]),
        sizes=repr(mesh.shape),
        axes=repr(mesh.names),
        micro=plan.schedule.micro_batches,
        stages=stages,
        parameters=literal(parameters),
        inputs=literal(inputs),
        modules=literal(modules),
        device_mesh=_MESH if split is None else _STAGED_MESH,
        missing=_MISSING if split is None else "",
        hooks=_HOOKS if split is None else _STAGED_HOOKS,
        fully="" if fully is None else _fully(fully),
    )
    compile(text, "parallel.py", "exec")  # names are data in it, never code
    return text


def _fully(fully: Fully) -> str:
    several = fully.replicas > 1
    return _FULLY.substitute(
        sizes=(fully.replicas, fully.shards) if several else (fully.shards,),
        axes=("replicate", "shard") if several else ("shard",),
        blocks=literal(fully.blocks),
        freed=fully.freed,
        stays="is freed after each pass" if fully.freed else "stays until the backward pass is done",
    )
