"""A plan as `DistributedConfig` of transformers 5, and what loads a model with it.

Fields as transformers 5.23 reads them (distributed/configuration_utils.py).  Ranks are ordered pipeline, replicas,
shards, tensor, outermost first.  Every parameter that the data-parallel ranks hold goes through `fully_shard`, along
its first dimension; replicas are its outer mesh dimension, so that data parallelism alone is replicas of one shard.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from string import Template
from typing import Any, Final, Literal

from planner.clock import Configuration
from planner.emit.degrees import zero_level
from planner.emit.emission import Emission
from planner.emit.hosts import Server
from planner.emit.huggingface.pipeline import pipeline_size
from planner.emit.huggingface.styles import styles_of
from planner.emit.launch import hosts_of, launch_scripts
from planner.emit.modules import layered, owner
from planner.emit.names import Name, plain
from planner.emit.scheme import Scheme, scheme_of
from planner.emit.uniform import Model, recomputes_layers
from planner.emit.wording import some
from planner.errors import InputError
from planner.planning.document import PlanDocument

__all__ = ["emit_huggingface", "unsupported"]

_TARGET: Final = "Hugging Face"
_DTYPE: Final = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}

_LOAD: Final = Template('''"""$model on $devices devices, as the plan says, in every process that torchrun started.

    model = load("path/or/name")       # a checkpoint of transformers; further options go to from_pretrained
    inputs = samples(inputs)           # of a batch that is whole on every process, the samples of this one

Gradients are means over the ranks with samples of their own: the loss is the mean over a rank's samples.
Made by `planner emit --target huggingface`; the plan decides, edit that.
"""

import json
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, DistributedConfig

CONFIG = Path(__file__).resolve().with_name("distributed_config.json")
DATA, TENSOR = $data, $tensor  # ranks with samples of their own; ranks that share those


def load(path, auto=AutoModelForCausalLM, **options):
    config = DistributedConfig.from_dict(json.loads(CONFIG.read_text(encoding="utf-8")))
    options.setdefault("dtype", torch.$dtype)
    return auto.from_pretrained(path, distributed_config=config, **options)


def samples(inputs):
    place = torch.distributed.get_rank() // TENSOR % DATA
    return {name: value.chunk(DATA)[place] for name, value in inputs.items()}
''')


def unsupported(c: Configuration, model: Model) -> str:
    """What of a uniform configuration transformers cannot express; empty where it can express all of it."""
    if c.pp > 1:
        return "training in pipeline stages"
    if c.cp > 1:
        return "context parallelism"
    if c.ep > 1:
        return "divided experts"
    if c.sequence_parallel:
        return "sequence parallelism"
    if c.dp > 1 and 0 < c.zero < 3 and c.micro_batches > 1:
        return f"ZeRO {c.zero} under accumulation"
    return "" if recomputes_layers(c) else f"{c.recompute} recomputation of a part"


def emit_huggingface(plan: PlanDocument, names: Mapping[str, Name], *, servers: Sequence[Server] = ()) -> Emission:
    """`servers`: from a hosts file.

    InputError where transformers would lay the network out otherwise than the plan, naming what to pin.
    """
    scheme = scheme_of(plan, _TARGET)
    scheme.check_busy(_TARGET)
    for use, size in (("context", scheme.context), ("expert", scheme.expert)):
        if size > 1:
            axis = next(a for a, u in scheme.uses.items() if u == use)
            raise InputError(
                f"plan: mesh axis {axis} is {use} parallel; {_UNSAID[use]}: pin "
                f"{'inputs' if use == 'context' else 'experts'} otherwise, or use --target torch"
            )
    styles = styles_of(plan, names, scheme)
    document: dict[str, Any] = {
        "tp_size": scheme.tensor,
        "fsdp_size": scheme.shards,
        "dp_replicate_size": scheme.data // scheme.shards,
        "pp_size": pipeline_size(plan, names, scheme),
    }
    if styles.plan:
        document["tp_plan"] = dict(styles.plan)
    if scheme.data > 1:
        document["fsdp_plan"] = _gathered(names, "free" if zero_level(plan, scheme) == 3 else "keep")
    module = _LOAD.substitute(
        model=plain(plan.model.name),
        devices=plan.devices,
        data=scheme.data,
        tensor=scheme.tensor,
        dtype=_DTYPE[plan.schedule.precision],
    )
    files = {
        "distributed_config.json": (json.dumps(document, indent=2) + "\n").encode(),
        "load.py": module.encode(),
        **launch_scripts(hosts_of(plan, servers)),
    }
    return Emission(files, tuple(_lost(plan, names, scheme, styles.repeated)))


_UNSAID: Final = {
    "context": "DistributedConfig splits no positions",
    "expert": "which experts a rank holds is not written to DistributedConfig by this version",
}


def _gathered(names: Mapping[str, Name], then: Literal["keep", "free"]) -> dict[str, str]:
    """Blocks of layers are gathered together, and kept from there to the backward pass, or freed (ZeRO 3).  What the
    config leaves out stays as the model class has it, so modules outside of layers are named too."""
    out: dict[str, str] = {}
    for emitted in names.values():
        module = layered(owner(emitted.name))
        block, star, _ = module.partition("*")
        out[block + star if star else module] = f"{then}_full_weight"
    out.pop("", None)
    return out


def _lost(plan: PlanDocument, names: Mapping[str, Name], scheme: Scheme, repeated: tuple[str, ...]) -> list[str]:
    out = []
    moved = [r for r in plan.redistributions if r.direction == "forward" and r.tensor not in plan.parameters]
    if moved:
        out.append(f"{len(moved)} redistributions: transformers sums and gathers at the ends of modules")
    if repeated:
        out.append(
            f"how tensor-parallel ranks divide the work of {len(repeated)} operator(s) ({some(repeated)}): "
            "transformers repeats it on each"
        )
    along = [n for n in plan.parameters if _shards_elsewhere(plan, n, names[n], scheme)]
    if along:
        out.append(
            f"the dimension along which {len(along)} parameters are stored in shards ({some(along)}): fully_shard cuts "
            "the first; sizes and traffic are the same"
        )
    if scheme.whole:
        out.append(
            f"{len(scheme.whole)} parameters that are kept whole ({some(scheme.whole)}): fully_shard divides all"
        )
    if scheme.displaced("data", "tensor"):
        out.append(
            "the order of ranks: in transformers tensor-parallel ranks are neighbours, in the plan data-parallel ones"
        )
    if plan.schedule.recompute:
        out.append(f"{len(plan.schedule.recompute)} recomputed blocks: call model.gradient_checkpointing_enable()")
    if scheme.stages > 1:
        out.append(
            f"{plan.schedule.micro_batches} micro-batches: transformers runs stage after stage on the whole batch"
        )
    elif plan.schedule.micro_batches > 1:
        out.append(f"{plan.schedule.micro_batches} micro-batches: accumulate gradients over as many")
    return out


def _shards_elsewhere(plan: PlanDocument, n: str, emitted: Name, scheme: Scheme) -> bool:
    p = plan.parameters[n]
    computed = {a for x in p.compute for d in x.dims for a in d}
    dims = p.stored.dims[::-1] if emitted.transposed else p.stored.dims
    return any(a not in computed and scheme.sizes[a] > 1 for d in dims[1:] for a in d)
