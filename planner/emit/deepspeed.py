"""DeepSpeed: a plan as its JSON configuration.

Keys: DeepSpeed 0.19 `runtime/config.py`, `runtime/zero/config.py`, `runtime/tensor_parallel/config.py` and
`module_inject/autotp_config.py` (AutoTP), `module_inject/auto_ep_config.py` (AutoEP).
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from string import Template
from typing import Any, Final

from planner.clock import Configuration
from planner.emit.batch import Batch, batch_of
from planner.emit.blocks import check_pairs
from planner.emit.degrees import lost_in_degrees, training_scheme, zero_level
from planner.emit.emission import Emission
from planner.emit.hosts import Server
from planner.emit.launch import Hosts, hosts_of, launch_scripts
from planner.emit.layers import layers_of
from planner.emit.names import Name
from planner.emit.scheme import PRODUCTS, Scheme
from planner.emit.uniform import Model, recomputes_layers
from planner.errors import InputError
from planner.planning.document import PlanDocument

__all__ = ["emit_deepspeed", "unsupported"]

_TARGET: Final = "DeepSpeed"

# A plan's step updates with gradients as they are; without the key DeepSpeed clips their norm to 1.0 (since June 2026,
# pull request 8068).
_UNCLIPPED: Final = {"gradient_clipping": 0.0}

_HEADS: Final = ("lm_head", "embed_out")  # names by which AutoTP knows an output product
_KINDS: Final = {"column": "column", "row": "row", "whole": "skip"}

_RUN: Final = Template("""#!/bin/bash
# $devices processes by DeepSpeed's launcher, $per on each of $nodes host(s), from one of them.
# usage: bash run_deepspeed.sh SCRIPT.py [ARGUMENT…]; the script calls deepspeed.add_config_arguments(parser)
# HOSTFILE: lines of HOST slots=$per.
set -euo pipefail
here="$$(cd "$$(dirname "$$0")" && pwd)"
script="$${1:?name the training script}"; shift
hostfile="$${HOSTFILE:-$known}"
options=(--num_gpus $per)
if [ -n "$$hostfile" ]; then options+=(--hostfile "$$hostfile" --num_nodes $nodes); fi
$check
exec deepspeed "$${options[@]}" --master_port "$${MASTER_PORT:-29500}" "$$script" \\
    --deepspeed --deepspeed_config "$$here/ds_config.json" "$$@"
