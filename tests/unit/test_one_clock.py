"""A configuration that is evaluated, and the plan that a search makes of it, take the same step, to the last digit."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from planner.builder import build
from planner.clock import predict
from planner.cost_models import HardwareProfile, load_profile
from planner.evaluate import program_of_configuration, traced_as
from planner.frontends import import_bytes, load_model
from planner.ir import Graph
from planner.lowering import Program
from planner.planning import Request, make_plan
from planner.planning.pipeline import Parts, plan_in_parts
from planner.planning.schemes import parse_strategy
from planner.pricing import Settings
from planner.requests.search import SearchRequest
from planner.requests.strategy import take_strategy

SAMPLES = Path(__file__).parents[2] / "sample_graphs"
MACHINES = ("a100-80", "h100", "v100", "b200", "ascend-910b", "cpu")
DEVICES, BATCH = 8, 32
SETTINGS = Settings(True, "bf16", "adam")
EVERY = (
    "ddp", "zero1", "zero2", "zero3", "fsdp", "hsdp:shard=4", "zero1:micro_batch=2", "fsdp:micro_batch=1",
    "ddp:recompute=full,micro_batch=2", "zero2:micro_batch=2", "ddp:attention=unfused,loss=softmax,fuse=false",
    "zero3:frozen=true,micro_batch=2",
)  # fmt: skip
OF_LAYERS = (
    "megatron:tp=2,micro_batch=8", "megatron:tp=2,sp=false,zero=0,micro_batch=4", "megatron:pp=2,micro_batch=2",
    "megatron:tp=2,pp=2,micro_batch=4,recompute=full", "megatron:cp=2,micro_batch=4",
    "megatron:cp=2,context=all-to-all,micro_batch=4",
    "megatron:tp=2,micro_batch=4,recompute=selective,attention=unfused", "megatron:micro_batch=2,recompute=products",
    "megatron:micro_batch=2,recompute=full,recompute_blocks=0.5", "megatron:tp=2,micro_batch=4,parameter_bytes=4",
    "megatron:pp=2,micro_batch=2,stage_layers=1-1",
    "megatron:tp=2,micro_batch=2,copies=2", "megatron:tp=2,pp=2,micro_batch=2,copies=2,recompute=full",
    "zero2:tp=2,micro_batch=2,copies=2", "megatron:pp=2,zero=0,micro_batch=8",
    "megatron:tp=2,micro_batch=4,overlap_tensor=true,gradient_bytes=2",
    "megatron:tp=2,pp=2,micro_batch=4,frozen=true",
)  # fmt: skip
OF_FOUR_HEADS = ("megatron:cp=2,tp=2,context=all-to-all,sp=false,micro_batch=4",)  # of keys, too
OF_SCHEDULES = (
    "megatron:pp=2,schedule=gpipe,micro_batch=2", "megatron:pp=4,schedule=zb-h1,micro_batch=2",
    "megatron:pp=2,vpp=2,micro_batch=2", "megatron:pp=2,tp=2,vpp=2,micro_batch=4,stage_layers=1-1-1-1,recompute=full",
    "megatron:pp=2,schedule=zb-v,micro_batch=4,zero=0", "megatron:pp=2,vpp=2,micro_batch=4,recompute=selective",
    "zero3:pp=2,vpp=2,micro_batch=4", "megatron:pp=4,micro_batch=2,recompute=full,recompute_layers=1-1-0-0",
    "megatron:pp=2,schedule=zb-v,micro_batch=4,recompute=full,recompute_layers=1-0-0-1",
)  # fmt: skip
MODELS = {
    "gpt_tiny": EVERY + OF_LAYERS + OF_FOUR_HEADS,
    "gpt4": OF_SCHEDULES,
    "llama_tiny": EVERY + OF_LAYERS,
    "moe_tiny": (*EVERY[:5], "megatron:ep=2,micro_batch=4"),
    "bert_tiny": (*EVERY, "megatron:tp=2,micro_batch=4"),
    "vit_tiny": (*EVERY[:6], "megatron:tp=2,micro_batch=4"),
    "resnet18_tiny": EVERY[:7],
    "mlp": EVERY[:7],
}
CASES = [(model, strategy) for model, strategies in MODELS.items() for strategy in strategies]


@cache
def graph_of(model: str, batch: int | None) -> Graph:
    if model == "gpt4":
        sizes = {"layers": 4, "hidden": 64, "heads": 4, "vocab": 256, "seq": 32, "batch": batch or BATCH}
        return import_bytes(build("gpt", sizes).SerializeToString(), name=model)
    return load_model(SAMPLES / f"{model}.onnx", batch=batch)


def searched(model: str, strategy: str, profile: HardwareProfile) -> tuple[float, dict[str, float], int, Program]:
    """Of `search --strategy`: the step, its parts, bytes of the fullest device, and the program of a micro-batch."""
    asked = SearchRequest(Path(f"{model}.onnx"), str(DEVICES), strategy=strategy, batch=BATCH)
    stages, micro_batches, recompute, c, pins = take_strategy(asked, lambda batch: graph_of(model, batch))
    graph = graph_of(model, c.micro_batch * c.dp)
    request = Request(
        DEVICES // stages, profile, SETTINGS, recompute=recompute, constraints=pins, execution=c, memory_limit=1 << 50
    )
    if stages * micro_batches == 1:
        planned = make_plan(graph, request)
        parts_s = {k: n * planned.priced.machine.unit_s for k, n in planned.timeline.parts.items()}
        return planned.step_time_s, parts_s, planned.peak_memory_bytes, planned.program
    planned, pipeline = plan_in_parts(graph, request, Parts(stages, micro_batches, c.micro_batch * c.dp))
    return pipeline.step_time_s, dict(pipeline.parts_s), max(pipeline.memory), planned.program


@pytest.mark.parametrize(("model", "strategy"), CASES)
def test_the_step_evaluated_is_the_step_searched(model: str, strategy: str) -> None:
    for machine in MACHINES:
        profile = load_profile(machine)
        c = parse_strategy(strategy, devices=DEVICES, batch=BATCH, precision="bf16", optimizer="adam")
        program = program_of_configuration(graph_of(model, c.micro_batch * c.dp), c, profile)
        evaluated = predict(traced_as(c, program, profile.framework.joins_kernels), c, profile)
        step_s, parts_s, peak, planned = searched(model, strategy, profile)
        assert peak == round(evaluated.allocated_bytes), machine
        assert planned.traffic(SETTINGS) == program.traffic(SETTINGS), machine
        assert step_s == pytest.approx(evaluated.step_time_s, rel=1e-9, abs=2e-12), machine
        if c.pp * c.micro_batches > 1:
            assert step_s == evaluated.step_time_s, machine
            for name, seconds in evaluated.breakdown.items():
                assert parts_s[name] == pytest.approx(seconds, rel=1e-9, abs=2e-12), (machine, name)
        else:
            for name, seconds in (("optimizer", "update"), ("outside", "overhead")):
                assert parts_s[name] == pytest.approx(evaluated.breakdown[seconds], rel=1e-9, abs=2e-12), (
                    machine,
                    name,
                )


def test_there_are_at_least_300_triples() -> None:
    assert len(CASES) * len(MACHINES) >= 300
