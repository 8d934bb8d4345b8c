"""The Python module that applies a plan to a MindSpore network: what the strategy file cannot say, and the settings."""

from __future__ import annotations

from collections.abc import Mapping
from string import Template
from typing import Any, Final

from planner.emit.mindspore.strategy import Strategies
from planner.emit.names import Name, plain
from planner.emit.stages import holders
from planner.emit.wording import literal
from planner.ir import Layout
from planner.planning.document import PlanDocument

__all__ = ["Optimizer", "module_text", "optimizer_of"]

_MODULE: Final = Template('''"""Parallel settings of $model on $devices devices (mesh $mesh).

Before the network is compiled, after init():

    $how

and, of operators whose strategies the file cannot name, those that are to have theirs:

    shard({"$example": network.that_operator})

Made by `planner emit --target mindspore`; the plan decides, edit that.
"""

from pathlib import Path

import mindspore
$imports
DEVICES = $devices
$file
MESH = Layout($sizes, $names)

# Operator of the ONNX graph -> how its operands lie: the axes of MESH that split each dimension.  With `:bias` behind
# it: the sum that adds the operator's bias.
STRATEGIES = $strategies

# Parameters that the optimizer does not divide.
WHOLE = $whole
$stages$recompute
# Settings for scripts of the old style: mindspore.set_auto_parallel_context(**CONTEXT).
CONTEXT = $context
$context_dataset$context_file
$part
def parallel(network$copies):
    """The network$with_loss under the plan, in semi-automatic parallelism.$copied"""
    for parameter in network.get_parameters():
        if parameter.name in WHOLE:
            parameter.parallel_optimizer = False
$recomputed$wrap    net = AutoParallel(network, parallel_mode="semi_auto")
$load    net.dataset_strategy($dataset)
$settings    return net


def shard(operators):
    """Gives each primitive its strategy; `operators` maps names of STRATEGIES to primitives of the network."""
    unknown = set(operators) - set(STRATEGIES)
    if unknown:
        raise KeyError(f"no strategy for {sorted(unknown)[0]!r}; STRATEGIES lists the operators that have one")
    for name, primitive in operators.items():
        primitive.shard(tuple(MESH(*dims) for dims in STRATEGIES[name]))
''')
_LOAD: Final = "    net.load_param_strategy_file(STRATEGY_FILE)\n"
_LOAD_STAGE: Final = "    net.load_param_strategy_file(STRATEGY_FILES[get_rank() * STAGES // DEVICES])\n"
_DISPLACED: Final = """\
    # Not net.load_param_strategy_file(STRATEGY_FILE): told shards alone, MindSpore would lay out over other ranks what
    # the plan does with {first}.  The file says where parameters lie, for checkpoints; STRATEGIES has all operators.
"""
# As a tuple of shards MindSpore takes one dimension alone to be split, and alike in all inputs (`_VirtualDataset`).
_CONTEXT_DATASET: Final = Template('CONTEXT["dataset_strategy"] = $layouts\n')
_CONTEXT_FILE: Final = 'CONTEXT["strategy_ckpt_load_file"] = STRATEGY_FILE\n'
_FILE: Final = 'STRATEGY_FILE = str(Path(__file__).resolve().with_name("strategy.ckpt"))'
_FILES: Final = """\
# By stage; strategy_merged.ckpt is of all, for checkpoints.
STRATEGY_FILES = [str(Path(__file__).resolve().with_name(f"strategy_stage{s}.ckpt")) for s in range($stages)]"""
_TRAINED: Final = "model = mindspore.Model(parallel(network), optimizer=optimizer)"
# MindSpore takes the settings of AutoParallel where that is the outermost cell of what is compiled, or by Model, whose
# step divides by the micro-batches what GradAccumulation and Pipeline add up, but not by copies (2.10: mindspore/
# parallel/_utils.py, `_init_auto_parallel_context`; mindspore/nn/wrap/cell_wrapper.py, `_TrainGradAccuStepCell`).
_COPIED: Final = Template("""

$trained
    `copies`: parts of every micro-batch that run at once, so that one computes while another communicates.
    """)
_IN_PARTS: Final = """\
    Train it by mindspore.Model, whose step takes the mean of the gradients of all micro-batches (the loss that it
    reports is the sum over them).  A step cell around it, as nn.TrainOneStepCell, would leave its settings out without
    an error: every device would train by itself."""
_AT_ONCE: Final = """\
    Train it by mindspore.Model.  A step cell around it, as nn.TrainOneStepCell, would leave its settings out without an
    error: every device would train by itself.  A step of your own goes inside, with one copy:
    parallel(nn.TrainOneStepCell(network, optimizer))."""
