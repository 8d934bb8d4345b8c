"""Parallel settings of llama-megatron on 8 devices (mesh 2x2).

Before the network is compiled, after init():

    model = mindspore.Model(parallel(network), optimizer=optimizer)

and, of operators whose strategies the file cannot name, those that are to have theirs:

    shard({"model.layers.1.input_layernorm.mul_1": network.that_operator})

Made by `planner emit --target mindspore`; the plan decides, edit that.
"""

from pathlib import Path

import mindspore
from mindspore.parallel import Layout
from mindspore.parallel.auto_parallel import AutoParallel
from mindspore.parallel.nn import MicroBatchInterleaved, Pipeline

DEVICES = 8
# By stage; strategy_merged.ckpt is of all, for checkpoints.
STRATEGY_FILES = [str(Path(__file__).resolve().with_name(f"strategy_stage{s}.ckpt")) for s in range(2)]
MESH = Layout((2, 2), ('x', 'y'))

# Operator of the ONNX graph -> how its operands lie: the axes of MESH that split each dimension.  With `:bias` behind
# it: the sum that adds the operator's bias.
STRATEGIES = {'model.layers.1.input_layernorm.mul_1': (('x', 'y', 'None'), ('None',)),
 'model.layers.1.self_attn.q_proj.matmul': (('x', 'None'), ('None', 'y')),
 'model.layers.1.self_attn.k_proj.matmul': (('x', 'None'), ('None', 'y')),
 'model.layers.1.self_attn.v_proj.matmul': (('x', 'None'), ('None', 'y')),
 'model.layers.1.self_attn.o_proj.matmul': (('x', 'y'), ('y', 'None')),
 'model.layers.1.post_attention_layernorm.mul_1': (('x', 'y', 'None'), ('None',)),
 'model.layers.1.mlp.gate_proj.matmul': (('x', 'None'), ('None', 'y')),
 'model.layers.1.mlp.up_proj.matmul': (('x', 'None'), ('None', 'y')),
 'model.layers.1.mlp.down_proj.matmul': (('x', 'y'), ('y', 'None')),
 'model.norm.mul_1': (('x', 'y', 'None'), ('None',)),
 'lm_head.matmul': (('x', 'None'), ('None', 'y')),
 'model.embed_tokens.gather': (('y', 'None'), ('x', 'None')),
 'model.layers.0.input_layernorm.mul_1': (('x', 'y', 'None'), ('None',)),
 'model.layers.0.self_attn.q_proj.matmul': (('x', 'None'), ('None', 'y')),
 'model.layers.0.self_attn.k_proj.matmul': (('x', 'None'), ('None', 'y')),
 'model.layers.0.self_attn.v_proj.matmul': (('x', 'None'), ('None', 'y')),
 'model.layers.0.self_attn.o_proj.matmul': (('x', 'y'), ('y', 'None')),
 'model.layers.0.post_attention_layernorm.mul_1': (('x', 'y', 'None'), ('None',)),
 'model.layers.0.mlp.gate_proj.matmul': (('x', 'None'), ('None', 'y')),
 'model.layers.0.mlp.up_proj.matmul': (('x', 'None'), ('None', 'y')),
 'model.layers.0.mlp.down_proj.matmul': (('x', 'y'), ('y', 'None')),
 'model.layers.0.input_layernorm.mul': (('x', 'y', 'None'), ('x', 'y', 'None')),
 'model.layers.0.input_layernorm.reducemean': (('x', 'y', 'None'),),
 'model.layers.0.input_layernorm.add': (('x', 'y', 'None'), ()),
 'model.layers.0.input_layernorm.sqrt': (('x', 'y', 'None'),),
 'model.layers.0.input_layernorm.div': (('x', 'y', 'None'), ('x', 'y', 'None')),
 'model.layers.0.self_attn.reshape': (('x', 'None', 'y'),),
 'model.layers.0.self_attn.transpose': (('x', 'None', 'y', 'None'),),
 'model.layers.0.self_attn.reshape_1': (('x', 'None', 'y'),),
 'model.layers.0.self_attn.transpose_1': (('x', 'None', 'y', 'None'),),
 'model.layers.0.self_attn.reshape_2': (('x', 'None', 'y'),),
 'model.layers.0.self_attn.transpose_2': (('x', 'None', 'y', 'None', 'None'),),
 'model.layers.0.self_attn.split': (('x', 'y', 'None', 'None', 'None'),),
 'model.layers.0.self_attn.neg': (('x', 'y', 'None', 'None', 'None'),),
 'model.layers.0.self_attn.concat': (('x', 'y', 'None', 'None', 'None'), ('x', 'y', 'None', 'None', 'None')),
 'model.layers.0.self_attn.mul': (('x', 'y', 'None', 'None', 'None'), ('None', 'None')),
 'model.layers.0.self_attn.mul_1': (('x', 'y', 'None', 'None', 'None'), ('None', 'None')),
 'model.layers.0.self_attn.add': (('x', 'y', 'None', 'None', 'None'), ('x', 'y', 'None', 'None', 'None')),
 'model.layers.0.self_attn.split_2': (('x', 'y', 'None', 'None'),),
 'model.layers.0.self_attn.neg_1': (('x', 'y', 'None', 'None'),),
 'model.layers.0.self_attn.concat_1': (('x', 'y', 'None', 'None'), ('x', 'y', 'None', 'None')),
 'model.layers.0.self_attn.mul_2': (('x', 'y', 'None', 'None'), ('None', 'None')),
 'model.layers.0.self_attn.mul_3': (('x', 'y', 'None', 'None'), ('None', 'None')),
 'model.layers.0.self_attn.add_1': (('x', 'y', 'None', 'None'), ('x', 'y', 'None', 'None')),
 'model.layers.0.self_attn.unsqueeze': (('x', 'y', 'None', 'None'),),
 'model.layers.0.self_attn.unsqueeze_1': (('x', 'y', 'None', 'None'),),
 'model.layers.0.self_attn.transpose_3': (('x', 'y', 'None', 'None', 'None'),),
 'model.layers.0.self_attn.matmul': (('x', 'y', 'None', 'None', 'None'), ('x', 'y', 'None', 'None', 'None')),
 'model.layers.0.self_attn.mul_4': (('x', 'y', 'None', 'None', 'None'), ()),
 'model.layers.0.self_attn.where': (('None', 'None'), ('x', 'y', 'None', 'None', 'None'), ()),
 'model.layers.0.self_attn.softmax': (('x', 'y', 'None', 'None', 'None'),),
 'model.layers.0.self_attn.matmul_1': (('x', 'y', 'None', 'None', 'None'), ('x', 'y', 'None', 'None', 'None')),
 'model.layers.0.self_attn.transpose_4': (('x', 'y', 'None', 'None', 'None'),),
 'model.layers.0.self_attn.reshape_3': (('x', 'None', 'y', 'None', 'None'),),
 'model.layers.0.self_attn.add_2': (('x', 'y', 'None'), ('x', 'y', 'None')),
 'model.layers.0.post_attention_layernorm.mul': (('x', 'y', 'None'), ('x', 'y', 'None')),
 'model.layers.0.post_attention_layernorm.reducemean': (('x', 'y', 'None'),),
 'model.layers.0.post_attention_layernorm.add': (('x', 'y', 'None'), ()),
 'model.layers.0.post_attention_layernorm.sqrt': (('x', 'y', 'None'),),
 'model.layers.0.post_attention_layernorm.div': (('x', 'y', 'None'), ('x', 'y', 'None')),
 'model.layers.0.mlp.sigmoid': (('x', 'None', 'y'),),
 'model.layers.0.mlp.mul': (('x', 'None', 'y'), ('x', 'None', 'y')),
 'model.layers.0.mlp.mul_1': (('x', 'None', 'y'), ('x', 'None', 'y')),
 'model.layers.0.add': (('x', 'y', 'None'), ('x', 'y', 'None')),
 'model.layers.1.input_layernorm.mul': (('x', 'y', 'None'), ('x', 'y', 'None')),
 'model.layers.1.input_layernorm.reducemean': (('x', 'y', 'None'),),
 'model.layers.1.input_layernorm.add': (('x', 'y', 'None'), ()),
 'model.layers.1.input_layernorm.sqrt': (('x', 'y', 'None'),),
 'model.layers.1.input_layernorm.div': (('x', 'y', 'None'), ('x', 'y', 'None')),
 'model.layers.1.self_attn.reshape': (('x', 'None', 'y'),),
 'model.layers.1.self_attn.transpose': (('x', 'None', 'y', 'None'),),
 'model.layers.1.self_attn.reshape_1': (('x', 'None', 'y'),),
 'model.layers.1.self_attn.transpose_1': (('x', 'None', 'y', 'None'),),
 'model.layers.1.self_attn.reshape_2': (('x', 'None', 'y'),),
 'model.layers.1.self_attn.transpose_2': (('x', 'None', 'y', 'None', 'None'),),
 'model.layers.1.self_attn.split': (('x', 'y', 'None', 'None', 'None'),),
 'model.layers.1.self_attn.neg': (('x', 'y', 'None', 'None', 'None'),),
 'model.layers.1.self_attn.concat': (('x', 'y', 'None', 'None', 'None'), ('x', 'y', 'None', 'None', 'None')),
 'model.layers.1.self_attn.mul': (('x', 'y', 'None', 'None', 'None'), ('None', 'None')),
 'model.layers.1.self_attn.mul_1': (('x', 'y', 'None', 'None', 'None'), ('None', 'None')),
 'model.layers.1.self_attn.add': (('x', 'y', 'None', 'None', 'None'), ('x', 'y', 'None', 'None', 'None')),
 'model.layers.1.self_attn.split_2': (('x', 'y', 'None', 'None'),),
 'model.layers.1.self_attn.neg_1': (('x', 'y', 'None', 'None'),),
 'model.layers.1.self_attn.concat_1': (('x', 'y', 'None', 'None'), ('x', 'y', 'None', 'None')),
 'model.layers.1.self_attn.mul_2': (('x', 'y', 'None', 'None'), ('None', 'None')),
 'model.layers.1.self_attn.mul_3': (('x', 'y', 'None', 'None'), ('None', 'None')),
 'model.layers.1.self_attn.add_1': (('x', 'y', 'None', 'None'), ('x', 'y', 'None', 'None')),
 'model.layers.1.self_attn.unsqueeze': (('x', 'y', 'None', 'None'),),
 'model.layers.1.self_attn.unsqueeze_1': (('x', 'y', 'None', 'None'),),
 'model.layers.1.self_attn.transpose_3': (('x', 'y', 'None', 'None', 'None'),),
 'model.layers.1.self_attn.matmul': (('x', 'y', 'None', 'None', 'None'), ('x', 'y', 'None', 'None', 'None')),
 'model.layers.1.self_attn.mul_4': (('x', 'y', 'None', 'None', 'None'), ()),
 'model.layers.1.self_attn.where': (('None', 'None'), ('x', 'y', 'None', 'None', 'None'), ()),
 'model.layers.1.self_attn.softmax': (('x', 'y', 'None', 'None', 'None'),),
 'model.layers.1.self_attn.matmul_1': (('x', 'y', 'None', 'None', 'None'), ('x', 'y', 'None', 'None', 'None')),
 'model.layers.1.self_attn.transpose_4': (('x', 'y', 'None', 'None', 'None'),),
 'model.layers.1.self_attn.reshape_3': (('x', 'None', 'y', 'None', 'None'),),
 'model.layers.1.self_attn.add_2': (('x', 'y', 'None'), ('x', 'y', 'None')),
 'model.layers.1.post_attention_layernorm.mul': (('x', 'y', 'None'), ('x', 'y', 'None')),
 'model.layers.1.post_attention_layernorm.reducemean': (('x', 'y', 'None'),),
 'model.layers.1.post_attention_layernorm.add': (('x', 'y', 'None'), ()),
 'model.layers.1.post_attention_layernorm.sqrt': (('x', 'y', 'None'),),
 'model.layers.1.post_attention_layernorm.div': (('x', 'y', 'None'), ('x', 'y', 'None')),
 'model.layers.1.mlp.sigmoid': (('x', 'None', 'y'),),
 'model.layers.1.mlp.mul': (('x', 'None', 'y'), ('x', 'None', 'y')),
 'model.layers.1.mlp.mul_1': (('x', 'None', 'y'), ('x', 'None', 'y')),
 'model.layers.1.add': (('x', 'y', 'None'), ('x', 'y', 'None')),
 'model.norm.mul': (('x', 'y', 'None'), ('x', 'y', 'None')),
 'model.norm.reducemean': (('x', 'y', 'None'),),
 'model.norm.add': (('x', 'y', 'None'), ()),
 'model.norm.sqrt': (('x', 'y', 'None'),),
 'model.norm.div': (('x', 'y', 'None'), ('x', 'y', 'None')),
 'reshape': (('x', 'None', 'y'),),
 'reshape_1': (('x', 'None'),),
 'softmaxcrossentropyloss': (('x', 'y'), ('x',))}

