"""The Python module that applies a plan to a MindSpore network: what the strategy file cannot say, and the settings."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pprint import pformat
from string import Template
from typing import Final

from planner.emit.mindspore.primitives import PRIMITIVES
from planner.ir import DeviceMesh, Layout
from planner.planning.document import LayoutDocument, PlanDocument

__all__ = ["dataset_strategy", "module_text"]

_MODULE: Final = Template('''"""Parallel settings of $model on $devices devices (mesh $mesh).

    net = parallel(network)                       # before the network is compiled, after init()
    shard({"$example": network.that_operator})    # operators whose strategies the file cannot name

Made by `planner emit --target mindspore`; the plan decides, edit that.
"""

from pathlib import Path

from mindspore.parallel import Layout
from mindspore.parallel.auto_parallel import AutoParallel

STRATEGY_FILE = str(Path(__file__).resolve().with_name("strategy.ckpt"))
DEVICES = $devices
MESH = Layout($sizes, $names)

# Operator of the ONNX graph -> how its operands lie: the axes of MESH that split each dimension.
STRATEGIES = $strategies


def parallel(network):
    """The network under the plan, in semi-automatic parallelism."""
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
    # the plan does with {first}.  The file says where parameters lie, for checkpoints.
"""
_Dims = tuple[str | tuple[str, ...], ...]


def module_text(
    plan: PlanDocument,
    unnamed: Sequence[str],
    displaced: Mapping[str, int | None],
    *,
    optimizer_shards: int,
    blocks: Sequence[Sequence[str]],
) -> str:
    """`unnamed`: operators to list; `displaced`: those to list because the file would lay them out over other ranks,
    so that it must not be loaded, and the operand that the network holds turned; `optimizer_shards` 0: the optimizer
    has none; `blocks`: recomputed ones."""
    mesh = plan.mesh
    strategies = {name: _operands(plan, name, displaced.get(name)) for name in (*displaced, *unnamed)}
    load = _LOAD
    if displaced:
        load = _DISPLACED.format(first=next(iter(displaced)))
    settings = []
    if optimizer_shards:
        settings.append(f'    net.hsdp(shard_size={optimizer_shards}, threshold=0, optimizer_level="level1")\n')
    if blocks:
        settings.append(
            f"    # The plan runs {len(blocks)} blocks again in the backward pass: call recompute() on the cells that "
            f"hold them,\n    # the first with {blocks[0][0]!r}.\n"
        )
    return _MODULE.substitute(
        model=plan.model.name,
        devices=mesh.devices,
        mesh=str(mesh),
        example=next(iter(strategies), "operator").replace('"', "'"),
        sizes=_tuple(mesh.shape),
        names=_tuple(mesh.names),
        strategies=pformat(strategies, width=116, sort_dicts=False),
        dataset=_literal(dataset_strategy(plan)),
        settings="".join(settings),
        load=load,
    )


def dataset_strategy(plan: PlanDocument) -> str | tuple[tuple[int, ...], ...]:
    """`data_parallel` where every input is split by all devices along its first dimension, `full_batch` where none is
    split, else shards of every dimension of every input."""
    mesh, found = plan.mesh, []
    for name in plan.inputs:
        told = plan.inputs[name].layout
        layout = None if told is None else _layout(told)
        rank = len(plan.inputs[name].shape or ())
        found.append(_shards(layout, mesh) if layout is not None else (1,) * rank)
    if all(n == 1 for dims in found for n in dims):
        return "full_batch"
    if all(dims and dims[0] == mesh.devices for dims in found):
        return "data_parallel"
    return tuple(found)


def _operands(plan: PlanDocument, name: str, turned: int | None) -> tuple[_Dims, ...]:
    op = plan.operators[name]
    primitive = PRIMITIVES.get(op.type)
    found = [_layout(x) for x in op.operands if x is not None]
    if turned is not None:
        found[turned] = Layout(found[turned].dims[::-1])
    if primitive is not None:
        found = found[: len(primitive.operands)]
        if primitive.flattened and len(found[0].dims) > 2 and len(found[1].dims) == 2:
            *rows, inner = found[0].dims
            found[0] = Layout((tuple(a for d in rows for a in d), inner))
    return tuple(_named(x) for x in found)


def _named(layout: Layout) -> _Dims:
    return tuple(d[0] if len(d) == 1 else (tuple(d) or "None") for d in layout.dims)


def _layout(d: LayoutDocument) -> Layout:
    return Layout.from_json(d.model_dump())


def _shards(layout: Layout, mesh: DeviceMesh) -> tuple[int, ...]:
    return tuple(mesh.size(d) for d in layout.dims)


def _tuple(values: Sequence[object]) -> str:
    return repr(tuple(values))


def _literal(value: str | tuple[tuple[int, ...], ...]) -> str:
    return json.dumps(value) if isinstance(value, str) else repr(value)


def context_settings(plan: PlanDocument) -> Mapping[str, object]:
    """The same settings for `set_auto_parallel_context`, for scripts of the old style."""
    dataset = dataset_strategy(plan)
    return {
        "parallel_mode": "semi_auto_parallel",
        "device_num": plan.mesh.devices,
        "gradients_mean": False,  # the loss is a mean over the whole batch already
        "full_batch": dataset == "full_batch",
        "dataset_strategy": dataset,
        "strategy_ckpt_load_file": "strategy.ckpt",
        "parameter_broadcast": False,
    }
