"""gpt-recompute on 4 devices (mesh dp=4), laid out by HyperParallel.

    mesh = device_mesh()   # in every process of the job
    module = parallelize(module, mesh)
    save_layout("checkpoint", rank)   # rankN.layout, beside what the rank saves

Inputs of the module are DTensors of HyperParallel; `shard_module` converts them as INPUTS says.
Where ranks compute the same loss, divide it by their number (layout.repeat_num()): hsdp adds all their gradients.
Made by `planner emit --target hyper-parallel`; the plan decides, edit that.
"""

import json
from pathlib import Path

from hyper_parallel import hsdp, init_device_mesh, shard_module
from hyper_parallel.core.shard.sharding_plan import ShardingPlan

try:
    from hyper_parallel.core.dtensor.placement_types import Partial, Replicate, Shard
except ImportError:  # before 2026-04
    from hyper_parallel.core.placement_types import Partial, Replicate, Shard

SIZES = (4,)
AXES = ('dp',)

# By pipeline stage: parameter, or `<module>.input` and `<module>.output`, -> placement for every axis of the mesh.
PARAMETERS = [{'transformer.wte.weight': ('replicate',),
  'transformer.wpe.weight': ('replicate',),
  'transformer.h.0.ln_1.weight': ('replicate',),
  'transformer.h.0.ln_1.bias': ('replicate',),
  'transformer.h.0.attn.c_attn.weight': ('replicate',),
  'transformer.h.0.attn.c_attn.bias': ('replicate',),
  'transformer.h.0.attn.c_proj.weight': ('replicate',),
  'transformer.h.0.attn.c_proj.bias': ('replicate',),
  'transformer.h.0.ln_2.weight': ('replicate',),
  'transformer.h.0.ln_2.bias': ('replicate',),
  'transformer.h.0.mlp.c_fc.weight': ('replicate',),
  'transformer.h.0.mlp.c_fc.bias': ('replicate',),
  'transformer.h.0.mlp.c_proj.weight': ('replicate',),
  'transformer.h.0.mlp.c_proj.bias': ('replicate',),
  'transformer.h.1.ln_1.weight': ('replicate',),
  'transformer.h.1.ln_1.bias': ('replicate',),
  'transformer.h.1.attn.c_attn.weight': ('replicate',),
  'transformer.h.1.attn.c_attn.bias': ('replicate',),
  'transformer.h.1.attn.c_proj.weight': ('replicate',),
  'transformer.h.1.attn.c_proj.bias': ('replicate',),
  'transformer.h.1.ln_2.weight': ('replicate',),
  'transformer.h.1.ln_2.bias': ('replicate',),
  'transformer.h.1.mlp.c_fc.weight': ('replicate',),
  'transformer.h.1.mlp.c_fc.bias': ('replicate',),
  'transformer.h.1.mlp.c_proj.weight': ('replicate',),
  'transformer.h.1.mlp.c_proj.bias': ('replicate',),
  'transformer.ln_f.weight': ('replicate',),
  'transformer.ln_f.bias': ('replicate',)}]

INPUTS = [{'input': [('shard(0)',), ('shard(0)',)],
  'transformer.wte.input': [('shard(0)',)],
  'transformer.h.0.ln_1.input': [('shard(0)',)],
  'transformer.h.0.attn.c_attn.input': [('shard(0)',)],
  'transformer.h.0.attn.c_proj.input': [('shard(0)',)],
  'transformer.h.0.ln_2.input': [('shard(0)',)],
  'transformer.h.0.mlp.c_fc.input': [('shard(0)',)],
  'transformer.h.0.mlp.c_proj.input': [('shard(0)',)],
  'transformer.h.1.ln_1.input': [('shard(0)',)],
  'transformer.h.1.attn.c_attn.input': [('shard(0)',)],
  'transformer.h.1.attn.c_proj.input': [('shard(0)',)],
  'transformer.h.1.ln_2.input': [('shard(0)',)],
  'transformer.h.1.mlp.c_fc.input': [('shard(0)',)],
  'transformer.h.1.mlp.c_proj.input': [('shard(0)',)],
  'transformer.ln_f.input': [('shard(0)',)],
  'lm_head.input': [('shard(0)',)]}]

OUTPUTS = [{'transformer.wte.output': ('shard(0)',),
  'transformer.h.0.ln_1.output': ('shard(0)',),
  'transformer.h.0.attn.c_attn.output': ('shard(0)',),
  'transformer.h.0.attn.c_proj.output': ('shard(0)',),
  'transformer.h.0.ln_2.output': ('shard(0)',),
  'transformer.h.0.mlp.c_fc.output': ('shard(0)',),
  'transformer.h.0.mlp.c_proj.output': ('shard(0)',),
  'transformer.h.1.ln_1.output': ('shard(0)',),
  'transformer.h.1.attn.c_attn.output': ('shard(0)',),
  'transformer.h.1.attn.c_proj.output': ('shard(0)',),
  'transformer.h.1.ln_2.output': ('shard(0)',),
  'transformer.h.1.mlp.c_fc.output': ('shard(0)',),
  'transformer.h.1.mlp.c_proj.output': ('shard(0)',),
  'transformer.ln_f.output': ('shard(0)',),
  'lm_head.output': ('shard(0)',)}]


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
    # Gradients are summed over the ranks with equal parts; weights, gradients and optimizer state are kept
    # by 4 of them in parts, weights being gathered once for the step.
    hsdp(module, shard_size=4, threshold=0, optimizer_level="level2")
    return module


def save_layout(folder, rank, stage=0):
    """The file of one rank, as HyperParallel's checkpoints have it; ranks of a stage differ in their number alone."""
    first = str(stage * 4)
    told = json.loads(Path(__file__).with_name(f"rank{first}.layout").read_text(encoding="utf-8"))
    Path(folder, f"rank{rank}.layout").write_text(json.dumps({str(rank): told[first]}), encoding="utf-8")
