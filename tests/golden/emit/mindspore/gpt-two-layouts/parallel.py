"""Parallel settings of gpt-two-layouts on 4 devices (mesh 2x2).

Before the network is compiled, after init():

    model = mindspore.Model(parallel(network), optimizer=optimizer)

and, of operators whose strategies the file cannot name, those that are to have theirs:

    shard({"transformer.wte.gather": network.that_operator})

Made by `planner emit --target mindspore`; the plan decides, edit that.
"""

from pathlib import Path

import mindspore
from mindspore.parallel import Layout
from mindspore.parallel.auto_parallel import AutoParallel
from mindspore.parallel.nn import MicroBatchInterleaved

DEVICES = 4
STRATEGY_FILE = str(Path(__file__).resolve().with_name("strategy.ckpt"))
MESH = Layout((2, 2), ('x', 'y'))

# Operator of the ONNX graph -> how its operands lie: the axes of MESH that split each dimension.  With `:bias` behind
# it: the sum that adds the operator's bias.
STRATEGIES = {'transformer.wte.gather': (('y', 'None'), ('x', 'None')),
 'lm_head.matmul': (('x', 'None'), ('y', 'None')),
 'transformer.add': (('x', 'None', 'None'), ('None', 'None')),
 'transformer.h.0.ln_1.layernormalization': (('x', 'None', 'None'), ('None',), ('None',)),
 'transformer.h.0.attn.c_attn.matmul': (('x', 'None'), ('None', 'y')),
 'transformer.h.0.attn.c_attn.add': (('x', 'None', 'None'), ('None',)),
 'transformer.h.0.attn.c_attn.add:bias': (('x', 'None'), ('None',)),
 'transformer.h.0.attn.c_proj.matmul': (('x', 'y'), ('y', 'None')),
 'transformer.h.0.attn.c_proj.add': (('x', 'None', 'None'), ('None',)),
 'transformer.h.0.attn.c_proj.add:bias': (('x', 'None'), ('None',)),
 'transformer.h.0.ln_2.layernormalization': (('x', 'None', 'None'), ('None',), ('None',)),
 'transformer.h.0.mlp.c_fc.matmul': (('x', 'None'), ('None', 'y')),
 'transformer.h.0.mlp.c_fc.add': (('x', 'None', 'None'), ('None',)),
 'transformer.h.0.mlp.c_fc.add:bias': (('x', 'None'), ('None',)),
 'transformer.h.0.mlp.c_proj.matmul': (('x', 'y'), ('y', 'None')),
 'transformer.h.0.mlp.c_proj.add': (('x', 'None', 'None'), ('None',)),
 'transformer.h.0.mlp.c_proj.add:bias': (('x', 'None'), ('None',)),
 'transformer.h.1.ln_1.layernormalization': (('x', 'None', 'None'), ('None',), ('None',)),
 'transformer.h.1.attn.c_attn.matmul': (('x', 'None'), ('None', 'y')),
 'transformer.h.1.attn.c_attn.add': (('x', 'None', 'None'), ('None',)),
 'transformer.h.1.attn.c_attn.add:bias': (('x', 'None'), ('None',)),
 'transformer.h.1.attn.c_proj.matmul': (('x', 'y'), ('y', 'None')),
 'transformer.h.1.attn.c_proj.add': (('x', 'None', 'None'), ('None',)),
 'transformer.h.1.attn.c_proj.add:bias': (('x', 'None'), ('None',)),
 'transformer.h.1.ln_2.layernormalization': (('x', 'None', 'None'), ('None',), ('None',)),
 'transformer.h.1.mlp.c_fc.matmul': (('x', 'None'), ('None', 'y')),
 'transformer.h.1.mlp.c_fc.add': (('x', 'None', 'None'), ('None',)),
 'transformer.h.1.mlp.c_fc.add:bias': (('x', 'None'), ('None',)),
 'transformer.h.1.mlp.c_proj.matmul': (('x', 'y'), ('y', 'None')),
 'transformer.h.1.mlp.c_proj.add': (('x', 'None', 'None'), ('None',)),
 'transformer.h.1.mlp.c_proj.add:bias': (('x', 'None'), ('None',)),
 'transformer.ln_f.layernormalization': (('x', 'None', 'None'), ('None',), ('None',)),
 'transformer.h.0.attn.reshape': (('x', 'None', 'None'),),
 'transformer.h.0.attn.split': (('x', 'None', 'None', 'None'),),
 'transformer.h.0.attn.transpose': (('x', 'None', 'None', 'None'),),
 'transformer.h.0.attn.transpose_1': (('x', 'None', 'None', 'None'),),
 'transformer.h.0.attn.transpose_2': (('x', 'None', 'None', 'None'),),
 'transformer.h.0.attn.transpose_3': (('x', 'None', 'None', 'None'),),
 'transformer.h.0.attn.matmul': (('x', 'None', 'None', 'None'), ('x', 'None', 'None', 'None')),
 'transformer.h.0.attn.mul': (('x', 'None', 'None', 'None'), ()),
 'transformer.h.0.attn.where': (('None', 'None'), ('x', 'None', 'None', 'None'), ()),
 'transformer.h.0.attn.softmax': (('x', 'None', 'None', 'None'),),
 'transformer.h.0.attn.matmul_1': (('x', 'None', 'None', 'None'), ('x', 'None', 'None', 'None')),
 'transformer.h.0.attn.transpose_4': (('x', 'None', 'None', 'None'),),
 'transformer.h.0.attn.reshape_1': (('x', 'None', 'None', 'None'),),
 'transformer.h.0.add': (('x', 'None', 'None'), ('x', 'None', 'None')),
 'transformer.h.0.mlp.gelu': (('x', 'None', 'None'),),
 'transformer.h.0.add_1': (('x', 'None', 'None'), ('x', 'None', 'None')),
 'transformer.h.1.attn.reshape': (('x', 'None', 'None'),),
 'transformer.h.1.attn.split': (('x', 'None', 'None', 'None'),),
 'transformer.h.1.attn.transpose': (('x', 'None', 'None', 'None'),),
 'transformer.h.1.attn.transpose_1': (('x', 'None', 'None', 'None'),),
 'transformer.h.1.attn.transpose_2': (('x', 'None', 'None', 'None'),),
 'transformer.h.1.attn.transpose_3': (('x', 'None', 'None', 'None'),),
 'transformer.h.1.attn.matmul': (('x', 'None', 'None', 'None'), ('x', 'None', 'None', 'None')),
 'transformer.h.1.attn.mul': (('x', 'None', 'None', 'None'), ()),
 'transformer.h.1.attn.where': (('None', 'None'), ('x', 'None', 'None', 'None'), ()),
 'transformer.h.1.attn.softmax': (('x', 'None', 'None', 'None'),),
 'transformer.h.1.attn.matmul_1': (('x', 'None', 'None', 'None'), ('x', 'None', 'None', 'None')),
 'transformer.h.1.attn.transpose_4': (('x', 'None', 'None', 'None'),),
 'transformer.h.1.attn.reshape_1': (('x', 'None', 'None', 'None'),),
 'transformer.h.1.add': (('x', 'None', 'None'), ('x', 'None', 'None')),
 'transformer.h.1.mlp.gelu': (('x', 'None', 'None'),),
 'transformer.h.1.add_1': (('x', 'None', 'None'), ('x', 'None', 'None')),
 'reshape': (('x', 'None', 'None'),),
 'reshape_1': (('x', 'None'),),
 'softmaxcrossentropyloss': (('x', 'None'), ('x',))}

# Parameters that the optimizer does not divide.
WHOLE = ()

MICRO_BATCHES = 1

# Settings for scripts of the old style: mindspore.set_auto_parallel_context(**CONTEXT).
CONTEXT = {'parallel_mode': 'semi_auto_parallel', 'device_num': 4, 'gradients_mean': False, 'parameter_broadcast': False}
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
    # Not net.load_param_strategy_file(STRATEGY_FILE): told shards alone, MindSpore would lay out over other ranks what
    # the plan does with transformer.wte.gather.  The file says where parameters lie, for checkpoints; STRATEGIES has all operators.
    net.dataset_strategy((MESH('x', 'None'), MESH('x', 'None'),))
    return net


def shard(operators):
    """Gives each primitive its strategy; `operators` maps names of STRATEGIES to primitives of the network."""
    unknown = set(operators) - set(STRATEGIES)
    if unknown:
        raise KeyError(f"no strategy for {sorted(unknown)[0]!r}; STRATEGIES lists the operators that have one")
    for name, primitive in operators.items():
        primitive.shard(tuple(MESH(*dims) for dims in STRATEGIES[name]))