# Parameters that the optimizer does not divide.
WHOLE = ()

MICRO_BATCHES = 4
STAGES = 2

# Parameter -> the pipeline stage that holds it.
STAGE_OF = {'model.embed_tokens.weight': 0,
 'model.layers.0.input_layernorm.weight': 0,
 'model.layers.0.self_attn.q_proj.weight': 0,
 'model.layers.0.self_attn.k_proj.weight': 0,
 'model.layers.0.self_attn.v_proj.weight': 0,
 'model.layers.0.self_attn.o_proj.weight': 0,
 'model.layers.0.post_attention_layernorm.weight': 0,
 'model.layers.0.mlp.gate_proj.weight': 0,
 'model.layers.0.mlp.up_proj.weight': 0,
 'model.layers.0.mlp.down_proj.weight': 0,
 'model.layers.1.input_layernorm.weight': 1,
 'model.layers.1.self_attn.q_proj.weight': 1,
 'model.layers.1.self_attn.k_proj.weight': 1,
 'model.layers.1.self_attn.v_proj.weight': 1,
 'model.layers.1.self_attn.o_proj.weight': 1,
 'model.layers.1.post_attention_layernorm.weight': 1,
 'model.layers.1.mlp.gate_proj.weight': 1,
 'model.layers.1.mlp.up_proj.weight': 1,
 'model.layers.1.mlp.down_proj.weight': 1,
 'model.norm.weight': 1,
 'lm_head.weight': 1}


