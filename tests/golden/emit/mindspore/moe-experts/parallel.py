"""Parallel settings of moe-experts on 4 devices (mesh 4).

Before the network is compiled, after init():

    model = mindspore.Model(parallel(network), optimizer=optimizer)

and, of operators whose strategies the file cannot name, those that are to have theirs:

    shard({"model.layers.0.input_layernorm.mul": network.that_operator})

Made by `planner emit --target mindspore`; the plan decides, edit that.
"""

from pathlib import Path

import mindspore
from mindspore.parallel import Layout
from mindspore.parallel.auto_parallel import AutoParallel
from mindspore.parallel.nn import MicroBatchInterleaved

DEVICES = 4
STRATEGY_FILE = str(Path(__file__).resolve().with_name("strategy.ckpt"))
MESH = Layout((4,), ('x',))

# Operator of the ONNX graph -> how its operands lie: the axes of MESH that split each dimension.  With `:bias` behind
# it: the sum that adds the operator's bias.
STRATEGIES = {'model.layers.0.input_layernorm.mul': (('x', 'None', 'None'), ('x', 'None', 'None')),
 'model.layers.0.input_layernorm.reducemean': (('x', 'None', 'None'),),
 'model.layers.0.input_layernorm.add': (('x', 'None', 'None'), ()),
 'model.layers.0.input_layernorm.sqrt': (('x', 'None', 'None'),),
 'model.layers.0.input_layernorm.div': (('x', 'None', 'None'), ('x', 'None', 'None')),
 'model.layers.0.self_attn.reshape': (('x', 'None', 'None'),),
 'model.layers.0.self_attn.transpose': (('x', 'None', 'None', 'None'),),
 'model.layers.0.self_attn.reshape_1': (('x', 'None', 'None'),),
 'model.layers.0.self_attn.transpose_1': (('x', 'None', 'None', 'None'),),
 'model.layers.0.self_attn.reshape_2': (('x', 'None', 'None'),),
 'model.layers.0.self_attn.transpose_2': (('x', 'None', 'None', 'None'),),
 'model.layers.0.self_attn.split': (('x', 'None', 'None', 'None'),),
 'model.layers.0.self_attn.neg': (('x', 'None', 'None', 'None'),),
 'model.layers.0.self_attn.concat': (('x', 'None', 'None', 'None'), ('x', 'None', 'None', 'None')),
 'model.layers.0.self_attn.mul': (('x', 'None', 'None', 'None'), ('None', 'None')),
 'model.layers.0.self_attn.mul_1': (('x', 'None', 'None', 'None'), ('None', 'None')),
 'model.layers.0.self_attn.add': (('x', 'None', 'None', 'None'), ('x', 'None', 'None', 'None')),
 'model.layers.0.self_attn.split_2': (('x', 'None', 'None', 'None'),),
 'model.layers.0.self_attn.neg_1': (('x', 'None', 'None', 'None'),),
 'model.layers.0.self_attn.concat_1': (('x', 'None', 'None', 'None'), ('x', 'None', 'None', 'None')),
 'model.layers.0.self_attn.mul_2': (('x', 'None', 'None', 'None'), ('None', 'None')),
 'model.layers.0.self_attn.mul_3': (('x', 'None', 'None', 'None'), ('None', 'None')),
 'model.layers.0.self_attn.add_1': (('x', 'None', 'None', 'None'), ('x', 'None', 'None', 'None')),
 'model.layers.0.self_attn.transpose_3': (('x', 'None', 'None', 'None'),),
 'model.layers.0.self_attn.matmul': (('x', 'None', 'None', 'None'), ('x', 'None', 'None', 'None')),
 'model.layers.0.self_attn.mul_4': (('x', 'None', 'None', 'None'), ()),
 'model.layers.0.self_attn.where': (('None', 'None'), ('x', 'None', 'None', 'None'), ()),
 'model.layers.0.self_attn.softmax': (('x', 'None', 'None', 'None'),),
 'model.layers.0.self_attn.matmul_1': (('x', 'None', 'None', 'None'), ('x', 'None', 'None', 'None')),
 'model.layers.0.self_attn.transpose_4': (('x', 'None', 'None', 'None'),),
 'model.layers.0.self_attn.reshape_3': (('x', 'None', 'None', 'None'),),
 'model.layers.0.self_attn.add_2': (('x', 'None', 'None'), ('x', 'None', 'None')),
 'model.layers.0.post_attention_layernorm.mul': (('x', 'None', 'None'), ('x', 'None', 'None')),
 'model.layers.0.post_attention_layernorm.reducemean': (('x', 'None', 'None'),),
 'model.layers.0.post_attention_layernorm.add': (('x', 'None', 'None'), ()),
 'model.layers.0.post_attention_layernorm.sqrt': (('x', 'None', 'None'),),
 'model.layers.0.post_attention_layernorm.div': (('x', 'None', 'None'), ('x', 'None', 'None')),
 'model.layers.0.block_sparse_moe.softmax': (('x', 'None', 'None'),),
 'model.layers.0.block_sparse_moe.topk': (('x', 'None', 'None'),),
 'model.layers.0.block_sparse_moe.reducesum': (('x', 'None', 'None'),),
 'model.layers.0.block_sparse_moe.div': (('x', 'None', 'None'), ('x', 'None', 'None')),
 'model.layers.0.block_sparse_moe.onehot': (('x', 'None', 'None'), ('None',)),
 'model.layers.0.block_sparse_moe.transpose': (('x', 'None', 'None', 'None'),),
 'model.layers.0.block_sparse_moe.reshape': (('x', 'None', 'None', 'None'),),
 'model.layers.0.block_sparse_moe.cumsum': (('x', 'None', 'None'),),
 'model.layers.0.block_sparse_moe.mul': (('x', 'None', 'None'), ('x', 'None', 'None')),
 'model.layers.0.block_sparse_moe.reducesum_1': (('x', 'None', 'None'),),
 'model.layers.0.block_sparse_moe.cast': (('x', 'None'),),
 'model.layers.0.block_sparse_moe.onehot_1': (('x', 'None'), ('None',)),
 'model.layers.0.block_sparse_moe.reshape_1': (('x', 'None', 'None'),),
 'model.layers.0.block_sparse_moe.einsum': (('x', 'None', 'None', 'None'), ('x', 'None', 'None', 'None')),
 'model.layers.0.block_sparse_moe.unsqueeze': (('x', 'None', 'None'),),
 'model.layers.0.block_sparse_moe.mul_1': (('x', 'None', 'None', 'None'), ('x', 'None', 'None', 'None')),
 'model.layers.0.block_sparse_moe.einsum_1': (('x', 'None', 'None', 'None'), ('x', 'None', 'None', 'None')),
 'model.layers.0.block_sparse_moe.einsum_2': (('x', 'None', 'None', 'None'), ('x', 'None', 'None')),
 'model.layers.0.block_sparse_moe.experts.einsum': (('x', 'None', 'None', 'None'), ('x', 'None', 'None')),
 'model.layers.0.block_sparse_moe.experts.einsum_1': (('x', 'None', 'None', 'None'), ('x', 'None', 'None')),
 'model.layers.0.block_sparse_moe.experts.sigmoid': (('None', 'x', 'None', 'None'),),
 'model.layers.0.block_sparse_moe.experts.mul': (('None', 'x', 'None', 'None'), ('None', 'x', 'None', 'None')),
 'model.layers.0.block_sparse_moe.experts.mul_1': (('None', 'x', 'None', 'None'), ('None', 'x', 'None', 'None')),
 'model.layers.0.block_sparse_moe.experts.einsum_2': (('x', 'None', 'None', 'None'), ('x', 'None', 'None')),
 'model.layers.0.block_sparse_moe.einsum_3': (('x', 'None', 'None', 'None'), ('None', 'x', 'None', 'None')),
 'model.layers.0.add': (('x', 'None', 'None'), ('x', 'None', 'None')),
 'model.norm.mul': (('x', 'None', 'None'), ('x', 'None', 'None')),
 'model.norm.reducemean': (('x', 'None', 'None'),),
 'model.norm.add': (('x', 'None', 'None'), ()),
 'model.norm.sqrt': (('x', 'None', 'None'),),
 'model.norm.div': (('x', 'None', 'None'), ('x', 'None', 'None')),
 'reshape': (('x', 'None', 'None'),),
 'reshape_1': (('x', 'None'),),
 'softmaxcrossentropyloss': (('x', 'None'), ('x',))}

