"""The Python module that lays a network out by HyperParallel's `shard_module`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from string import Template
from typing import Final

from planner.emit.hyper_parallel.grid import Grid
from planner.emit.names import plain
from planner.emit.wording import literal
from planner.planning.document import PlanDocument

__all__ = ["Placed", "module_text"]

Placed = tuple[str, ...]

_MODULE: Final = Template('''"""$model on $devices devices (mesh $mesh), laid out by HyperParallel.

    mesh = device_mesh()   # in every process of the job
    module = parallelize(module, mesh$stage)
    save_layout("checkpoint", rank$stage)   # rankN.layout, beside what the rank saves

Inputs of the module are DTensors of HyperParallel; `shard_module` converts them as INPUTS says.$loss
Made by `planner emit --target hyper-parallel`; the plan decides, edit that.
"""

import json
from pathlib import Path

from hyper_parallel import ${imports}
from hyper_parallel.core.shard.sharding_plan import ShardingPlan

try:
    from hyper_parallel.core.dtensor.placement_types import Partial, Replicate, Shard
except ImportError:  # before 2026-04
    from hyper_parallel.core.placement_types import Partial, Replicate, Shard

SIZES = $sizes
AXES = $axes

# By pipeline stage: parameter, or `<module>.input` and `<module>.output`, -> placement for every axis of the mesh.
PARAMETERS = $parameters

INPUTS = $inputs

OUTPUTS = $outputs


def device_mesh(device="npu"):
    return init_device_mesh(device, SIZES, mesh_dim_names=AXES)


def _placements(words):
    kinds = {"replicate": Replicate, "partial": Partial}
    return tuple(kinds[w]() if w in kinds else Shard(int(w[6:-1])) for w in words)


def sharding_plan(stage=0):
    return ShardingPlan(
        plan={name: _placements(words) for name, words in PARAMETERS[stage].items()},
        input_plan={name: [_placements(words) for words in arguments] for name, arguments in INPUTS[stage].items()},
        output_plan={name: _placements(words) for name, words in OUTPUTS[stage].items()},
    )


def parallelize(module, mesh, stage=0):
    """The module, of one stage, with its parameters divided, and its tensors converted where the plan does so."""
    module = shard_module(module, mesh, sharding_plan(stage))
$hsdp    return module


def save_layout(folder, rank, stage=0):
    """The file of one rank, as HyperParallel's checkpoints have it; ranks of a stage differ in their number alone."""
    first = str(stage * $ranks)
    told = json.loads(Path(__file__).with_name(f"rank{first}.layout").read_text(encoding="utf-8"))
    Path(folder, f"rank{rank}.layout").write_text(json.dumps({str(rank): told[first]}), encoding="utf-8")
''')

# Without hsdp every rank keeps the gradients of its own samples.
_HSDP: Final = """\
    # Gradients are summed over the ranks with equal parts; weights, gradients and optimizer state are kept
    # {kept}.
    hsdp(module, shard_size={shards}, threshold={threshold}, optimizer_level="{level}")
"""

_LOSS: Final = """
Where ranks compute the same loss, divide it by their number (layout.repeat_num()): hsdp adds all their gradients."""


def module_text(
    plan: PlanDocument,
    grid: Grid,
    parameters: Sequence[Mapping[str, Placed]],
    inputs: Sequence[Mapping[str, Sequence[Placed]]],
    outputs: Sequence[Mapping[str, Placed]],
    optimizer: tuple[int, int],
) -> str:
    """Tables by pipeline stage.  `optimizer`: shards (1: none), and the KiB below which a parameter stays whole."""
    shards, threshold = optimizer
    training = plan.schedule.mode == "training"
    text = _MODULE.substitute(
        model=plain(plan.model.name),
        devices=plan.devices,
        mesh=" x ".join(f"{n}={s}" for n, s in grid.sizes.items()),
        sizes=repr(tuple(grid.sizes.values())),
        axes=repr(tuple(grid.sizes)),
        parameters=literal(parameters),
        inputs=literal(inputs),
        outputs=literal(outputs),
        hsdp=_hsdp(shards, threshold) if training else "",
        imports="hsdp, init_device_mesh, shard_module" if training else "init_device_mesh, shard_module",
        loss=_LOSS if training else "",
        stage=", stage" if plan.schedule.stages > 1 else "",
        ranks=plan.mesh.devices,
    )
    compile(text, "parallel.py", "exec")  # names are data in it, never code
    return text


def _hsdp(shards: int, threshold: int) -> str:
    if shards == 1:
        return _HSDP.format(kept="whole by each of them", shards=1, threshold=0, level="level1")
    kept = f"by {shards} of them in parts, weights being gathered once for the step"
    return _HSDP.format(kept=kept, shards=shards, threshold=threshold, level="level2")