def stage_config(network):
    """Cell -> stage, for every cell that has parameters of its own; cells without follow their neighbours."""
    out = {}
    for cell_name, cell in network.cells_and_names():
        stages = {STAGE_OF[p.name] for p in cell.get_parameters(expand=False) if p.name in STAGE_OF}
        if len(stages) > 1:
            raise ValueError(f"cell {cell_name!r} holds parameters of stages {sorted(stages)}; divide it")
        if stages and cell_name:
            out[cell_name] = stages.pop()
    return out

# Blocks that run again in the backward pass, by their parameters.
RECOMPUTED = (('model.layers.0.input_layernorm.weight',
  'model.layers.0.self_attn.q_proj.weight',
  'model.layers.0.self_attn.k_proj.weight',
  'model.layers.0.self_attn.v_proj.weight',
  'model.layers.0.self_attn.o_proj.weight',
  'model.layers.0.post_attention_layernorm.weight',
  'model.layers.0.mlp.gate_proj.weight',
  'model.layers.0.mlp.up_proj.weight',
  'model.layers.0.mlp.down_proj.weight'),
 ('model.layers.1.input_layernorm.weight',
  'model.layers.1.self_attn.q_proj.weight',
  'model.layers.1.self_attn.k_proj.weight',
  'model.layers.1.self_attn.v_proj.weight',
  'model.layers.1.self_attn.o_proj.weight',
  'model.layers.1.post_attention_layernorm.weight',
  'model.layers.1.mlp.gate_proj.weight',
  'model.layers.1.mlp.up_proj.weight',
  'model.layers.1.mlp.down_proj.weight'))


