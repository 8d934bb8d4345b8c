"""Parallel settings of gpt-recompute on 4 devices (mesh 4).

Before the network is compiled, after init():

    model = mindspore.Model(parallel(network), optimizer=optimizer)

and, of operators whose strategies the file cannot name, those that are to have theirs:

    shard({"transformer.h.0.attn.reshape": network.that_operator})

Made by `planner emit --target mindspore`; the plan decides, edit that.
"""

from pathlib import Path

import mindspore
from mindspore.parallel import Layout
from mindspore.parallel.auto_parallel import AutoParallel
from mindspore.parallel.nn import GradAccumulation, MicroBatchInterleaved

DEVICES = 4
STRATEGY_FILE = str(Path(__file__).resolve().with_name("strategy.ckpt"))
MESH = Layout((4,), ('x',))

# Operator of the ONNX graph -> how its operands lie: the axes of MESH that split each dimension.  With `:bias` behind
# it: the sum that adds the operator's bias.
STRATEGIES = {'transformer.h.0.attn.reshape': (('x', 'None', 'None'),),
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

MICRO_BATCHES = 4

# Blocks that run again in the backward pass, by their parameters.
RECOMPUTED = (('transformer.h.0.ln_1.weight',
  'transformer.h.0.ln_1.bias',
  'transformer.h.0.attn.c_attn.weight',
  'transformer.h.0.attn.c_attn.bias',
  'transformer.h.0.attn.c_proj.weight',
  'transformer.h.0.attn.c_proj.bias',
  'transformer.h.0.ln_2.weight',
  'transformer.h.0.ln_2.bias',
  'transformer.h.0.mlp.c_fc.weight',
  'transformer.h.0.mlp.c_fc.bias',
  'transformer.h.0.mlp.c_proj.weight',
  'transformer.h.0.mlp.c_proj.bias'),
 ('transformer.h.1.ln_1.weight',
  'transformer.h.1.ln_1.bias',
  'transformer.h.1.attn.c_attn.weight',
  'transformer.h.1.attn.c_attn.bias',
  'transformer.h.1.attn.c_proj.weight',
  'transformer.h.1.attn.c_proj.bias',
  'transformer.h.1.ln_2.weight',
  'transformer.h.1.ln_2.bias',
  'transformer.h.1.mlp.c_fc.weight',
  'transformer.h.1.mlp.c_fc.bias',
  'transformer.h.1.mlp.c_proj.weight',
  'transformer.h.1.mlp.c_proj.bias'))


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
 'device_num': 4,
 'gradients_mean': False,
 'parameter_broadcast': False,
 'dataset_strategy': 'data_parallel',
 'enable_parallel_optimizer': True,
 'parallel_optimizer_config': {'parallel_optimizer_threshold': 0, 'optimizer_weight_shard_size': -1}}
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
    network = GradAccumulation(network, MICRO_BATCHES)
    net = AutoParallel(network, parallel_mode="semi_auto")
    net.load_param_strategy_file(STRATEGY_FILE)
    net.dataset_strategy('data_parallel')
    net.hsdp(shard_size=-1, threshold=0, optimizer_level="level1")
    return net


def shard(operators):
    """Gives each primitive its strategy; `operators` maps names of STRATEGIES to primitives of the network."""
    unknown = set(operators) - set(STRATEGIES)
    if unknown:
        raise KeyError(f"no strategy for {sorted(unknown)[0]!r}; STRATEGIES lists the operators that have one")
    for name, primitive in operators.items():
        primitive.shard(tuple(MESH(*dims) for dims in STRATEGIES[name]))