""")


def unsupported(c: Configuration, model: Model) -> str:
    """What of a uniform configuration DeepSpeed cannot express; empty where it can express all of it."""
    if c.pp > 1:
        return "pipeline stages"
    if c.cp > 1:
        return "context parallelism"
    if c.sequence_parallel:
        return "sequence parallelism"
    if c.tp > 1 and c.ep > 1:
        return "experts and tensors divided"
    if c.tp > 1 and not model.tables_tied:
        return "tables divided by vocabulary that make no logits"
    return "" if recomputes_layers(c) else f"{c.recompute} recomputation of a part"


def emit_deepspeed(plan: PlanDocument, names: Mapping[str, Name], *, servers: Sequence[Server] = ()) -> Emission:
    """`servers`: from a hosts file.

    InputError where DeepSpeed would lay the model out otherwise than the plan, naming what to pin.
    """
    scheme = training_scheme(plan, _TARGET)
    _check(plan, scheme)
    batch = batch_of(plan, scheme)
    config = (
        _batch(batch, scheme) | _numbers(plan) | {"zero_optimization": {"stage": _stage(plan, scheme)}} | _UNCLIPPED
    )
    if scheme.tensor > 1:
        config["tensor_parallel"] = _tensor_parallel(plan, scheme, names)
    if scheme.expert > 1:
        config["expert_parallel"] = {"enabled": True, "autoep_size": scheme.expert}
    hosts = hosts_of(plan, servers)
    files = {
        "ds_config.json": (json.dumps(config, indent=1) + "\n").encode(),
        "run_deepspeed.sh": _run(hosts).encode(),
        **launch_scripts(hosts),
    }
    displaced = scheme.displaced("data", "expert", "tensor")
    return Emission(files, (*lost_in_degrees(plan, scheme, _TARGET, displaced), *_lost(plan, scheme)))


def _stage(plan: PlanDocument, scheme: Scheme) -> int:
    """Of ZeRO: 1 adds gradients up before they are scattered, which is 2 where there is one micro-batch."""
    level = zero_level(plan, scheme)
    return 2 if level == 1 and scheme.micro_batches == 1 else level


def _run(hosts: Hosts) -> str:
    several = ': "${hostfile:?set HOSTFILE, a file of the hosts, lines of HOST slots=N}"'
    return _RUN.substitute(
        devices=hosts.devices,
        per=hosts.per_host,
        nodes=hosts.count,
        known="$here/hostfile" if hosts.names else "",
        check=several if hosts.count > 1 else "# One host: without a hostfile the launcher starts all processes here.",
    )


def _check(plan: PlanDocument, scheme: Scheme) -> None:
    if scheme.stages > 1:
        raise InputError(
            f"plan: {scheme.stages} pipeline stages; DeepSpeed takes them from a PipelineModule in the training "
            "script, and its configuration would train without any: search without --stages, or use --target megatron"
        )
    for axis, use in scheme.uses.items():
        if use == "context" and scheme.sizes[axis] > 1:
            raise InputError(
                f"plan: axis {axis} splits the positions of inputs; DeepSpeed does so by exchanging heads inside of "
                "attention layers that the training script registers, not by its configuration: pin the inputs split "
                "along samples, or use --target torchtitan or megatron"
            )
    if scheme.sequence:
        norm = next(n for n, op in plan.operators.items() if "Norm" in op.type or op.type == "ReduceMean")
        raise InputError(
            f"plan: tensor-parallel ranks divide positions at normalisations ({norm}, …); AutoTP keeps positions whole "
            "there: pin the normalisations to split samples alone, or use --target torchtitan or megatron"
        )
    if scheme.expert > 1 and scheme.tensor > 1:
        raise InputError(
            f"plan: experts over {scheme.expert} ranks, and weights over {scheme.tensor}; DeepSpeed divides experts "
            "among tensor-parallel ranks as well: pin a mesh with one of the two, or use --target megatron"
        )
    if 1 < scheme.shards < scheme.data:
        raise InputError(
            f"plan: parameters are in {scheme.shards} shards over {'.'.join(scheme.sharded)}, on {scheme.data} "
            "data-parallel ranks; DeepSpeed's ZeRO divides them among all: pin `stored` over all, or rest=zero"
        )


def _batch(batch: Batch, scheme: Scheme) -> dict[str, Any]:
    """With AutoTP DeepSpeed still multiplies by all processes when it checks the whole, which is then left out."""
    total = {"train_batch_size": batch.total} if scheme.tensor == 1 else {}
    return total | {
        "train_micro_batch_size_per_gpu": batch.per_rank,
        "gradient_accumulation_steps": batch.micro_batches,
    }


def _numbers(plan: PlanDocument) -> dict[str, Any]:
    return {} if plan.schedule.precision == "fp32" else {plan.schedule.precision: {"enabled": True}}


def _tensor_parallel(plan: PlanDocument, scheme: Scheme, names: Mapping[str, Name]) -> dict[str, Any]:
    """Every weight matrix by name, whole ones too: with `strict_mode` a module that is not named is an error."""
    gathered = check_pairs(plan, scheme, layers_of(plan), _TARGET)
    kinds: dict[str, str] = {}
    tied, by_vocabulary = False, False
    for name, p in plan.parameters.items():
        cut = scheme.cuts[name]
        multiplies = any(r.slot == 1 and plan.operators[r.operator].type in PRODUCTS for r in p.readers)
        if any(r.slot == 0 and plan.operators[r.operator].type == "Gather" for r in p.readers):
            tied = tied or multiplies
            by_vocabulary = by_vocabulary or _check_table(plan, scheme, name, tied=multiplies)
        elif multiplies and len(p.shape) == 2:
            kinds[names[name].name] = _KINDS[cut]
        elif cut in ("column", "row"):
            raise InputError(
                f"plan: parameter {name}, of shape {p.shape}, is divided by {cut}s; AutoTP divides matrices alone: pin "
                f"{p.readers[0].operator} without the tensor-parallel axis"
            )
    specs = _specs(kinds, None if gathered is None else names[gathered].name)
    if tied and not by_vocabulary:
        specs.append({"patterns": [rf"(.*\.)?{h}\.weight$" for h in _HEADS], "partition_type": "skip"})
    out: dict[str, Any] = {"autotp_size": scheme.tensor}
    if by_vocabulary:
        out["vocab_parallel_lm_head"] = True
    return out | {"partition_config": {"use_default_specs": False, "strict_mode": True, "layer_specs": specs}}


def _check_table(plan: PlanDocument, scheme: Scheme, name: str, *, tied: bool) -> bool:
    """Whether a table is divided by vocabulary, as one can be that is also the output product's weight."""
    if scheme.cuts[name] == "whole":
        return False
    if scheme.cuts[name] == "vocabulary" and tied:
        return True
    reader = next(r.operator for r in plan.parameters[name].readers if plan.operators[r.operator].type == "Gather")
    raise InputError(
        f"plan: table {name} is divided by {scheme.cuts[name]}; AutoTP divides by vocabulary those tables alone that "
        f"are also the output product's weight, and keeps others whole: pin {reader} without the tensor-parallel axis"
    )