def recompute(network):
    """Recomputes the largest cells that lie wholly in a block.  KeyError where a block has none."""
    cells = [(n, c, {p.name for p in c.get_parameters()}) for n, c in network.cells_and_names()]
    for block in RECOMPUTED:
        chosen = []
        for name, cell, own in cells:  # outer cells come before those inside them
            inside = any(name.startswith(f"{outer}.") or not outer for outer in chosen)
            if own and own <= set(block) and not inside:
                chosen.append(name)
                cell.recompute()
        if not chosen:
            raise KeyError(f"no cell of the network holds {block[0]!r} and nothing beyond its block")


# Settings for scripts of the old style: mindspore.set_auto_parallel_context(**CONTEXT).
CONTEXT = {'parallel_mode': 'semi_auto_parallel',
 'device_num': 8,
 'gradients_mean': False,
 'parameter_broadcast': False,
 'enable_parallel_optimizer': True,
 'parallel_optimizer_config': {'parallel_optimizer_threshold': 0, 'optimizer_weight_shard_size': 2},
 'pipeline_stages': 2}
CONTEXT["dataset_strategy"] = (MESH('x', 'None'), MESH('x', 'None'),)


class Part(mindspore.nn.Cell):
    """One of the parts that MicroBatchInterleaved runs at once: its share of their mean, since it adds losses up."""

    def __init__(self, network, copies):
        super().__init__(auto_prefix=False)
        self.network, self.copies = network, copies

    def construct(self, *inputs):
        return self.network(*inputs) / self.copies


