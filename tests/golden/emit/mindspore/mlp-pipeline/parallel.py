"""Parallel settings of mlp-pipeline on 8 devices (mesh 4).

Before the network is compiled, after init():

    model = mindspore.Model(parallel(network), optimizer=optimizer)

and, of operators whose strategies the file cannot name, those that are to have theirs:

    shard({"relu": network.that_operator})

Made by `planner emit --target mindspore`; the plan decides, edit that.
"""

from pathlib import Path

import mindspore
from mindspore.communication import get_rank
from mindspore.parallel import Layout
from mindspore.parallel.auto_parallel import AutoParallel
from mindspore.parallel.nn import MicroBatchInterleaved, Pipeline

DEVICES = 8
# By stage; strategy_merged.ckpt is of all, for checkpoints.
STRATEGY_FILES = [str(Path(__file__).resolve().with_name(f"strategy_stage{s}.ckpt")) for s in range(2)]
MESH = Layout((4,), ('x',))

# Operator of the ONNX graph -> how its operands lie: the axes of MESH that split each dimension.  With `:bias` behind
# it: the sum that adds the operator's bias.
STRATEGIES = {'relu': (('x', 'None'),), 'relu_1': (('x', 'None'),), 'softmaxcrossentropyloss': (('x', 'None'), ('x',))}

# Parameters that the optimizer does not divide.
WHOLE = ()

MICRO_BATCHES = 4
STAGES = 2

# Parameter -> the pipeline stage that holds it.
STAGE_OF = {'layers.0.weight': 0,
 'layers.0.bias': 0,
 'layers.1.weight': 0,
 'layers.1.bias': 0,
 'layers.2.weight': 1,
 'layers.2.bias': 1}


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

# Settings for scripts of the old style: mindspore.set_auto_parallel_context(**CONTEXT).
CONTEXT = {'parallel_mode': 'semi_auto_parallel',
 'device_num': 8,
 'gradients_mean': False,
 'parameter_broadcast': False,
 'dataset_strategy': 'data_parallel',
 'pipeline_stages': 2}


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
    if copies > 1:
        network = MicroBatchInterleaved(Part(network, copies), copies)
    network = Pipeline(network, MICRO_BATCHES, stage_config=stage_config(network))
    net = AutoParallel(network, parallel_mode="semi_auto")
    net.load_param_strategy_file(STRATEGY_FILES[get_rank() * STAGES // DEVICES])
    net.dataset_strategy('data_parallel')
    net.pipeline(stages=2, scheduler="1f1b")
    return net


def shard(operators):
    """Gives each primitive its strategy; `operators` maps names of STRATEGIES to primitives of the network."""
    unknown = set(operators) - set(STRATEGIES)
    if unknown:
        raise KeyError(f"no strategy for {sorted(unknown)[0]!r}; STRATEGIES lists the operators that have one")
    for name, primitive in operators.items():
        primitive.shard(tuple(MESH(*dims) for dims in STRATEGIES[name]))
