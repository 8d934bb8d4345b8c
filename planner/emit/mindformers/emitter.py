"""The sections of a MindFormers YAML that a plan decides.

Keys as mindformers 2.1 reads them: `parallel_config` and `recompute_config` in core/parallel_config.py and
modules/transformer/transformer.py (TransformerOpParallelConfig, TransformerRecomputeConfig); the numbers of samples in
trainer/base_trainer.py (_check_global_batch_size_for_auto_parallel).  Its layers divide products by columns, then by
rows, and tables by rows (tensor_parallel/layers.py); ranks count data, positions, tensors, the last next to each other,
and experts lie on neighbouring ranks of them all (device_matrix.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from planner.clock import Configuration
from planner.emit.attention import context_by
from planner.emit.batch import batch_of
from planner.emit.blocks import check_blocks
from planner.emit.degrees import lost_in_degrees, training_scheme
from planner.emit.emission import Emission
from planner.emit.hosts import Server
from planner.emit.launch import hosts_of
from planner.emit.layers import Layers, layers_of, recomputed_layers
from planner.emit.mindformers.chunks import Chunks, chunks_of
from planner.emit.mindspore.launch import launch_scripts
from planner.emit.names import plain
from planner.emit.scheme import Scheme
from planner.emit.shards import elsewhere
from planner.emit.uniform import Model, recomputes_layers
from planner.emit.wording import some
from planner.errors import InputError
from planner.planning.document import PlanDocument

__all__ = ["emit_mindformers", "unsupported"]

_TARGET: Final = "MindFormers"
_ALGORITHMS: Final = {"ring": "colossalai_cp", "all-to-all": "ulysses_cp", "gather": "colossalai_cp"}
_COLUMNS: Final = 4  # of MindFormers' own data set without attention mask: input_ids, labels, loss_mask, position_ids
_DTYPES: Final = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
_HEAD: Final = """\
# {model} on {devices} devices (mesh {mesh}{stages}).
# Made by `planner emit --target mindformers`; the plan decides, edit that.
#
# In your own YAML, which has none of these keys:   base_config: [mindformers.yaml]
# Start it:   bash run_msrun.sh run_mindformer.py --config "$PWD/YOUR.yaml"
"""


def unsupported(c: Configuration, model: Model) -> str:
    """What of a uniform configuration MindFormers cannot express; empty where it can express all of it."""
    if c.ep > 1 and c.tp * c.cp > 1:
        return "experts divided beside tensors or positions"
    if c.sequence_parallel and c.cp > 1:
        return "sequence parallelism beside context parallelism"
    if c.context == "gather":  # context_parallel_algo has one word for this and for a ring
        return "that keys and values are gathered, and not passed round"
    if 1 < c.pp > c.passes:
        return "fewer micro-batches than stages"
    if c.zero > 1 and c.dp * c.cp > 1:
        return f"ZeRO {c.zero}"
    return "" if recomputes_layers(c, by_stage=True) else f"{c.recompute} recomputation of a part"


def emit_mindformers(plan: PlanDocument, *, servers: Sequence[Server] = ()) -> Emission:
    """`servers`: from a hosts file.

    InputError where MindFormers, told the plan's degrees, would divide the model otherwise, naming what to pin.
    """
    scheme = training_scheme(plan, _TARGET)
    layers = layers_of(plan)
    check_blocks(plan, scheme, layers, _TARGET)
    _check(plan, scheme)
    chunks = chunks_of(plan, layers)
    lost = [*lost_in_degrees(plan, scheme, _TARGET, scheme.displaced("data", "expert", "context", "tensor"))]
    lost += _lost(plan, scheme, layers, chunks)
    text = _HEAD.format(
        model=plain(plan.model.name),
        devices=plan.devices,
        mesh=plan.mesh,
        stages=f", {scheme.stages} stages" if scheme.stages > 1 else "",
    ) + _yaml(_sections(plan, scheme, layers, chunks, lost))
    hosts = hosts_of(plan, servers)
    gpu = not plan.cluster.hardware.startswith("ascend")
    scripts = launch_scripts(hosts, numbers=range(hosts.per_host), gpu=gpu, table=False)
    files = {"mindformers.yaml": text.encode(), "run_msrun.sh": scripts["run_msrun.sh"].encode()}
    return Emission(files, tuple(lost))


def _check(plan: PlanDocument, scheme: Scheme) -> None:
    if scheme.expert > 1 and (scheme.tensor > 1 or scheme.context > 1):
        raise InputError(
            f"plan: experts are divided among {scheme.expert} data-parallel ranks beside {scheme.tensor} "
            f"tensor-parallel and {scheme.context} context-parallel ones; MindFormers would divide them among the "
            "latter first: pin the experts or the products on other axes, or use --target mindspore"
        )
    if scheme.sequence and scheme.context > 1:
        raise InputError(
            "plan: positions are divided by context-parallel ranks, and between products by tensor-parallel ones; "
            "MindFormers ignores use_seq_parallel where context_parallel is above 1: pin the normalisations"
        )
    if len({plan.meshes[s.mesh].mesh().shape for s in plan.stages}) > 1:
        raise InputError("plan: its stages have different meshes; MindFormers has the same degrees on all")
    passes = plan.schedule.passes
    if 1 < scheme.stages > passes:
        raise InputError(
            f"plan: {passes} micro-batches for {scheme.stages} stages; MindFormers wants at least as "
            "many as stages: search with --micro-batches"
        )


def _sections(plan: PlanDocument, scheme: Scheme, layers: Layers, chunks: Chunks, lost: list[str]) -> dict[str, Any]:
    batch = batch_of(plan, scheme)
    staged, interleaved = scheme.stages > 1, len(chunks.counts) > 1
    runner: dict[str, Any] = {"batch_size": batch.per_rank}
    if not staged:
        runner["gradient_accumulation_steps"] = plan.schedule.passes
    config: dict[str, Any] = {
        "data_parallel": scheme.data,
        "model_parallel": scheme.tensor,
        "context_parallel": scheme.context,
        "expert_parallel": scheme.expert,
        "pipeline_stage": scheme.stages,
        "micro_batch_num": plan.schedule.passes if staged else 1,
        "use_seq_parallel": scheme.sequence,
        "vocab_emb_dp": False,  # its mcore models know no other: parallel_core/transformer_config.py
        "gradient_aggregation_group": 4,  # its default: how many all-reduces are fused is none of the plan's
    }
    if scheme.context > 1:
        config["context_parallel_algo"] = _ALGORITHMS[context_by(plan, scheme)]
    parallel: dict[str, Any] = {
        "parallel_mode": 1,
        "gradients_mean": False,  # the loss is a mean over the whole batch already
        "full_batch": False,
        "dataset_strategy": [[scheme.data, 1]] * _COLUMNS,
        "enable_alltoall": scheme.expert > 1,
        "enable_parallel_optimizer": scheme.shards > 1,
    }
    if scheme.shards > 1:
        parallel["parallel_optimizer_config"] = {
            "gradient_accumulation_shard": False,
            "parallel_optimizer_threshold": 0,
            "optimizer_weight_shard_size": scheme.shards,
        }
    if interleaved:
        parallel["pipeline_config"] = {"pipeline_interleave": True, "pipeline_scheduler": "1f1b"}
    model: dict[str, Any] = {"compute_dtype": _DTYPES[plan.schedule.precision]}
    if staged:
        model["offset"] = chunks.offset()
    if interleaved:
        model["pp_interleave_num"] = len(chunks.counts)
    return {
        "use_parallel": True,
        "use_legacy": False,
        "runner_config": runner,
        "parallel_config": config,
        "micro_batch_interleave_num": plan.schedule.copies,
        "parallel": parallel,
        "recompute_config": {
            "recompute": _recompute(plan, layers, chunks, lost),
            "select_recompute": False,
            "parallel_optimizer_comm_recompute": False,
            "mp_comm_recompute": True,
        },
        "model": {"model_config": model},
    }


def _recompute(plan: PlanDocument, layers: Layers, chunks: Chunks, lost: list[str]) -> bool | list[list[int]]:
    by_chunk = plan.schedule.run.get("recompute_layers")
    if isinstance(by_chunk, str):  # of the first layers of each
        flat, stages = [int(n) for n in by_chunk.split("-")], plan.schedule.stages
        return [flat[k : k + stages] for k in range(0, len(flat), stages)]
    if not plan.schedule.recompute:
        return False
    again = recomputed_layers(plan, layers)
    counts, first = chunks.first(again.layers)
    if not again.exact:
        lost.append(f"what of {len(again.layers)} layers is recomputed: MindFormers does so with whole layers")
    if not first:
        lost.append(
            f"which layers are recomputed ({some([str(k) for k in again.layers])}): MindFormers takes the first of "
            "every stage, as many as the plan has there"
        )
    return counts


def _lost(plan: PlanDocument, scheme: Scheme, layers: Layers, chunks: Chunks) -> list[str]:
    out = [
        f"the data set's columns: dataset_strategy has {_COLUMNS}, as MindFormers' own without attention mask; give as "
        "many as yours has, the first number being data_parallel"
    ]
    if chunks.moved:
        out.append(
            "where stages begin: MindFormers cuts between layers, and keeps what comes before and behind them on the "
            f"first and last stage; moved, with their memory and time: {some(chunks.moved)}"
        )
    positions = [
        n
        for n, p in plan.parameters.items()
        if len(p.shape) == 2 and all(r.operator not in layers.of for r in p.readers)
        if scheme.cuts[n] == "whole" and all(plan.operators[r.operator].type in ("Add", "Gather") for r in p.readers)
    ]
    if scheme.tensor > 1 and positions:
        out.append(f"tables that are whole ({some(positions)}): MindFormers divides those of positions by rows as well")
    if scheme.shards > 1:
        out.append("which dimension of a parameter the optimizer's shards cut: MindSpore cuts the first as it holds it")
        moved = elsewhere(plan)
        if moved:
            out.append(
                f"which ranks share {len(moved)} parameters ({some(moved)}): MindSpore takes the innermost of those "
                "that compute with equal parts, groups of the same size"
            )
    if scheme.expert > 1:
        out.append("how tokens reach experts: MindFormers has its own dispatchers (moe_token_dispatcher_type)")
    if scheme.context > 1:
        out.append("the collectives inside attention over divided positions: those of context_parallel_algo")
    if plan.schedule.optimizer != "adam":
        out.append(f"the optimizer ({plan.schedule.optimizer}): set optimizer.type yourself, its state was planned for")
    return out


def _yaml(value: Mapping[str, Any], indent: str = "") -> str:
    """Nested mappings of plain values; lists on one line."""
    out = []
    for key, v in value.items():
        if isinstance(v, dict):
            out.append(f"{indent}{key}:\n{_yaml(v, indent + '  ')}")
        else:
            out.append(f"{indent}{key}: {str(v).lower() if isinstance(v, bool) else v}\n")
    return "".join(out)
