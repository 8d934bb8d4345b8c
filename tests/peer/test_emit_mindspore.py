"""MindSpore itself reads our strategy files, and moves shards that lie as our plans say."""

from __future__ import annotations

from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner.builder import build
from planner.cost_models import load_profile
from planner.emit.mindspore import emit_mindspore
from planner.emit.mindspore.slots import PREFIXES, with_slots
from planner.emit.mindspore.strategy import strategies_of_plan
from planner.emit.mindspore.strategy_map import to_json, to_protobuf
from planner.emit.names import Name
from planner.emit.stages import holders
from planner.frontends import import_bytes
from planner.planning import PlanDocument, Request, describe, make_plan
from planner.planning.constraints import parse_pin
from planner.planning.pipeline import pipelined
from planner.pricing import Settings

pytestmark = pytest.mark.peer
mindspore = pytest.importorskip("mindspore")

TENSOR = ("*.c_attn.matmul n=y", "*.attn.c_proj.matmul k=y", "*.c_fc.matmul n=y", "*.mlp.c_proj.matmul k=y")
MODELS: dict[str, tuple[str, dict[str, Any], dict[str, tuple[str, ...]]]] = {
    "gpt2": (
        "gpt",
        {"layers": 2, "hidden": 64, "heads": 4, "vocab": 256, "seq": 32, "batch": 16},
        {
            "data": ("rest=data_parallel",),
            "zero": ("rest=zero",),
            "tensor": ("mesh=2x4", *TENSOR, "rest=data_parallel"),
            "tensor and zero": ("mesh=2x4", *TENSOR, "*.mlp.c_proj.weight stored=[y.x,_]",
                                "*.mlp.c_fc.weight stored=[x,y]", "rest=zero"),
            "zero and tensor": ("mesh=4x2", *(p.replace("=y", "=x") for p in TENSOR),
                                "*.mlp.c_proj.weight stored=[x.y,_]", "rest=zero"),
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
        settings = Settings(training=True, target="mindspore")
        request = Request(8, load_profile("ascend-910b"), settings, constraints=constraints)
        out[name] = describe(make_plan(graph, request), bind={}, batch=None)
    return out


def weights(plan: PlanDocument) -> dict[str, np.ndarray[Any, Any]]:
    """With the slots of nn.Adam and of nn.AdamWeightDecay."""
    draw = np.random.default_rng(0)
    found = {n: p.shape for n, p in plan.parameters.items()}
    found |= {f"{p}.{n}": plan.parameters[n].shape for p in PREFIXES["adam"] for n in plan.parameters}
    return {n: draw.standard_normal(shape, dtype=np.float32) for n, shape in found.items()}


def region(plan: PlanDocument, name: str, rank: int) -> tuple[slice, ...]:
    prefix, _, rest = name.partition(".")
    p = plan.parameters[rest if prefix in PREFIXES["adam"] else name]
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
    found = with_slots(strategies_of_plan(plan, names).map, plan, names)
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
        assert set(mindspore.build_searched_strategy(files[name])) == set(whole)
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


def pipeline_plan(*pins: str) -> PlanDocument:
    """The MLP on 8 devices: 4 micro-batches through 2 stages of 4."""
    kind, sizes, _ = MODELS["mlp"]
    graph = import_bytes(build(kind, {**sizes, "batch": 8, "hidden": 4096}).SerializeToString(), name="mlp")
    constraints = reduce(add, map(parse_pin, pins)) if pins else None
    settings = Settings(training=True, target="mindspore")
    planned = make_plan(graph, Request(4, load_profile("ascend-910b"), settings, constraints=constraints))
    return describe(planned, bind={}, batch=None, pipeline=pipelined(planned, 2, 4))


def staged_files(folder: Path, plan: PlanDocument) -> dict[str, bytes]:
    files = emit_mindspore(plan, {n: Name(n) for n in plan.parameters}).files
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return dict(files)


def test_mindspore_merges_our_stages_as_we_do(tmp_path: Path) -> None:
    files = staged_files(tmp_path / "ours", pipeline_plan("mesh=4", "*matmul n=x"))
    (tmp_path / "stages").mkdir()
    for stage in range(2):
        (tmp_path / "stages" / f"strategy_{stage}.ckpt").write_bytes(files[f"strategy_stage{stage}.ckpt"])
    theirs = tmp_path / "merged.ckpt"
    mindspore.merge_pipeline_strategys(str(tmp_path / "stages"), str(theirs))
    a, b = (mindspore.build_searched_strategy(str(p)) for p in (theirs, tmp_path / "ours" / "strategy_merged.ckpt"))
    assert {n.partition("-")[0] for n in a} == {"0", "1"}
    assert {n: str(v) for n, v in a.items()} == {n: str(v) for n, v in b.items()}


@pytest.mark.parametrize("form", ["ckpt", "json"])
@pytest.mark.parametrize("pins", [(), ("mesh=4", "*matmul n=x"), ("mesh=2x2", "*matmul m=x n=y")], ids=str)
def test_mindspore_moves_shards_into_stages_and_out_of_them(tmp_path: Path, pins: tuple[str, ...], form: str) -> None:
    plan = pipeline_plan(*pins)
    staged_files(tmp_path / "ms", plan)
    merged_file = str(tmp_path / "ms" / f"strategy_merged.{form}")
    kind, sizes, _ = MODELS["mlp"]
    graph = import_bytes(build(kind, {**sizes, "hidden": 4096}).SerializeToString(), name="mlp")
    settings = Settings(training=True, target="mindspore")
    request = Request(8, load_profile("ascend-910b"), settings, constraints=parse_pin("rest=zero"))
    flat = describe(make_plan(graph, request), bind={}, batch=None)
    flat_file = strategy_file(tmp_path, "flat", flat, form)
    whole = weights(flat)
    save(tmp_path / "flat", flat, whole)
    held = {n: stages[0] for n, stages in holders(plan).items()}
    assert set(held.values()) == {0, 1}
    held |= {f"{p}.{n}": stage for p in PREFIXES["adam"] for n, stage in held.items()}

    def own(rank: int) -> dict[str, np.ndarray[Any, Any]]:
        stage, local = divmod(rank, plan.mesh.devices)
        return {n: whole[n][region(plan, n, local)] for n, s in held.items() if s == stage}

    for rank in range(plan.devices):
        at = tmp_path / "staged" / f"rank_{rank}"
        at.mkdir(parents=True)
        shards = [{"name": n, "data": mindspore.Tensor(np.ascontiguousarray(v))} for n, v in own(rank).items()]
        mindspore.save_checkpoint(shards, str(at / f"model_{rank}.ckpt"))
    ways = [("staged", merged_file, "flat", flat_file), ("flat", flat_file, "staged", merged_file)]
    for source, source_file, target, target_file in ways:
        out = tmp_path / f"{source}-{target}"
        mindspore.transform_checkpoints(str(tmp_path / source), str(out), "model_", source_file, target_file)
        for rank in range(8):
            assert set(mindspore.rank_list_for_transform(rank, source_file, target_file)) <= set(range(8))
            (file,) = (out / f"rank_{rank}").glob("*.ckpt")
            found = mindspore.load_checkpoint(str(file))
            wanted = own(rank) if target == "staged" else {n: v[region(flat, n, rank)] for n, v in whole.items()}
            assert set(found) == set(wanted)
            for n, v in wanted.items():
                np.testing.assert_array_equal(found[n].asnumpy(), v)


def test_the_cells_of_a_network_get_the_stages_of_their_parameters(tmp_path: Path) -> None:
    nn = mindspore.nn
    plan = pipeline_plan("mesh=4")
    staged_files(tmp_path / "ms", plan)
    shapes = {n: list(p.shape) for n, p in plan.parameters.items()}

    class Network(nn.Cell):  # type: ignore[misc, name-defined]  # MindSpore has no types
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.CellList([nn.Dense(*shapes[f"layers.{i}.weight"]) for i in range(4)])

    network = Network()
    assert {p.name for p in network.get_parameters()} == set(shapes)
    made: dict[str, Any] = {"__file__": str(tmp_path / "ms" / "parallel.py")}
    exec((tmp_path / "ms" / "parallel.py").read_bytes(), made)
    made["get_rank"] = lambda: 5
    net = made["parallel"](nn.WithLossCell(network, nn.MSELoss()), copies=2)
    assert net._pipeline_stages == 2
    assert net._pipeline_scheduler == "1f1b"
    assert Path(net._load_strategy_file_path).name == "strategy_stage1.ckpt"
    held = {n: stages[0] for n, stages in holders(plan).items()}
    assert {n: network.layers[int(n.split(".")[1])].pipeline_stage for n in shapes} == held
    assert [c.copies for _, c in net.cells_and_names() if type(c).__name__ == "Part"] == [2]
    step = mindspore.Model(net, optimizer=nn.Adam(network.trainable_params())).train_network
    assert step.sens == 1 / plan.schedule.micro_batches  # of the sum that micro-batches give


def test_mindspore_takes_the_settings_of_the_outermost_cell_alone(tmp_path: Path) -> None:
    """Which is why no step cell goes around what `parallel` gives (docs/mindspore.md)."""
    from mindspore.parallel._utils import _init_auto_parallel_context

    plan = plans("mlp")["zero"]
    made: dict[str, Any] = {"__file__": str(tmp_path / "parallel.py")}
    exec(emit_mindspore(plan, {n: Name(n) for n in plan.parameters}).files["parallel.py"], made)
    network = mindspore.nn.WithLossCell(mindspore.nn.Dense(4, 4), mindspore.nn.MSELoss())
    optimizer = mindspore.nn.Adam(network.trainable_params())
    inside = made["parallel"](mindspore.nn.TrainOneStepCell(network, optimizer))
    around = mindspore.nn.TrainOneStepCell(made["parallel"](network), optimizer)
    inside._device_num = around.network._device_num = plan.devices  # as after init()
    mindspore.reset_auto_parallel_context()
    try:
        for step, mode in ((around, "stand_alone"), (inside, "semi_auto_parallel")):
            _init_auto_parallel_context(step)
            assert mindspore.get_auto_parallel_context("parallel_mode") == mode
    finally:
        mindspore.reset_auto_parallel_context()


def test_mindspore_takes_what_is_before_a_dash_for_a_stage(tmp_path: Path) -> None:
    """Which is why such names are refused (planner.emit.mindspore.parameter_names)."""
    plan = pipeline_plan("mesh=4")
    names = {n: Name(n.replace(".", "-", 1)) for n in plan.parameters}
    path = tmp_path / "strategy.ckpt"
    path.write_bytes(emit_mindspore(plan, names).files["strategy_stage0.ckpt"])
    with pytest.raises(ValueError, match="Convert layout strategy to list"):
        mindspore.rank_list_for_transform(0, str(path), str(path))


@pytest.mark.parametrize(
    ("optimizer", "classes"), [("adam", ["Adam", "AdamWeightDecay"]), ("momentum", ["Momentum"]), ("sgd", ["SGD"])]
)
def test_slots_are_called_as_mindspores_optimizers_call_them(optimizer: str, classes: list[str]) -> None:
    rates = {"learning_rate": 0.1} | ({"momentum": 0.9} if optimizer == "momentum" else {})
    found = set()
    for name in classes:
        cell = mindspore.nn.Dense(4, 4)
        made = getattr(mindspore.nn, name)(cell.trainable_params(), **rates)
        found |= {p.name.removesuffix(".weight") for p in made.get_parameters() if p.name.endswith(".weight")}
    assert found == set(PREFIXES[optimizer])  # type: ignore[index]