# Parameters that the optimizer does not divide.
WHOLE = ()

MICRO_BATCHES = 1

# Settings for scripts of the old style: mindspore.set_auto_parallel_context(**CONTEXT).
CONTEXT = {'parallel_mode': 'semi_auto_parallel',
 'device_num': 4,
 'gradients_mean': False,
 'parameter_broadcast': False,
 'dataset_strategy': 'data_parallel'}
CONTEXT["strategy_ckpt_load_file"] = STRATEGY_FILE


class Part(mindspore.nn.Cell):
    """One of the parts that MicroBatchInterleaved runs at once: its share of their mean, since it adds losses up."""

    def __init__(self, network, copies):
        super().__init__(auto_prefix=False)
        self.network, self.copies = network, copies

    def construct(self, *inputs):
        return self.network(*inputs) / self.copies


def parallel(network, copies=1):
    """The network with its loss under the plan, in semi-automatic parallelism.

    Train it by mindspore.Model.  A step cell around it, as nn.TrainOneStepCell, would leave its settings out without an
    error: every device would train by itself.  A step of your own goes inside, with one copy:
    parallel(nn.TrainOneStepCell(network, optimizer)).
    `copies`: parts of every micro-batch that run at once, so that one computes while another communicates.
    """
    for parameter in network.get_parameters():
        if parameter.name in WHOLE:
            parameter.parallel_optimizer = False
    if copies > 1:
        network = MicroBatchInterleaved(Part(network, copies), copies)
    net = AutoParallel(network, parallel_mode="semi_auto")
    net.load_param_strategy_file(STRATEGY_FILE)
    net.dataset_strategy('data_parallel')
    return net


def shard(operators):
    """Gives each primitive its strategy; `operators` maps names of STRATEGIES to primitives of the network."""
    unknown = set(operators) - set(STRATEGIES)
    if unknown:
        raise KeyError(f"no strategy for {sorted(unknown)[0]!r}; STRATEGIES lists the operators that have one")
    for name, primitive in operators.items():
        primitive.shard(tuple(MESH(*dims) for dims in STRATEGIES[name]))