def _specs(kinds: Mapping[str, str], gathered: str | None) -> list[dict[str, Any]]:
    """Names as patterns; what differs in numbers alone is one, where all are divided alike.  `gathered`: the product
    whose result is put together."""
    groups: dict[str, dict[str, str]] = defaultdict(dict)
    for name, kind in kinds.items():
        groups[r"\d+".join(map(re.escape, re.split(r"(?<=\.)\d+(?=\.)", name)))][name] = kind
    patterns: dict[tuple[str, bool], list[str]] = defaultdict(list)
    for pattern, members in groups.items():
        alike = len(set(members.values())) == 1 and gathered not in members
        for name, kind in members.items():
            expression = (pattern if alike else re.escape(name)) + "$"
            if expression not in patterns[kind, name == gathered]:
                patterns[kind, name == gathered].append(expression)
    return [
        {"patterns": expressions, "partition_type": kind} | ({"gather_output": True} if whole else {})
        for (kind, whole), expressions in sorted(patterns.items())
    ]


def _lost(plan: PlanDocument, scheme: Scheme) -> list[str]:
    out = [f'the optimizer, {plan.schedule.optimizer}: give it to deepspeed.initialize, or under "optimizer"']
    if scheme.shards > 1 and _stage(plan, scheme) < 3:
        out.append(
            f"when parameters are gathered: ZeRO {_stage(plan, scheme)} keeps them whole, in the precision computed "
            "with, and gathers the "
            "updated shards at the end of a step; the plan at the beginning of the next.  As many bytes travel"
        )
    if scheme.tensor > 1 and "vocabulary" in scheme.cuts.values():
        out.append("the loss of divided logits: DeepSpeed puts its own in place of the model's `loss_function`")
    if plan.schedule.recompute:
        out.append(
            f"{len(plan.schedule.recompute)} recomputed blocks: call deepspeed.checkpointing.checkpoint in the model, "
            "or gradient_checkpointing_enable() of a Hugging Face one"
        )
    if scheme.expert > 1:
        out.append("which modules are experts: AutoEP knows models by presets (expert_parallel.preset_model)")
    return out
