"""The Python module that applies a plan to a MindSpore network: what the strategy file cannot say, and the settings."""

from __future__ import annotations

from collections.abc import Mapping
from pprint import pformat
from string import Template
from typing import Any, Final

from planner.emit.mindspore.strategy import Strategies
from planner.emit.names import plain
from planner.errors import InputError
from planner.ir import DeviceMesh, Layout
from planner.planning.document import PlanDocument

__all__ = ["Optimizer", "module_text", "optimizer_of"]

_MODULE: Final = Template('''"""Parallel settings of $model on $devices devices (mesh $mesh).

    net = parallel(network)                       # before the network is compiled, after init()
    shard({"$example": network.that_operator})    # operators whose strategies the file cannot name

Made by `planner emit --target mindspore`; the plan decides, edit that.
"""

from pathlib import Path

import mindspore
from mindspore.parallel import Layout
from mindspore.parallel.auto_parallel import AutoParallel

STRATEGY_FILE = str(Path(__file__).resolve().with_name("strategy.ckpt"))
DEVICES = $devices
MESH = Layout($sizes, $names)

# Operator of the ONNX graph -> how its operands lie: the axes of MESH that split each dimension.  With `:bias` behind
# it: the sum that adds the operator's bias.
STRATEGIES = $strategies

# Parameters that the optimizer does not divide.
WHOLE = $whole

# Settings for scripts of the old style: mindspore.set_auto_parallel_context(**CONTEXT).
CONTEXT = $context


def parallel(network):
    """The network under the plan, in semi-automatic parallelism."""
    for parameter in network.get_parameters():
        if parameter.name in WHOLE:
            parameter.parallel_optimizer = False
    net = AutoParallel(network, parallel_mode="semi_auto")
$load    net.dataset_strategy($dataset)
$settings    return net


def shard(operators):
    """Gives each primitive its strategy; `operators` maps names of STRATEGIES to primitives of the network."""
    unknown = set(operators) - set(STRATEGIES)
    if unknown:
        raise KeyError(f"no strategy for {sorted(unknown)[0]!r}; STRATEGIES lists the operators that have one")
    for name, primitive in operators.items():
        primitive.shard(tuple(MESH(*dims) for dims in STRATEGIES[name]))
''')
_LOAD: Final = "    net.load_param_strategy_file(STRATEGY_FILE)\n"
_DISPLACED: Final = """\
    # Not net.load_param_strategy_file(STRATEGY_FILE): told shards alone, MindSpore would lay out over other ranks what
    # the plan does with {first}.  The file says where parameters lie, for checkpoints; STRATEGIES has all operators.
"""
_Dims = tuple[str | tuple[str, ...], ...]
Optimizer = tuple[int, tuple[str, ...]]  # shards (0: none, -1: all ranks with equal parts), and what stays whole


def optimizer_of(found: Strategies) -> Optimizer:
    """How optimizer parallel is set so that every parameter is divided as the file says.

    InputError where parameters are divided in groups of different sizes that no one setting makes.
    """
    divided: dict[str, tuple[int, int]] = {}
    whole: list[str] = []
    for name, p in found.map.parameters.items():
        a = p.arrangement
        if a.optimizer_shards > 1:
            divided[name] = (a.optimizer_shards, a.replicas)
        elif a.replicas > 1:
            whole.append(name)
    if not divided:
        return 0, ()
    if all(shards == replicas for shards, replicas in divided.values()):
        return -1, tuple(whole)
    sizes: dict[int, str] = {}
    for name, (shards, _) in divided.items():
        sizes.setdefault(shards, name)
    if len(sizes) > 1:
        (a_size, a_name), (b_size, b_name) = list(sizes.items())[:2]
        raise InputError(
            f"plan: the optimizer divides {a_name} among {a_size} ranks and {b_name} among {b_size}; MindSpore's "
            "optimizer parallel has one size for all: pin `stored` alike, or rest=zero"
        )
    return next(iter(sizes)), tuple(whole)