_PART: Final = '''
class Part(mindspore.nn.Cell):
    """One of the parts that MicroBatchInterleaved runs at once: its share of their mean, since it adds losses up."""

    def __init__(self, network, copies):
        super().__init__(auto_prefix=False)
        self.network, self.copies = network, copies

    def construct(self, *inputs):
        return self.network(*inputs) / self.copies

'''
_WRAP: Final = Template("""    if copies > 1:
        network = MicroBatchInterleaved(Part(network, copies), copies)
$parts""")
_Dims = tuple[str | tuple[str, ...], ...]
Optimizer = tuple[int, tuple[str, ...]]  # shards (0: none, -1: all ranks with equal parts), and what stays whole


def optimizer_of(found: Strategies, size: int) -> Optimizer:
    """How optimizer parallel of this size is set so that every parameter is divided as the file says."""
    layouts = {n: p.arrangement for n, p in found.map.parameters.items()}
    return size, tuple(n for n, a in layouts.items() if size and a.optimizer_shards <= 1 < a.replicas)


def _level(plan: PlanDocument) -> int:
    """1: weights are gathered once, and gradients scattered; 2: gradients are stored in shards as they are added up; 3:
    weights are gathered again for the backward pass."""
    level = plan.schedule.run.get("zero", 1)
    return level if isinstance(level, int) and 1 <= level <= 3 else 1


def module_text(plan: PlanDocument, names: Mapping[str, Name], found: Strategies, optimizer: Optimizer) -> str:
    mesh, displaced = plan.mesh, found.displaced
    listed: dict[str, tuple[_Dims, ...]] = {}
    if displaced:
        listed = {k.name: tuple(_named(x) for x in k.operands) for k in found.keyed.values() if k.splits}
    listed |= {n: _operands(plan, n) for n in found.unnamed}
    shards, whole = optimizer
    settings = []
    stages = len(plan.stages)
    if stages > 1:
        settings.append(f'    net.pipeline(stages={stages}, scheduler="{plan.schedule.pass_order}")\n')
    if shards:
        settings.append(f'    net.hsdp(shard_size={shards}, threshold=0, optimizer_level="level{_level(plan)}")\n')
    dataset = _dataset(plan)
    training = plan.schedule.mode == "training"
    text = _MODULE.substitute(
        model=plain(plan.model.name),
        devices=plan.devices,
        mesh=str(mesh),
        file=_FILES.replace("$stages", str(stages)) if stages > 1 else _FILE,
        stages=_stages(plan, names),
        recompute=_recompute(plan, names),
        recomputed="    recompute(network)\n" if plan.schedule.recompute else "",
        how=_TRAINED if training else "net = parallel(network)",
        copies=f", copies={plan.schedule.copies}" if training else "",
        with_loss=" with its loss" if training else "",
        copied=_copied(plan) if training else "",
        part=_PART if training else "",
        wrap=_wrap(plan),
        example=plain(next(iter(listed), "operator")),
        sizes=repr(mesh.shape),
        names=repr(mesh.names),
        strategies=literal(listed),
        whole=literal(set(whole) or ()),
        context=literal(_context(plan, dataset, optimizer)),
        context_dataset="" if dataset else _CONTEXT_DATASET.substitute(layouts=_as_layouts(plan)),
        context_file="" if displaced or stages > 1 else _CONTEXT_FILE,
        dataset=repr(dataset) if dataset else _as_layouts(plan),
        settings="".join(settings),
        load=_DISPLACED.format(first=plain(displaced[0])) if displaced else _LOAD_STAGE if stages > 1 else _LOAD,
        imports=_imports(plan, bool(displaced)),
    )
    compile(text, "parallel.py", "exec")  # names are data in it, never code
    return text


def _imports(plan: PlanDocument, displaced: bool) -> str:
    lines = ["from mindspore.parallel import Layout", "from mindspore.parallel.auto_parallel import AutoParallel"]
    if len(plan.stages) > 1 and not displaced:
        lines.insert(0, "from mindspore.communication import get_rank")
    training = plan.schedule.mode == "training"
    wrappers = ["MicroBatchInterleaved"] if training else []
    if len(plan.stages) > 1:
        wrappers.append("Pipeline")
    elif training and plan.schedule.passes > 1:
        wrappers.append("GradAccumulation")
    if wrappers:
        lines.append(f"from mindspore.parallel.nn import {', '.join(sorted(wrappers))}")
    return "\n".join(lines) + "\n"


def _wrap(plan: PlanDocument) -> str:
    training, parts = plan.schedule.mode == "training", ""
    if len(plan.stages) > 1:
        parts = "    network = Pipeline(network, MICRO_BATCHES, stage_config=stage_config(network))\n"
    elif training and plan.schedule.passes > 1:
        parts = "    network = GradAccumulation(network, MICRO_BATCHES)\n"
    return _WRAP.substitute(parts=parts) if training else parts


