"""llama-megatron on 8 devices (mesh dp=2 x tp=2), laid out by HyperParallel.

    mesh = device_mesh()   # in every process of the job
    module = parallelize(module, mesh, stage)
    save_layout("checkpoint", rank, stage)   # rankN.layout, beside what the rank saves

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

SIZES = (2, 2)
AXES = ('dp', 'tp')

# By pipeline stage: parameter, or `<module>.input` and `<module>.output`, -> placement for every axis of the mesh.
PARAMETERS = [{'model.embed_tokens.weight': ('replicate', 'shard(0)'),
  'model.layers.0.input_layernorm.weight': ('replicate', 'replicate'),
  'model.layers.0.self_attn.q_proj.weight': ('replicate', 'shard(1)'),
  'model.layers.0.self_attn.k_proj.weight': ('replicate', 'shard(1)'),
  'model.layers.0.self_attn.v_proj.weight': ('replicate', 'shard(1)'),
  'model.layers.0.self_attn.o_proj.weight': ('replicate', 'shard(0)'),
  'model.layers.0.post_attention_layernorm.weight': ('replicate', 'replicate'),
  'model.layers.0.mlp.gate_proj.weight': ('replicate', 'shard(1)'),
  'model.layers.0.mlp.up_proj.weight': ('replicate', 'shard(1)'),
  'model.layers.0.mlp.down_proj.weight': ('replicate', 'shard(0)')},
 {'model.layers.1.input_layernorm.weight': ('replicate', 'replicate'),
  'model.layers.1.self_attn.q_proj.weight': ('replicate', 'shard(1)'),
  'model.layers.1.self_attn.k_proj.weight': ('replicate', 'shard(1)'),
  'model.layers.1.self_attn.v_proj.weight': ('replicate', 'shard(1)'),
  'model.layers.1.self_attn.o_proj.weight': ('replicate', 'shard(0)'),
  'model.layers.1.post_attention_layernorm.weight': ('replicate', 'replicate'),
  'model.layers.1.mlp.gate_proj.weight': ('replicate', 'shard(1)'),
  'model.layers.1.mlp.up_proj.weight': ('replicate', 'shard(1)'),
  'model.layers.1.mlp.down_proj.weight': ('replicate', 'shard(0)'),
  'model.norm.weight': ('replicate', 'replicate'),
  'lm_head.weight': ('replicate', 'shard(1)')}]

INPUTS = [{'input': [('shard(0)', 'replicate'), ('shard(0)', 'replicate')],
  'model.embed_tokens.input': [('shard(0)', 'replicate')],
  'model.layers.0.input_layernorm.input': [('shard(0)', 'shard(1)')],
  'model.layers.0.self_attn.q_proj.input': [('shard(0)', 'replicate')],
  'model.layers.0.self_attn.k_proj.input': [('shard(0)', 'replicate')],
  'model.layers.0.self_attn.v_proj.input': [('shard(0)', 'replicate')],
  'model.layers.0.self_attn.o_proj.input': [('shard(0)', 'shard(2)')],
  'model.layers.0.post_attention_layernorm.input': [('shard(0)', 'shard(1)')],
  'model.layers.0.mlp.gate_proj.input': [('shard(0)', 'replicate')],
  'model.layers.0.mlp.up_proj.input': [('shard(0)', 'replicate')],
  'model.layers.0.mlp.down_proj.input': [('shard(0)', 'shard(2)')]},
 {'model.layers.1.input_layernorm.input': [('shard(0)', 'shard(1)')],
  'model.layers.1.self_attn.q_proj.input': [('shard(0)', 'replicate')],
  'model.layers.1.self_attn.k_proj.input': [('shard(0)', 'replicate')],
  'model.layers.1.self_attn.v_proj.input': [('shard(0)', 'replicate')],
  'model.layers.1.self_attn.o_proj.input': [('shard(0)', 'shard(2)')],
  'model.layers.1.post_attention_layernorm.input': [('shard(0)', 'shard(1)')],
  'model.layers.1.mlp.gate_proj.input': [('shard(0)', 'replicate')],
  'model.layers.1.mlp.up_proj.input': [('shard(0)', 'replicate')],
  'model.layers.1.mlp.down_proj.input': [('shard(0)', 'shard(2)')],
  'model.norm.input': [('shard(0)', 'shard(1)')],
  'lm_head.input': [('shard(0)', 'replicate')]}]

OUTPUTS = [{'model.embed_tokens.output': ('shard(0)', 'shard(1)'),
  'model.layers.0.input_layernorm.output': ('shard(0)', 'replicate'),
  'model.layers.0.self_attn.q_proj.output': ('shard(0)', 'shard(2)'),
  'model.layers.0.self_attn.k_proj.output': ('shard(0)', 'shard(2)'),
  'model.layers.0.self_attn.v_proj.output': ('shard(0)', 'shard(2)'),
  'model.layers.0.self_attn.o_proj.output': ('shard(0)', 'shard(1)'),
  'model.layers.0.post_attention_layernorm.output': ('shard(0)', 'replicate'),
  'model.layers.0.mlp.gate_proj.output': ('shard(0)', 'shard(2)'),
  'model.layers.0.mlp.up_proj.output': ('shard(0)', 'shard(2)'),
  'model.layers.0.mlp.down_proj.output': ('shard(0)', 'shard(1)')},
 {'model.layers.1.input_layernorm.output': ('shard(0)', 'replicate'),
  'model.layers.1.self_attn.q_proj.output': ('shard(0)', 'shard(2)'),
  'model.layers.1.self_attn.k_proj.output': ('shard(0)', 'shard(2)'),
  'model.layers.1.self_attn.v_proj.output': ('shard(0)', 'shard(2)'),
  'model.layers.1.self_attn.o_proj.output': ('shard(0)', 'shard(1)'),
  'model.layers.1.post_attention_layernorm.output': ('shard(0)', 'replicate'),
  'model.layers.1.mlp.gate_proj.output': ('shard(0)', 'shard(2)'),
  'model.layers.1.mlp.up_proj.output': ('shard(0)', 'shard(2)'),
  'model.layers.1.mlp.down_proj.output': ('shard(0)', 'shard(1)'),
  'model.norm.output': ('shard(0)', 'replicate'),
  'lm_head.output': ('shard(0)', 'shard(2)')}]


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
    # by 2 of them in parts, weights being gathered once for the step.
    hsdp(module, shard_size=2, threshold=0, optimizer_level="level2")
    return module


def save_layout(folder, rank, stage=0):
    """The file of one rank, as HyperParallel's checkpoints have it; ranks of a stage differ in their number alone."""
    first = str(stage * 4)
    told = json.loads(Path(__file__).with_name(f"rank{first}.layout").read_text(encoding="utf-8"))
    Path(folder, f"rank{rank}.layout").write_text(json.dumps({str(rank): told[first]}), encoding="utf-8")