def parallel(network, copies=1):
    """The network with its loss under the plan, in semi-automatic parallelism.

    Train it by mindspore.Model, whose step takes the mean of the gradients of all micro-batches (the loss that it
    reports is the sum over them).  A step cell around it, as nn.TrainOneStepCell, would leave its settings out without
    an error: every device would train by itself.
    `copies`: parts of every micro-batch that run at once, so that one computes while another communicates.
    """
    for parameter in network.get_parameters():
        if parameter.name in WHOLE:
            parameter.parallel_optimizer = False
    recompute(network)
    if copies > 1:
        network = MicroBatchInterleaved(Part(network, copies), copies)
    network = Pipeline(network, MICRO_BATCHES, stage_config=stage_config(network))
    net = AutoParallel(network, parallel_mode="semi_auto")
    # Not net.load_param_strategy_file(STRATEGY_FILE): told shards alone, MindSpore would lay out over other ranks what
    # the plan does with model.embed_tokens.gather.  The file says where parameters lie, for checkpoints; STRATEGIES has all operators.
    net.dataset_strategy((MESH('x', 'None'), MESH('x', 'None'),))
    net.pipeline(stages=2, scheduler="1f1b")
    net.hsdp(shard_size=2, threshold=0, optimizer_level="level1")
    return net


def shard(operators):
    """Gives each primitive its strategy; `operators` maps names of STRATEGIES to primitives of the network."""
    unknown = set(operators) - set(STRATEGIES)
    if unknown:
        raise KeyError(f"no strategy for {sorted(unknown)[0]!r}; STRATEGIES lists the operators that have one")
    for name, primitive in operators.items():
        primitive.shard(tuple(MESH(*dims) for dims in STRATEGIES[name]))
