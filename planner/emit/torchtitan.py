"""torchtitan: a plan as a Python module that sets the parallelism of a job's `Trainer.Config`.

Fields: torchtitan `config/configs.py`, of release 0.3 (batches in samples) and of the main branch after it (batches in
tokens); ranks `distributed/parallel_dims.py`, layouts `models/common/decoder_sharding.py`, recomputation
`distributed/activation_checkpoint.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from string import Template
from typing import Any, Final

from planner.clock import Configuration
from planner.cost_models.pipeline import interleaved_group
from planner.emit.batch import Batch, batch_of
from planner.emit.blocks import check_blocks
from planner.emit.degrees import lost_in_degrees, lost_in_stages, training_scheme, zero_level
from planner.emit.emission import Emission
from planner.emit.hosts import Server
from planner.emit.launch import hosts_of, launch_scripts
from planner.emit.layers import Recomputed, Stages, layers_of, recomputed_layers, stage_layers
from planner.emit.names import plain
from planner.emit.scheme import Scheme
from planner.emit.uniform import Model, recomputes_layers
from planner.errors import InputError
from planner.planning.document import PlanDocument

__all__ = ["emit_torchtitan", "unsupported"]

_TARGET: Final = "torchtitan"
# Names of torch.distributed.pipelining; parts of the model are handed out as the class of each wants them.
_SCHEDULES: Final = {"1f1b": "1F1B", "gpipe": "GPipe", "interleaved": "Interleaved1F1B", "zb-v": "ZBVZeroBubble"}

_MODULE: Final = Template('''"""$model on $devices devices (mesh $mesh): the parallelism of a torchtitan job.

    TITAN_MODEL=llama3 TITAN_CONFIG=llama3_8b bash run_torchtitan.sh

takes that model's own configuration and sets what the plan decides; or, in a configuration of yours,

    from planner_torchtitan import apply
    def my_job():
        return apply(llama3_8b())

