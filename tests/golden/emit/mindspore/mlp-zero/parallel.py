"""Parallel settings of mlp-zero on 8 devices (mesh 8).

Before the network is compiled, after init():

    model = mindspore.Model(parallel(network), optimizer=optimizer)

and, of operators whose strategies the file cannot name, those that are to have theirs:

    shard({"relu": network.that_operator})

Made by `planner emit --target mindspore`; the plan decides, edit that.
"""

from pathlib import Path

import mindspore
from mindspore.parallel import Layout
from mindspore.parallel.auto_parallel import AutoParallel
from mindspore.parallel.nn import MicroBatchInterleaved

DEVICES = 8
STRATEGY_FILE = str(Path(__file__).resolve().with_name("strategy.ckpt"))
MESH = Layout((8,), ('x',))

# Operator of the ONNX graph -> how its operands lie: the axes of MESH that split each dimension.  With `:bias` behind
# it: the sum that adds the operator's bias.
STRATEGIES = {'relu': (('x', 'None'),), 'relu_1': (('x', 'None'),), 'softmaxcrossentropyloss': (('x', 'None'), ('x',))}

# Parameters that the optimizer does not divide.
WHOLE = ()

MICRO_BATCHES = 1

# Settings for scripts of the old style: mindspore.set_auto_parallel_context(**CONTEXT).
CONTEXT = {'parallel_mode': 'semi_auto_parallel',
 'device_num': 8,
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
    net.hsdp(shard_size=-1, threshold=0, optimizer_level="level1")
    return net


def shard(operators):
    """Gives each primitive its strategy; `operators` maps names of STRATEGIES to primitives of the network."""
    unknown = set(operators) - set(STRATEGIES)
    if unknown:
        raise KeyError(f"no strategy for {sorted(unknown)[0]!r}; STRATEGIES lists the operators that have one")
    for name, primitive in operators.items():
        primitive.shard(tuple(MESH(*dims) for dims in STRATEGIES[name]))
