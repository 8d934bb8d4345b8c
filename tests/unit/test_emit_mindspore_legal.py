"""Strategies in our files are ones that MindSpore takes: even, within the devices, contracted dimensions alike."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from planner.cli.main import main
from planner.emit.mindspore.strategy import strategies_of_plan
from planner.emit.names import Name
from planner.frontends import load_model
from planner.planning import read_plan
from planner.planning.readers import readers_of

SAMPLES = Path(__file__).parents[2] / "sample_graphs"
PLANS = {
    "gpt-searched": ("gpt_tiny", 8, ("--batch", "64")),
    "gpt-tensor": ("gpt_tiny", 8, ("--mesh", "2x4", "--pin", "*.c_fc.matmul b0=x n=y",
                                   "--pin", "*.mlp.c_proj.matmul b0=x k=y")),
    "gpt-2-by-2-by-2": ("gpt_tiny", 8, ("--mesh", "2x2x2", "--batch", "64")),
    "bert-searched": ("bert_tiny", 8, ("--batch", "64")),
    "vit-searched": ("vit_tiny", 8, ("--batch", "64")),
    "llama-searched": ("llama_tiny", 8, ("--batch", "64")),
    "moe-searched": ("moe_tiny", 4, ()),
    "resnet-searched": ("resnet18_tiny", 8, ("--batch", "64")),
    "mlp-searched": ("mlp", 8, ("--batch", "64")),
    "mlp-columns": ("mlp", 8, ("--pin", "mesh=8", "--pin", "*.matmul n=8", "--pin", "rest=replicated")),
}  # fmt: skip


@pytest.mark.parametrize("case", PLANS)
def test_strategies_are_even_within_the_devices_and_agree(tmp_path: Path, case: str) -> None:
    model, devices, options = PLANS[case]
    path = SAMPLES / f"{model}.onnx"
    arguments = ["search", str(path), "--devices", str(devices), "--hardware", "ascend-910b", "--no-cache"]
    assert main([*arguments, "--target", "mindspore", "--out", str(tmp_path), *options]) == 0
    plan = read_plan(tmp_path / "plan.json")
    graph = load_model(path, bind=plan.model.bind, batch=plan.model.batch)
    found = strategies_of_plan(plan, {n: Name(n) for n in plan.parameters})
    assert found.map.operators
    for key, strategy in found.map.operators.items():
        keyed = found.keyed[key]
        shards = strategy.operands
        for dims in shards:
            assert devices % math.prod(dims) == 0, key
        if keyed.primitive in ("MatMul", "BatchMatMul") and len(shards[0]) >= 2:
            op = graph.producers[keyed.operator]
            rows, inner = shards[0][:-1], shards[0][-1]
            shape = graph.tensors[op.inputs[0]].shape
            assert shape is not None
            assert shape[-1] % inner == 0
            assert math.prod(shape[:-1]) % math.prod(rows) == 0
            turned = any(
                r.transposed for n in plan.parameters for r in readers_of(graph, n) if r.operator == keyed.operator
            )
            assert shards[1][-1 if turned else -2] == inner, key
        elif keyed.primitive not in ("BiasAdd", "MatMul", "BatchMatMul"):
            op = graph.producers[keyed.operator]
            for name, dims in zip(op.inputs, shards, strict=False):
                sizes = graph.tensors[name].shape
                if sizes is not None and len(sizes) == len(dims):
                    assert all(n % s == 0 for n, s in zip(sizes, dims, strict=True)), key
    for name, p in found.map.parameters.items():
        split = [p.arrangement.shards(d) for d in range(len(plan.parameters[name].shape))]
        assert devices % math.prod([*split, p.arrangement.optimizer_shards or 1]) == 0
        assert all(n % s == 0 for n, s in zip(plan.parameters[name].shape, split, strict=True))