For torchtitan 0.3, and the main branch after it.  Made by `planner emit --target torchtitan`; the plan decides, edit
that.
"""

import importlib
import os

PARALLELISM = $parallelism

TRAINING = $training

SAMPLES = $samples  # a step, of all ranks
MICRO_BATCHES = $micro_batches  # of every data-parallel rank
MICRO_BATCH = $micro_batch  # samples each
POSITIONS = $positions  # of a sample
RECOMPUTE = $recompute  # every layer, in the backward pass


def apply(config):
    """Sets parallelism, batch and recomputation of a Trainer.Config, and returns it.

    AttributeError where this torchtitan lacks a field.
    """
    for field, value in PARALLELISM.items():
        setattr(config.parallelism, field, value)
    for field, value in TRAINING.items():
        setattr(config.training, field, value)
    pipelined = PARALLELISM["pipeline_parallel_degree"] > 1
    if hasattr(config.training, "local_batch_size"):  # 0.3: samples
        config.training.seq_len = POSITIONS
        config.training.global_batch_size = SAMPLES
        config.training.local_batch_size = MICRO_BATCH * (MICRO_BATCHES if pipelined else 1)
        config.parallelism.pipeline_parallel_microbatch_size = MICRO_BATCH
    else:  # after it: tokens
        config.training.max_context_length = POSITIONS
        config.training.num_tokens_per_train_step = SAMPLES * POSITIONS
        config.training.num_tokens_per_microbatch_per_dp_rank = MICRO_BATCH * POSITIONS
        config.parallelism.num_pp_microbatches = MICRO_BATCHES if pipelined else 1
    config.activation_checkpoint = None
    if RECOMPUTE:
        from torchtitan.distributed.activation_checkpoint import FullAC

        config.activation_checkpoint = FullAC.Config()
    return config


def planned():
    """The configuration TITAN_CONFIG of TITAN_MODEL, with the plan."""
    model = os.environ["TITAN_MODEL"]
    path = model if "." in model else f"torchtitan.models.{model}.config_registry"
    return apply(getattr(importlib.import_module(path), os.environ["TITAN_CONFIG"])())
''')

_RUN: Final = """#!/bin/bash
# usage: TITAN_MODEL=llama3 TITAN_CONFIG=llama3_8b [LAUNCHER=run_mpirun.sh] bash run_torchtitan.sh [OPTION…]
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
: "${TITAN_MODEL:?name a model of torchtitan, as llama3}" "${TITAN_CONFIG:?name its configuration, as llama3_8b}"
export PYTHONPATH="$here${PYTHONPATH:+:$PYTHONPATH}" TITAN_MODEL TITAN_CONFIG
export FORWARD="PYTHONPATH TITAN_MODEL TITAN_CONFIG ${FORWARD:-}"
exec bash "$here/${LAUNCHER:-run_torchrun.sh}" -m torchtitan.train --module planner_torchtitan --config planned "$@"
"""


def unsupported(c: Configuration, model: Model) -> str:
    """What of a uniform configuration torchtitan cannot express; empty where it can express all of it."""
    if not model.tokens:
        return "inputs that are no matrix of tokens"
    if c.precision == "fp16":
        return "fp16"
    if c.cp * c.ep > 1 and not c.zero:
        return "context or expert parallelism without ZeRO"
    if c.exchanges_heads:
        return "attention that exchanges heads among context-parallel ranks"
    if c.context == "gather":  # what rotates keys and values is torch's own choice
        return "that keys and values are gathered, and not passed round"
    if c.ep > 1 and c.tp > 1:
        return "experts and tensors divided"
    if c.pp > 1 and model.tied:
        return "tied weights in a pipeline"
    if c.order == "interleaved" and _rounds(c.micro_batches, c.pp) is None:
        return f"{c.micro_batches} micro-batches through {c.pp} stages, interleaved"
    if not recomputes_layers(c):
        return f"{c.recompute} recomputation of a part"
    return _unsupported_zero(c)


def _unsupported_zero(c: Configuration) -> str:
    """A pipeline gathers parameters once and adds gradients up until the step ends; without one, fully_shard scatters
    gradients in every pass, and gathers parameters for each (`distributed/pipeline_parallel.py`)."""
    if c.dp * c.cp == 1 or c.zero == 0:
        return ""
    if c.pp > 1:
        return "" if c.zero == 1 else f"ZeRO {c.zero} in a pipeline"
    return "" if c.zero == 3 or c.micro_batches == 1 else f"ZeRO {c.zero} under accumulation"


def emit_torchtitan(plan: PlanDocument, *, servers: Sequence[Server] = ()) -> Emission:
    """`servers`: from a hosts file.

    InputError where torchtitan would lay the model out otherwise than the plan, naming what to pin.
    """
    scheme = training_scheme(plan, _TARGET)
    layers = layers_of(plan)
    check_blocks(plan, scheme, layers, _TARGET)
    batch = batch_of(plan, scheme)
    _check(plan, scheme)
    stages = stage_layers(plan, layers, _TARGET)
    again = recomputed_layers(plan, layers)
    module = _MODULE.substitute(
        model=plain(plan.model.name),
        devices=plan.devices,
        mesh=str(plan.mesh),
        parallelism=_literal(
            _parallelism(scheme, stages, plan.schedule.pass_order, freed=zero_level(plan, scheme) == 3)
        ),
        training=_literal(_training(plan, scheme)),
        samples=batch.total,
        micro_batches=batch.micro_batches,
        micro_batch=batch.per_rank,
        positions=_positions(batch),
        recompute=bool(again.layers),
    )
    files = {
        "planner_torchtitan.py": module.encode(),
        "run_torchtitan.sh": _RUN.encode(),
        **launch_scripts(hosts_of(plan, servers)),
    }
    displaced = scheme.displaced("data", "shards", "expert", "context", "tensor")
    lost = [
        *lost_in_degrees(plan, scheme, _TARGET, displaced),
        *lost_in_stages(stages, _TARGET),
        *_lost(plan, scheme, stages, again),
    ]
    return Emission(files, tuple(lost))


def _literal(fields: Mapping[str, Any]) -> str:
    return "{\n" + "".join(f"    {name!r}: {value!r},\n" for name, value in fields.items()) + "}"


def _positions(batch: Batch) -> int:
    if batch.positions is None:
        raise InputError(
            "plan: its first input is no matrix of tokens, samples by positions, and torchtitan trains on these alone: "
            "use --target torch"
        )
    return batch.positions


def _check(plan: PlanDocument, scheme: Scheme) -> None:
    if plan.schedule.precision == "fp16":
        raise InputError("plan: computes in fp16, and torchtitan in bf16 or fp32: search with --precision bf16")
    for axis, use in scheme.uses.items():
        if use not in ("context", "expert") or scheme.sizes[axis] == 1 or axis in scheme.sharded:
            continue
        first = next(iter(plan.parameters), None)
        named = "there are none" if first is None else f"{first}, …"
        raise InputError(
            f"plan: axis {axis} is {use} parallel, and parameters are whole over it ({named}); torchtitan takes the "
            f"ranks of {use} parallelism from those that divide parameters: pin `stored` over {axis}, or rest=zero"
        )
    if scheme.expert > 1 and scheme.tensor > 1:
        raise InputError(
            f"plan: experts over {scheme.expert} ranks, and weights over {scheme.tensor}; torchtitan divides experts "
            "among tensor-parallel ranks as well, and never their columns: pin a mesh with one of the two, or use "
            "--target megatron"
        )
    if plan.schedule.order == "interleaved":
        _check_rounds(scheme)
    if scheme.stages > 1:
        for name, p in plan.parameters.items():
            if len({plan.chunk(r.operator) for r in p.readers}) > 1:
                readers = " and ".join(r.operator for r in p.readers)
                raise InputError(
                    f"plan: parameter {name} is read in several stages, or chunks of them ({readers}); torchtitan has "
                    "no tied weights in a pipeline: search without --stages, or use --target megatron"
                )


def _check_rounds(scheme: Scheme) -> None:
    """torch's Interleaved1F1B cuts micro-batches into m // p equal rounds, each of which goes through one chunk before
    the next; the plan's groups are Megatron-LM's."""
    count, stages = scheme.micro_batches, scheme.stages
    if _rounds(count, stages) is None:
        raise InputError(
            f"plan: {count} micro-batches through {stages} stages with several chunks each; torch interleaves a number "
            f"that {max(1, count // stages)} rounds divide, as a multiple of {stages}: search with another micro_batch "
            "or --batch"
        )


def _rounds(count: int, stages: int) -> int | None:
    """None where torch does not have the groups of Megatron-LM."""
    rounds = max(1, count // stages)
    return None if count % rounds or count // rounds != interleaved_group(stages, count) else rounds


def _parallelism(scheme: Scheme, stages: Stages, order: str, *, freed: bool) -> dict[str, Any]:
    divided = scheme.shards // scheme.context if scheme.shards > 1 else 1
    out: dict[str, Any] = {
        "data_parallel_replicate_degree": scheme.data // divided,
        "data_parallel_shard_degree": divided,
        # Gathered once and kept for the backward pass, unless the plan has ZeRO 3.
        "fsdp_reshard_after_forward": "always" if freed else "never",
        "tensor_parallel_degree": scheme.tensor,
        "enable_sequence_parallel": scheme.sequence,
        "context_parallel_degree": scheme.context,
        "expert_parallel_degree": scheme.expert,
        "pipeline_parallel_degree": scheme.stages,
    }
    if scheme.context > 1:
        out["context_parallel_load_balancer"] = None  # contiguous positions, as in the plan
    if scheme.stages > 1:
        parts = [[f"layers.{k}" for k in s] for s in stages.layers]
        parts[0] = ["tok_embeddings", *parts[0]]
        parts[-1] = [*parts[-1], "norm", "lm_head"]
        out |= {
            "pipeline_parallel_schedule": _SCHEDULES[order],
            "pipeline_parallel_layers_per_stage": None,
            "module_fqns_per_model_part": parts,
        }
    return out


def _training(plan: PlanDocument, scheme: Scheme) -> dict[str, Any]:
    number = "float32" if plan.schedule.precision == "fp32" else "bfloat16"
    out: dict[str, Any] = {"mixed_precision_param": number}
    if scheme.stages > 1 or scheme.expert > 1:
        out["disable_cuda_graphs"] = True  # which torchtitan has for neither
    return out


def _lost(plan: PlanDocument, scheme: Scheme, stages: Stages, again: Recomputed) -> list[str]:
    out = []
    if scheme.micro_batches > 1 and scheme.shards > 1 and scheme.stages == 1 and zero_level(plan, scheme) < 3:
        out.append(
            "parameters gathered once a step: torchtitan frees them after every backward pass and gathers them for "
            f"each of the {scheme.micro_batches} micro-batches"
        )
    every = sum(len(s) for s in stages.layers)
    if again.layers and not (again.exact and len(again.layers) == every):
        out.append(
            f"which operators run again: FullAC recomputes all {every} layers, the plan {len(again.layers)}"
            + ("" if again.exact else ", some of them in part")
        )
    if scheme.context > 1:
        out.append("attention among context-parallel ranks: torchtitan gathers keys and values for every layer")
    if scheme.expert > 1:
        out.append("how tokens reach experts, and how many each takes: the model's token dispatcher decides")
    if plan.schedule.optimizer != "adam":
        out.append(f"the optimizer, {plan.schedule.optimizer}: set config.optimizer; torchtitan's own is AdamW")
    return out
