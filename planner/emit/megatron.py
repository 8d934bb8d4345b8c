"""Megatron-LM: a plan as arguments of its pretraining scripts.

Names and meanings: Megatron-LM `megatron/training/arguments.py` (core 0.16), ranks `megatron/core/parallel_state.py`
(order tp-cp-ep-dp-pp, innermost first), stages `core/transformer/pipeline_parallel_layer_layout.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from string import Template
from typing import Final

from planner.clock import Configuration
from planner.cost_models.pipeline import interleaved_group
from planner.emit.attention import context_by
from planner.emit.batch import Batch, batch_of
from planner.emit.blocks import check_blocks
from planner.emit.degrees import lost_in_degrees, lost_in_stages, size_text, training_scheme
from planner.emit.emission import Emission
from planner.emit.hosts import Server
from planner.emit.launch import hosts_of, launch_scripts
from planner.emit.layers import Layers, Recomputed, Stages, layers_of, recomputed_layers, stage_layers
from planner.emit.names import plain
from planner.emit.scheme import PRODUCTS, Scheme
from planner.emit.uniform import Model, recomputes_layers
from planner.errors import InputError
from planner.planning.document import PlanDocument

__all__ = ["emit_megatron", "unsupported"]

_TARGET: Final = "Megatron-LM"

_CONTEXT_BY: Final = {"ring": "p2p", "all-to-all": "a2a", "gather": "allgather"}

_ARGUMENTS: Final = Template("""# $model on $devices devices (mesh $mesh): arguments of Megatron-LM's training scripts.
# Those of the model (layers, hidden size, heads, vocabulary), of data and of the optimizer come on top.
# Made by `planner emit --target megatron`; the plan decides, edit that.
MEGATRON_ARGS=(
$arguments
)
""")

_RUN: Final = """#!/bin/bash
# usage: [LAUNCHER=run_mpirun.sh] bash run_megatron.sh PRETRAIN.py [ARGUMENT…], on hosts as the launcher says
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
source "$here/megatron_arguments.sh"
script="${1:?name the pretraining script, as pretrain_gpt.py}"; shift
export CUDA_DEVICE_MAX_CONNECTIONS="${CUDA_DEVICE_MAX_CONNECTIONS:-1}"  # overlap of collectives, before Blackwell
export FORWARD="CUDA_DEVICE_MAX_CONNECTIONS ${FORWARD:-}"
exec bash "$here/${LAUNCHER:-run_torchrun.sh}" "$script" "${MEGATRON_ARGS[@]}" "$@"
"""


def unsupported(c: Configuration, model: Model) -> str:
    """What of a uniform configuration Megatron-LM cannot express; empty where it can express all of it."""
    if c.zero > 1 and c.dp * c.cp > 1:
        return f"ZeRO {c.zero}"  # the distributed optimizer divides the optimizer's state alone
    if c.zero and c.optimizer != "adam":
        return f"ZeRO with {c.optimizer}"
    if c.order == "interleaved" and c.micro_batches < c.pp:
        return "fewer micro-batches than stages, interleaved"
    if c.ep > 1 and c.tp > 1 and not c.sequence_parallel:
        return "experts and tensors divided without sequence parallelism"
    if c.recompute == "selective":
        return ""
    return "" if recomputes_layers(c, part=True) else f"{c.recompute} recomputation"


def emit_megatron(plan: PlanDocument, *, servers: Sequence[Server] = ()) -> Emission:
    """`servers`: from a hosts file.

    InputError where Megatron-LM would lay the model out otherwise than the plan, naming what to pin.
    """
    scheme = training_scheme(plan, _TARGET)
    layers = layers_of(plan)
    check_blocks(plan, scheme, layers, _TARGET)
    _check(plan, scheme)
    stages = stage_layers(plan, layers, _TARGET)
    again = recomputed_layers(plan, layers)
    flags = [
        *_degrees(plan, scheme),
        *_batch(batch_of(plan, scheme)),
        *_stages(plan, layers, stages),
        *_recompute(plan, stages, again),
        *_numbers(plan),
    ]
    arguments = _ARGUMENTS.substitute(
        model=plain(plan.model.name),
        devices=plan.devices,
        mesh=str(plan.mesh),
        arguments="\n".join(f"    {line}" for line in flags),
    )
    files = {
        "megatron_arguments.sh": arguments.encode(),
        "run_megatron.sh": _RUN.encode(),
        **launch_scripts(hosts_of(plan, servers)),
    }
    displaced = scheme.displaced("data", "shards", "expert", "context", "tensor")
    lost = [
        *lost_in_degrees(plan, scheme, _TARGET, displaced),
        *lost_in_stages(stages, _TARGET),
        *_lost(plan, scheme, layers),
        *_lost_recompute(stages, again),
    ]
    return Emission(files, tuple(lost))


def _check(plan: PlanDocument, scheme: Scheme) -> None:
    if scheme.shards > 1 and plan.schedule.optimizer != "adam":
        raise InputError(
            f"plan: parameters are in {scheme.shards} shards and the optimizer is {plan.schedule.optimizer}; "
            "Megatron-LM's distributed optimizer is Adam alone: search with --optimizer adam, or rest=data_parallel"
        )
    if plan.schedule.chunks > 1 and scheme.micro_batches < scheme.stages:
        raise InputError(
            f"plan: {scheme.micro_batches} micro-batches for {scheme.stages} stages with {plan.schedule.chunks} chunks "
            "each; Megatron-LM interleaves no fewer than as many as stages: search with a smaller micro_batch, or "
            "without vpp"
        )
    if scheme.expert > 1 and scheme.tensor > 1 and not scheme.sequence:
        raise InputError(
            f"plan: experts over {scheme.expert} ranks and weights over {scheme.tensor}, with whole positions in "
            "between; Megatron-LM trains this with sequence parallelism alone: pin the normalisations to split "
            "positions over the tensor-parallel axis"
        )


def _degrees(plan: PlanDocument, scheme: Scheme) -> list[str]:
    out = [
        f"--tensor-model-parallel-size {scheme.tensor}",
        f"--pipeline-model-parallel-size {scheme.stages}",
        f"--context-parallel-size {scheme.context}",
    ]
    if scheme.sequence:
        out.append("--sequence-parallel")
    if scheme.context > 1:
        out.append(f"--cp-comm-type {_CONTEXT_BY[context_by(plan, scheme)]}")
    if scheme.expert > 1:
        out.append(f"--expert-model-parallel-size {scheme.expert}")
        out.append(f"--expert-tensor-parallel-size {scheme.tensor}")
    if scheme.shards > 1:
        out.append("--use-distributed-optimizer")
        copies = scheme.data * scheme.context // scheme.shards
        if copies > 1:
            out.append(f"--num-distributed-optimizer-instances {copies}")
    return out


def _batch(batch: Batch) -> list[str]:
    out = [f"--micro-batch-size {batch.per_rank}", f"--global-batch-size {batch.total}"]
    return [*out, f"--seq-length {batch.positions}"] if batch.positions else out


def _stages(plan: PlanDocument, layers: Layers, stages: Stages) -> list[str]:
    out = []
    if len(stages.layers) > 1:
        rows = [f"t*{len(s)}" if len(s) > 1 else "t" for s in stages.layers]
        out.append(f"--pipeline-model-parallel-layout '{'|'.join(['E' + rows[0], *rows[1:-1], rows[-1] + 'L'])}'")
        out.append(f"--num-layers {layers.count}")
    if plan.schedule.chunks > 1:
        group = interleaved_group(plan.schedule.stages, plan.schedule.micro_batches)
        out.append(f"--microbatch-group-size-per-virtual-pipeline-stage {group}")
    if _untied(plan, layers):
        out.append("--untie-embeddings-and-output-weights")
    return out


def _untied(plan: PlanDocument, layers: Layers) -> bool:
    """Whether the product that makes logits has a weight of its own, beside the word table."""
    rows = _vocabulary(plan)
    return rows > 0 and any(
        rows in p.shape
        and any(r.slot == 1 and plan.operators[r.operator].type in PRODUCTS and r.operator not in layers.of
                for r in p.readers)
        and not any(plan.operators[r.operator].type == "Gather" for r in p.readers)
        for p in plan.parameters.values()
    )  # fmt: skip


def _vocabulary(plan: PlanDocument) -> int:
    """Rows of the largest table."""
    return max(
        (p.shape[0] for p in plan.parameters.values()
         if any(r.slot == 0 and plan.operators[r.operator].type == "Gather" for r in p.readers)),
        default=0,
    )  # fmt: skip


def _recompute(plan: PlanDocument, stages: Stages, again: Recomputed) -> list[str]:
    run = plan.schedule.run
    if run.get("recompute") == "selective":
        return ["--recompute-granularity selective"]  # the core of attention
    if run.get("recompute") == "full":  # of some layers of each chunk
        by_chunk, most = run.get("recompute_layers"), max(len(s) for s in stages.layers)
        if isinstance(by_chunk, str):  # as many in every chunk, so as many as the one that needs most
            each = max(map(int, by_chunk.split("-")))
        else:
            each = max(1, round(most * float(run["recompute_blocks"])))
        return ["--recompute-granularity full", "--recompute-method block", f"--recompute-num-layers {each}"]
    if not again.layers:
        return []
    if len(again.layers) == sum(len(s) for s in stages.layers):
        method, each = "uniform", 1
    else:
        method, each = "block", max(len(set(s) & set(again.layers)) for s in stages.layers)
    return ["--recompute-granularity full", f"--recompute-method {method}", f"--recompute-num-layers {each}"]


def _numbers(plan: PlanDocument) -> list[str]:
    out = [] if plan.schedule.precision == "fp32" else [f"--{plan.schedule.precision}"]
    out.append(f"--optimizer {'adam' if plan.schedule.optimizer == 'adam' else 'sgd'}")
    return [*out, "--sgd-momentum 0.0"] if plan.schedule.optimizer == "sgd" else out


def _lost(plan: PlanDocument, scheme: Scheme, layers: Layers) -> list[str]:
    out = []
    if scheme.shards > 1:
        out.append(
            "gradients in shards: the distributed optimizer divides its state, reduces gradients by scattering and "
            f"gathers parameters, as planned, but keeps a buffer of all gradients, {_gradients(plan, scheme)} per "
            "device; --use-megatron-fsdp --data-parallel-sharding-strategy optim_grads divides that too"
        )
    if scheme.context > 1:
        out.append(
            "which positions a rank holds: Megatron-LM deals two pieces of a sequence to each, from its beginning and "
            "its end, where the plan has one"
        )
    copies = scheme.data * scheme.context // scheme.shards
    if 1 < copies < scheme.data * scheme.context and not all(
        a in scheme.sharded for a, use in scheme.uses.items() if use == "context"
    ):
        out.append("which ranks divide parameters among them: Megatron-LM begins with context-parallel ranks")
    if scheme.context > 1 and scheme.expert > 1:
        out.append("which ranks share experts: Megatron-LM counts context-parallel ranks among them")
    if scheme.expert > 1:
        out.append(
            "how tokens reach experts, and how many each takes: --moe-token-dispatcher-type and others are yours"
        )
    rows, pad = _vocabulary(plan), 128 * scheme.tensor
    if layers.count and rows % pad:
        out.append(
            f"a vocabulary of {rows}: Megatron-LM pads it to {-(-rows // pad) * pad}, a multiple of 128 for every "
            "tensor-parallel rank (--make-vocab-size-divisible-by)"
        )
    return out


def _gradients(plan: PlanDocument, scheme: Scheme) -> str:
    """Of the first stage's parameters, in fp32, beyond one rank's shard."""
    elements = 0.0
    for p in plan.parameters.values():
        if any(plan.operators[r.operator].stage == 0 for r in p.readers):
            held = math.prod(scheme.sizes[a] for x in p.compute[:1] for d in x.dims for a in d)
            elements += math.prod(p.shape) / held * (1 - 1 / scheme.shards)
    return size_text(4 * elements)


def _lost_recompute(stages: Stages, again: Recomputed) -> list[str]:
    recomputed = [sorted(set(s) & set(again.layers)) for s in stages.layers]
    most = max(len(k) for k in recomputed)
    leading = all(k == list(s[: len(k)]) and len(k) == most for k, s in zip(recomputed, stages.layers, strict=True))
    if again.layers and not (again.exact and leading):
        return [
            f"which operators run again: Megatron-LM recomputes {most} whole layers of every stage, the first; the "
            f"plan {len(again.layers)} of {sum(len(s) for s in stages.layers)}"
            + ("" if again.exact else ", some of them in part")
        ]
    return []