def _copied(plan: PlanDocument) -> str:
    alone = len(plan.stages) == 1 and plan.schedule.passes == 1
    return _COPIED.substitute(trained=_AT_ONCE if alone else _IN_PARTS)


def _recompute(plan: PlanDocument, names: Mapping[str, Name]) -> str:
    """Parameters of each block that runs again, and what finds the cells."""
    if not plan.schedule.recompute:
        return ""
    block_of = {op: k for k, block in enumerate(plan.schedule.recompute) for op in block}
    blocks: list[list[str]] = [[] for _ in plan.schedule.recompute]
    for n, p in plan.parameters.items():
        for k in sorted({block_of[r.operator] for r in p.readers if r.operator in block_of}):
            blocks[k].append(names[n].name)
    return _RECOMPUTE.substitute(blocks=literal(tuple(tuple(b) for b in blocks if b)))


_RECOMPUTE: Final = Template("""
# Blocks that run again in the backward pass, by their parameters.
RECOMPUTED = $blocks


def recompute(network):
    \"\"\"Recomputes the largest cells that lie wholly in a block.  KeyError where a block has none.\"\"\"
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

""")


def _stages(plan: PlanDocument, names: Mapping[str, Name]) -> str:
    """Micro-batches, and the stage of each parameter: constants of the module, and what finds the cells."""
    if plan.schedule.mode != "training" and len(plan.stages) == 1:
        return ""
    text = f"\nMICRO_BATCHES = {plan.schedule.passes}\n"
    if len(plan.stages) == 1:
        return text
    table = {names[n].name: stages[0] for n, stages in holders(plan).items()}
    return text + _STAGES.substitute(stages=len(plan.stages), table=literal(table))


_STAGES: Final = Template("""STAGES = $stages

# Parameter -> the pipeline stage that holds it.
STAGE_OF = $table


def stage_config(network):
    \"\"\"Cell -> stage, for every cell that has parameters of its own; cells without follow their neighbours.\"\"\"
    out = {}
    for cell_name, cell in network.cells_and_names():
        stages = {STAGE_OF[p.name] for p in cell.get_parameters(expand=False) if p.name in STAGE_OF}
        if len(stages) > 1:
            raise ValueError(f"cell {cell_name!r} holds parameters of stages {sorted(stages)}; divide it")
        if stages and cell_name:
            out[cell_name] = stages.pop()
    return out
""")


def _context(plan: PlanDocument, dataset: str | None, optimizer: Optimizer) -> Mapping[str, Any]:
    out: dict[str, Any] = {
        "parallel_mode": "semi_auto_parallel",
        "device_num": plan.devices,
        "gradients_mean": False,  # the loss is a mean over the whole batch already
        "parameter_broadcast": False,
    }
    if dataset:
        out["dataset_strategy"] = dataset
    shards, _ = optimizer
    if shards:
        config: dict[str, Any] = {"parallel_optimizer_threshold": 0, "optimizer_weight_shard_size": shards}
        if _level(plan) > 1:
            config["optimizer_level"] = f"level{_level(plan)}"
        out |= {"enable_parallel_optimizer": True, "parallel_optimizer_config": config}
    if len(plan.stages) > 1:
        out |= {"pipeline_stages": len(plan.stages)}
    return out


def _dataset(plan: PlanDocument) -> str | None:
    """`data_parallel` where every input is split by all devices along its first dimension, `full_batch` where none is
    split, else None: each has a layout of its own."""
    mesh = plan.mesh
    found = [x.counts(mesh) for x in _inputs(plan)]
    if all(n == 1 for dims in found for n in dims):
        return "full_batch"
    return "data_parallel" if all(dims and dims[0] == mesh.devices for dims in found) else None


def _as_layouts(plan: PlanDocument) -> str:
    """The inputs as Layouts, which name the ranks."""
    return "(" + "".join(f"MESH({', '.join(map(repr, _named(x)))}), " for x in _inputs(plan)).rstrip() + ")"


def _inputs(plan: PlanDocument) -> list[Layout]:
    return [
        Layout.replicated(len(x.shape or ())) if x.layout is None else x.layout.layout() for x in plan.inputs.values()
    ]


def _operands(plan: PlanDocument, name: str) -> tuple[_Dims, ...]:
    return tuple(_named(x.layout()) for x in plan.operators[name].operands if x is not None)


def _named(layout: Layout) -> _Dims:
    return tuple(d[0] if len(d) == 1 else (tuple(d) or "None") for d in layout.dims)