def module_text(plan: PlanDocument, found: Strategies, optimizer: Optimizer) -> str:
    mesh, displaced = plan.mesh, found.displaced
    listed: dict[str, tuple[_Dims, ...]] = {}
    if displaced:
        listed = {k.name: tuple(_named(x) for x in k.operands) for k in found.keyed.values() if k.splits}
    listed |= {n: _operands(plan, n) for n in found.unnamed}
    shards, whole = optimizer
    settings = []
    if shards:
        settings.append(f'    net.hsdp(shard_size={shards}, threshold=0, optimizer_level="level1")\n')
    blocks = plan.schedule.recompute
    if blocks:
        settings.append(
            f"    # The plan runs {len(blocks)} blocks again in the backward pass: call recompute() on the cells that "
            f"hold them,\n    # the first with {plain(blocks[0][0])}.\n"
        )
    dataset = _dataset(plan)
    text = _MODULE.substitute(
        model=plain(plan.model.name),
        devices=mesh.devices,
        mesh=str(mesh),
        example=plain(next(iter(listed), "operator")),
        sizes=repr(mesh.shape),
        names=repr(mesh.names),
        strategies=_literal(listed),
        whole=_literal(set(whole) or ()),
        context=_literal(_context(plan, dataset, optimizer, bool(displaced))),
        dataset=_as_layouts(plan) if isinstance(dataset, tuple) else repr(dataset),
        settings="".join(settings),
        load=_DISPLACED.format(first=plain(displaced[0])) if displaced else _LOAD,
    )
    compile(text, "parallel.py", "exec")  # names are data in it, never code
    return text


def _context(plan: PlanDocument, dataset: object, optimizer: Optimizer, displaced: bool) -> Mapping[str, Any]:
    out: dict[str, Any] = {
        "parallel_mode": "semi_auto_parallel",
        "device_num": plan.mesh.devices,
        "gradients_mean": False,  # the loss is a mean over the whole batch already
        "dataset_strategy": dataset,
        "parameter_broadcast": False,
    }
    shards, _ = optimizer
    if shards:
        out |= {
            "enable_parallel_optimizer": True,
            "parallel_optimizer_config": {"parallel_optimizer_threshold": 0, "optimizer_weight_shard_size": shards},
        }
    return out if displaced else {**out, "strategy_ckpt_load_file": "strategy.ckpt"}


def _dataset(plan: PlanDocument) -> str | tuple[tuple[int, ...], ...]:
    """`data_parallel` where every input is split by all devices along its first dimension, `full_batch` where none is
    split, else shards of every dimension of every input."""
    mesh = plan.mesh
    found = [_shards(x, mesh) for x in _inputs(plan)]
    if all(n == 1 for dims in found for n in dims):
        return "full_batch"
    if all(dims and dims[0] == mesh.devices for dims in found):
        return "data_parallel"
    return tuple(found)


def _as_layouts(plan: PlanDocument) -> str:
    """The inputs as Layouts, which name the ranks."""
    return "(" + "".join(f"MESH({', '.join(map(repr, _named(x)))}), " for x in _inputs(plan)).rstrip() + ")"


def _inputs(plan: PlanDocument) -> list[Layout]:
    return [
        Layout.replicated(len(x.shape or ())) if x.layout is None else x.layout.layout() for x in plan.inputs.values()
    ]


def _operands(plan: PlanDocument, name: str) -> tuple[_Dims, ...]:
    return tuple(_named(x.layout()) for x in plan.operators[name].operands if x is not None)


def _named(layout: Layout) -> _Dims:
    return tuple(d[0] if len(d) == 1 else (tuple(d) or "None") for d in layout.dims)


def _shards(layout: Layout, mesh: DeviceMesh) -> tuple[int, ...]:
    return tuple(mesh.size(d) for d in layout.dims)


def _literal(value: Any) -> str:
    return pformat(value, width=116, sort_dicts=False)
