"""MindSpore itself reads our strategy files, and moves shards that lie as our plans say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cost_models import load_profile
from planner.builder import build
from planner.emit.mindspore.strategy import merged, strategies_of_plan
from planner.emit.mindspore.strategy_map import to_json, to_protobuf
from planner.emit.names import Name
from planner.frontends import import_bytes
from planner.planning import PlanDocument, Request, describe, make_plan
from planner.planning.constraints import parse_pin
from planner.pricing import Settings

pytestmark = pytest.mark.peer
mindspore = pytest.importorskip("mindspore")

MODELS: dict[str, tuple[str, dict[str, Any], dict[str, tuple[str, ...]]]] = {
    "gpt2": (
        "gpt",
        {"layers": 2, "hidden": 64, "heads": 4, "vocab": 256, "seq": 32, "batch": 16},
        {
            "data": ("rest=data_parallel",),
            "zero": ("rest=zero",),
            "tensor": ("mesh=2x4", "*.c_attn.matmul n=y", "*.attn.c_proj.matmul k=y", "*.c_fc.matmul n=y",
                       "*.mlp.c_proj.matmul k=y", "rest=data_parallel"),
        },
    ),
    "resnet": (
        "resnet",
        {"layers": 50, "hidden": 16, "image": 32, "classes": 16, "batch": 16},
        {"data": ("rest=data_parallel",), "zero": ("rest=zero",), "searched": ()},
    ),
    "mlp": (
        "mlp",
        {"features": 64, "hidden": 128, "layers": 4, "classes": 32, "batch": 32},
        {"columns": ("mesh=8", "*matmul n=8"), "zero": ("rest=zero",), "searched": ()},
    ),
}  # fmt: skip


def plans(model: str) -> dict[str, PlanDocument]:
    kind, sizes, layouts = MODELS[model]
    graph = import_bytes(build(kind, sizes).SerializeToString(), name=model)
    out = {}
    for name, pins in layouts.items():
        constraints = None
        for pin in pins:
            found = parse_pin(pin)
            constraints = found if constraints is None else constraints + found
        settings = Settings(training=True, target="any" if name == "zero" else "mindspore")
        request = Request(8, load_profile("ascend-910b"), settings, constraints=constraints)
        out[name] = describe(make_plan(graph, request), bind={}, batch=None)
    return out


def weights(plan: PlanDocument) -> dict[str, np.ndarray[Any, Any]]:
    draw = np.random.default_rng(0)
    return {n: draw.standard_normal(p.shape, dtype=np.float32) for n, p in plan.parameters.items()}


def region(plan: PlanDocument, name: str, rank: int) -> tuple[slice, ...]:
    p = plan.parameters[name]
    return p.stored.layout().region(tuple(p.shape), plan.mesh, rank)


def save(folder: Path, plan: PlanDocument, whole: dict[str, np.ndarray[Any, Any]]) -> None:
    for rank in range(plan.mesh.devices):
        at = folder / f"rank_{rank}"
        at.mkdir(parents=True)
        shards = [
            {"name": n, "data": mindspore.Tensor(np.ascontiguousarray(v[region(plan, n, rank)]))}
            for n, v in whole.items()
        ]
        mindspore.save_checkpoint(shards, str(at / f"model_{rank}.ckpt"))


def strategy_file(folder: Path, name: str, plan: PlanDocument, form: str) -> str:
    names = {n: Name(n) for n in plan.parameters}
    found = strategies_of_plan(plan, names).map
    path = folder / f"{name}.{form}"
    path.write_bytes(to_json(found) if form == "json" else to_protobuf(found))
    return str(path)


@pytest.mark.parametrize("form", ["ckpt", "json"])
@pytest.mark.parametrize("model", MODELS)
def test_mindspore_transforms_shards_from_any_plan_to_any_other(tmp_path: Path, model: str, form: str) -> None:
    made = plans(model)
    whole = weights(next(iter(made.values())))
    files = {name: strategy_file(tmp_path, name, plan, form) for name, plan in made.items()}
    for name, plan in made.items():
        save(tmp_path / name, plan, whole)
        assert set(mindspore.build_searched_strategy(files[name])) == set(plan.parameters)
    for source in made:
        for target, plan in made.items():
            if source == target:
                continue
            out = tmp_path / f"{source}-{target}"
            mindspore.transform_checkpoints(str(tmp_path / source), str(out), "model_", files[source], files[target])
            for rank in range(8):
                needed = mindspore.rank_list_for_transform(rank, files[source], files[target])
                assert set(needed) <= set(range(8))
                (file,) = (out / f"rank_{rank}").glob("*.ckpt")
                found = mindspore.load_checkpoint(str(file))
                for n, v in whole.items():
                    np.testing.assert_array_equal(found[n].asnumpy(), v[region(plan, n, rank)])


@pytest.mark.parametrize("model", MODELS)
def test_mindspore_takes_the_settings(tmp_path: Path, model: str) -> None:
    from planner.emit.mindspore import emit_mindspore

    for plan in plans(model).values():
        files = emit_mindspore(plan, {n: Name(n) for n in plan.parameters}).files
        made: dict[str, Any] = {"__file__": str(tmp_path / "parallel.py")}
        exec(files["parallel.py"], made)
        mindspore.reset_auto_parallel_context()
        try:
            mindspore.set_auto_parallel_context(**made["CONTEXT"])
            divided = any(p.stored != p.compute[0] for p in plan.parameters.values())
            assert mindspore.get_auto_parallel_context("enable_parallel_optimizer") == divided
        finally:
            mindspore.reset_auto_parallel_context()
        net = made["parallel"](mindspore.nn.Dense(4, 4))
        assert net._parallel_mode == "semi_auto"
        for dims in made["STRATEGIES"].values():
            assert all(made["MESH"](*d).to_dict()["device_matrix"] == plan.mesh.shape for d in dims)


def test_mindspore_merges_our_stages_as_we_do(tmp_path: Path) -> None:
    plan = plans("mlp")["columns"]
    names = list(plan.parameters)
    found = strategies_of_plan(plan, {n: Name(n) for n in names}).map
    halves = [names[: len(names) // 2], names[len(names) // 2 :]]
    stages = []
    (tmp_path / "stages").mkdir()
    for number, mine in enumerate(halves):
        from dataclasses import replace

        stage = replace(
            found,
            operators={
                k: replace(s, stage=number)
                for k, s in found.operators.items()
                if any(k.endswith(f"_{n}") for n in mine)
            },
            parameters={n: found.parameters[n] for n in mine},
            current_stage=number,
        )
        stages.append(stage)
        (tmp_path / "stages" / f"strategy_{number}.ckpt").write_bytes(to_protobuf(stage))
    theirs = tmp_path / "merged.ckpt"
    mindspore.merge_pipeline_strategys(str(tmp_path / "stages"), str(theirs))
    ours = tmp_path / "ours.ckpt"
    ours.write_bytes(to_protobuf(merged(stages)))
    a, b = (mindspore.build_searched_strategy(str(p)) for p in (theirs, ours))
    assert {n: str(v) for n, v in a.items()} == {n: str(v) for n, v in b.items()}
