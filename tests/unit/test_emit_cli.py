"""`planner emit` and `planner read`: the jobs that MindSpore's users bring, from pins to files and back."""

from __future__ import annotations

import importlib.util
import json
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from planner.cli.main import main
from planner.emit.mindspore.slots import PREFIXES
from planner.emit.mindspore.strategy_map import read_strategy_map
from planner.planning import PlanDocument, read_plan
from planner.planning.compare import Differences, differences

SAMPLES = Path(__file__).parents[2] / "sample_graphs"
TENSOR_PARALLEL = (
    "mesh=2x4", "*.c_attn.matmul b0=x n=y", "*.attn.c_proj.matmul b0=x k=y", "*.c_fc.matmul b0=x n=y",
    "*.mlp.c_proj.matmul b0=x k=y", "rest=data_parallel",
)  # fmt: skip


def search(folder: Path, model: Path, devices: int, *pins: str, hardware: str = "ascend-910b") -> Path:
    options = [o for p in pins for o in ("--pin", p)]
    arguments = ["search", str(model), "--devices", str(devices), "--hardware", hardware, "--out", str(folder)]
    assert main([*arguments, "--target", "mindspore", "--no-cache", *options]) == 0
    return folder / "plan.json"


def emit(plan: Path, out: Path, *options: str) -> dict[str, bytes]:
    assert main(["emit", str(plan), "--target", "mindspore", "--out", str(out), *options]) == 0
    return {p.name: p.read_bytes() for p in out.iterdir()}


@pytest.fixture(scope="module")
def resnet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("resnet") / "resnet.onnx"
    sizes = ("--layers", "50", "--hidden", "16", "--image", "32", "--classes", "10", "--batch", "64")
    assert main(["build", "resnet", *sizes, "--out", str(path)]) == 0
    return path


def hosts(folder: Path, servers: int) -> Path:
    path = folder / "hosts"
    lines = (f"10.0.0.{9 + 2 * s} " + " ".join(f"192.{s + 1}.{i}.6" for i in range(8)) for s in range(servers))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(("devices", "servers"), [(8, 1), (16, 2)])
def test_data_parallel_resnet_on_ascend_910(tmp_path: Path, resnet: Path, devices: int, servers: int) -> None:
    plan = search(tmp_path / "plan", resnet, devices, "rest=data_parallel", hardware="ascend-910a")
    files = emit(plan, tmp_path / "out", "--hosts", str(hosts(tmp_path, servers)))
    assert b"'dataset_strategy': 'data_parallel'" in files["parallel.py"]
    table = json.loads(files["rank_table.json"])
    assert table["server_count"] == str(servers)
    assert [s["server_id"] for s in table["server_list"]] == sorted(s["server_id"] for s in table["server_list"])
    assert ("run_cluster.sh" in files) == (servers > 1)
    strategies = read_strategy_map(tmp_path / "out" / "strategy.ckpt")
    assert strategies.operators["Conv2D_conv1.weight"].operands == ((devices, 1, 1, 1), (1, 1, 1, 1))
    assert all(p.arrangement.tensor_map.count(-1) == len(p.arrangement.tensor_map)
               for p in strategies.parameters.values())  # fmt: skip


@pytest.mark.parametrize(("mesh", "loads"), [("2x8", True), ("8x2", False)])
def test_one_product_is_split_and_the_rest_data_parallel(
    tmp_path: Path, resnet: Path, mesh: str, loads: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    pins = (f"mesh={mesh}", "fc.gemm shard=[[1,1],[1,2]]", "rest=data_parallel")
    plan = search(tmp_path / "plan", resnet, 16, *pins, hardware="ascend-910a")
    files = emit(plan, tmp_path / "out")
    document = json.loads(files["strategy.json"])
    assert document["parallel_strategy_item"]["MatMul_fc.weight"]["parallel_strategy"] == [[1, 1], [1, 2]]
    assert document["parallel_strategy_item"]["BiasAdd_fc.bias"]["parallel_strategy"] == [[1, 2], [2]]
    told = capsys.readouterr().out
    module = files["parallel.py"].decode()
    assert ("\n    net.load_param_strategy_file(STRATEGY_FILE)\n" in module) == loads
    assert ("over other ranks than the plan" in told) != loads
    assert ("'fc.gemm'" in module) != loads
    assert ("'fc.gemm:bias'" in module) != loads
    assert ("'conv1.conv'" in module) != loads  # the file is not loaded: everything it would have set is listed
    assert ("strategy_ckpt_load_file" in module) == loads


def test_a_table_shared_by_conflicting_pins_is_refused_with_both_readers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pins = ("mesh=4x2", "transformer.wte.gather v=x", "lm_head.transpose d1=x")
    options = [o for p in pins for o in ("--pin", p)]
    model = str(SAMPLES / "gpt_tiny.onnx")
    out = str(tmp_path / "plan")
    plain = ["search", model, "--devices", "8", "--hardware", "ascend-910b", "--no-cache", "--out", out, *options]
    assert main([*plain, "--target", "mindspore"]) == 3
    error = capsys.readouterr().err
    assert "transformer.wte.gather" in error
    assert "lm_head" in error
    assert main(plain) == 0
    assert main(["emit", f"{out}/plan.json", "--target", "mindspore", "--out", str(tmp_path / "ms")]) == 3
    error = capsys.readouterr().err
    assert "transformer.wte.weight is read as" in error
    assert "transformer.wte.gather" in error
    assert "lm_head.matmul by" in error or "by lm_head.matmul" in error
    assert not (tmp_path / "ms").exists()


@pytest.fixture(scope="module")
def tensor_parallel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return search(tmp_path_factory.mktemp("tp"), SAMPLES / "gpt_tiny.onnx", 8, *TENSOR_PARALLEL)


def test_round_trip_gives_the_same_plan(tmp_path: Path, tensor_parallel: Path) -> None:
    emit(tensor_parallel, tmp_path / "ms")
    for form in ("ckpt", "json"):
        back = tmp_path / form / "plan.json"
        arguments = ["read", str(tmp_path / "ms" / f"strategy.{form}"), "--format", "mindspore", "--out", str(back)]
        assert main([*arguments, "--model", str(SAMPLES / "gpt_tiny.onnx")]) == 0
        ours, theirs = read_plan(tensor_parallel), read_plan(back)
        assert theirs.mesh == ours.mesh
        assert theirs.parameters == ours.parameters
        named = [n for n in ours.operators if n.endswith("matmul") and n.split(".")[-2] in ("c_attn", "c_proj", "c_fc")]
        assert all(theirs.operators[n].operands == ours.operators[n].operands for n in named)
        assert theirs.cost.objective_s <= ours.cost.objective_s * (1 + 1e-9)
        emit(back, tmp_path / f"{form}-again")
        again = tmp_path / f"{form}-again" / "strategy.ckpt"
        assert read_strategy_map(again).parameters == read_strategy_map(tmp_path / "ms" / "strategy.ckpt").parameters


def test_names_of_the_network_are_used(tmp_path: Path, tensor_parallel: Path) -> None:
    plan = read_plan(tensor_parallel)
    network = {n: {"name": f"net.{i}", "transposed": len(p.shape) == 2}
               for i, (n, p) in enumerate(plan.parameters.items())}  # fmt: skip
    names = tmp_path / "names.json"
    names.write_text(json.dumps({"parameters": network}), encoding="utf-8")
    emit(tensor_parallel, tmp_path / "ms", "--names", str(names))
    found = read_strategy_map(tmp_path / "ms" / "strategy.ckpt")
    named = {str(n["name"]) for n in network.values()}
    assert set(found.parameters) == named | {f"{p}.{n}" for p in PREFIXES["adam"] for n in named}
    back = tmp_path / "plan.json"
    arguments = ["read", str(tmp_path / "ms" / "strategy.ckpt"), "--format", "mindspore", "--out", str(back)]
    assert main([*arguments, "--model", str(SAMPLES / "gpt_tiny.onnx"), "--names", str(names)]) == 0
    assert read_plan(back).parameters == plan.parameters


class Primitive:
    def __init__(self) -> None:
        self.strategy: Any = None

    def shard(self, strategy: Any) -> None:
        self.strategy = strategy


class Wrapped:
    """A network in a wrapper: what it was called with, innermost first."""

    def __init__(self, network: Any, *call: Any) -> None:
        self.network, self.calls = network, [*getattr(network, "calls", []), call]

    def get_parameters(self, expand: bool = True) -> Any:
        return self.network.get_parameters() if expand else []

    def cells_and_names(self) -> Any:
        return [("", self), *((f"network.{n}".rstrip("."), c) for n, c in self.network.cells_and_names())]


class NeuralCell:
    """A stand-in for mindspore.nn.Cell, which calls `construct`."""

    def __init__(self, auto_prefix: bool = True) -> None:
        self.auto_prefix = auto_prefix

    def __call__(self, *inputs: Any) -> Any:
        return self.construct(*inputs)  # type: ignore[attr-defined]  # of what is derived

    def get_parameters(self, expand: bool = True) -> Any:
        return self.network.get_parameters() if expand else []  # type: ignore[attr-defined]  # of what is derived

    def cells_and_names(self) -> Any:
        inside = self.network.cells_and_names()  # type: ignore[attr-defined]  # of what is derived
        return [("", self), *((f"network.{n}".rstrip("."), c) for n, c in inside)]


def generated(path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The generated module, on stand-ins for MindSpore's classes."""

    class AutoParallel:
        def __init__(self, network: Any, parallel_mode: str) -> None:
            self.calls: list[Any] = [("init", network, parallel_mode)]

        def __getattr__(self, name: str) -> Any:
            return lambda *a, **k: self.calls.append((name, *a, *k.items()))

    def layout(sizes: tuple[int, ...], names: tuple[str, ...]) -> Any:
        return lambda *dims: (sizes, names, dims)

    parallel = types.ModuleType("mindspore.parallel")
    parallel.Layout = layout  # type: ignore[attr-defined]  # a stand-in
    auto = types.ModuleType("mindspore.parallel.auto_parallel")
    auto.AutoParallel = AutoParallel  # type: ignore[attr-defined]  # a stand-in
    wrappers = types.ModuleType("mindspore.parallel.nn")
    for name in ("MicroBatchInterleaved", "GradAccumulation", "Pipeline"):
        setattr(wrappers, name, lambda network, *a, _name=name, **k: Wrapped(network, _name, *a, *k.items()))
    communication = types.ModuleType("mindspore.communication")
    communication.get_rank = lambda: 5  # type: ignore[attr-defined]  # a stand-in
    root = types.ModuleType("mindspore")
    root.nn = types.SimpleNamespace(Cell=NeuralCell)  # type: ignore[attr-defined]  # a stand-in
    for name, module in {
        "mindspore": root,
        wrappers.__name__: wrappers,
        communication.__name__: communication,
        parallel.__name__: parallel,
        auto.__name__: auto,
    }.items():
        monkeypatch.setitem(sys.modules, name, module)
    spec = importlib.util.spec_from_file_location("generated_parallel", path)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def test_the_generated_module_says_what_the_plan_says(
    tmp_path: Path, tensor_parallel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    emit(tensor_parallel, tmp_path / "ms")
    module = generated(tmp_path / "ms" / "parallel.py", monkeypatch)
    network = types.SimpleNamespace(get_parameters=lambda: [])
    net = module.parallel(network)
    assert net.calls[0] == ("init", network, "semi_auto")
    whole = ((2, 4), ("x", "y"), ("x", "None"))
    assert ("dataset_strategy", (whole, whole)) in net.calls
    assert module.CONTEXT["dataset_strategy"] == (whole, whole)
    plan: PlanDocument = read_plan(tensor_parallel)
    for name, dims in module.STRATEGIES.items():
        primitive = Primitive()
        module.shard({name: primitive})
        if name.endswith(":bias"):
            continue
        operands = [x.dims for x in plan.operators[name].operands if x is not None]
        for (sizes, names, told), held, listed in zip(primitive.strategy, operands, dims, strict=False):
            assert (sizes, names) == ((2, 4), ("x", "y"))
            assert told == listed
            if len(told) == len(held):
                assert told == tuple(tuple(d) if len(d) > 1 else (d[0] if d else "None") for d in held)
    with pytest.raises(KeyError, match="no strategy for 'nothing'"):
        module.shard({"nothing": Primitive()})


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["emit", "none.json", "--target", "mindspore", "--out", "x"], 3, "cannot be read"),
        (["read", "none.ckpt", "--format", "mindspore", "--model", "MODEL", "--out", "x"], 3, "cannot be read"),
    ],
)
def test_missing_files_are_the_input_at_fault(
    arguments: list[str], status: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    told = [str(SAMPLES / "gpt_tiny.onnx") if a == "MODEL" else a for a in arguments]
    assert main(told) == status
    assert message in capsys.readouterr().err


def test_servers_must_hold_the_plans_devices(
    tmp_path: Path, tensor_parallel: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["emit", str(tensor_parallel), "--target", "mindspore", "--out", str(tmp_path / "ms")]
    assert main([*arguments, "--hosts", str(hosts(tmp_path, 2))]) == 3
    assert "the plan is for 8 devices, the servers hold 16" in capsys.readouterr().err


def test_files_are_the_same_each_time(tmp_path: Path, tensor_parallel: Path) -> None:
    assert emit(tensor_parallel, tmp_path / "a") == emit(tensor_parallel, tmp_path / "b")


def test_optimizer_shards_are_read_back(tmp_path: Path) -> None:
    arguments = ["search", str(SAMPLES / "gpt_tiny.onnx"), "--devices", "8", "--hardware", "ascend-910b", "--no-cache"]
    assert main([*arguments, "--pin", "rest=zero", "--out", str(tmp_path / "plan")]) == 0
    files = emit(tmp_path / "plan" / "plan.json", tmp_path / "ms")
    assert b"net.hsdp(shard_size=-1, threshold=0" in files["parallel.py"]
    assert b"'enable_parallel_optimizer': True" in files["parallel.py"]
    back = tmp_path / "plan.json"
    arguments = ["read", str(tmp_path / "ms" / "strategy.ckpt"), "--format", "mindspore", "--out", str(back)]
    assert main([*arguments, "--model", str(SAMPLES / "gpt_tiny.onnx")]) == 0
    assert read_plan(back).parameters == read_plan(tmp_path / "plan" / "plan.json").parameters


def refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], devices: int, *pins: str) -> str:
    """What `emit` says of a plan for any target that MindSpore cannot express."""
    options = [o for p in pins for o in ("--pin", p)]
    arguments = ["search", str(SAMPLES / "gpt_tiny.onnx"), "--devices", str(devices), "--hardware", "ascend-910b"]
    assert main([*arguments, "--no-cache", "--out", str(tmp_path / "plan"), *options]) == 0
    capsys.readouterr()
    assert (
        main(["emit", str(tmp_path / "plan" / "plan.json"), "--target", "mindspore", "--out", str(tmp_path / "ms")])
        == 3
    )
    assert not (tmp_path / "ms").exists()
    return capsys.readouterr().err


def test_groups_of_two_sizes_have_one_setting_and_what_differs_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pins = ("mesh=2x4", "rest=data_parallel", "*.c_fc.weight stored=[y,_]", "*.mlp.c_proj.weight stored=[x.y,_]")
    arguments = ["search", str(SAMPLES / "gpt_tiny.onnx"), "--devices", "8", "--hardware", "ascend-910b", "--no-cache"]
    assert main([*arguments, "--out", str(tmp_path / "plan"), *(o for p in pins for o in ("--pin", p))]) == 0
    module = emit(tmp_path / "plan" / "plan.json", tmp_path / "ms")["parallel.py"].decode()
    assert "hsdp(shard_size=-1, " in module
    assert "among how many ranks 2 parameters (transformer.h.0.mlp.c_fc.weight" in capsys.readouterr().out


def test_positions_of_every_sample_are_no_contiguous_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    error = refused(tmp_path, capsys, 8, "mesh=8", "*.c_fc.matmul m=x")
    assert "contiguous parts" in error
    assert "c_fc.matmul" in error


def test_normalised_dimensions_stay_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "split along what it normalises" in refused(tmp_path, capsys, 4, "mesh=4", "*.ln_1.layernormalization d2=x")


def test_data_on_other_ranks_is_noticed_where_weights_are_whole(tmp_path: Path) -> None:
    plan = search(tmp_path / "plan", SAMPLES / "gpt_tiny.onnx", 8, "mesh=2x4", "*.c_fc.matmul b0=y", "rest=replicated")
    module = emit(plan, tmp_path / "ms")["parallel.py"].decode()
    assert "\n    net.load_param_strategy_file" not in module


@pytest.mark.parametrize("name", ['q"""; print(5); """', "back\\N", "new\nline", "ümlaut", "$model"])
def test_names_are_data_in_the_generated_module(
    tmp_path: Path,
    tensor_parallel: Path,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    document = json.loads(tensor_parallel.read_text(encoding="utf-8"))
    document["model"]["name"] = name
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(document), encoding="utf-8")
    for target in ("mindspore", "dtensor"):
        assert main(["emit", str(plan), "--target", target, "--out", str(tmp_path / target)]) == 0
    capsys.readouterr()
    generated(tmp_path / "mindspore" / "parallel.py", monkeypatch)
    assert capsys.readouterr().out == ""
    compile((tmp_path / "dtensor" / "parallel.py").read_text(encoding="utf-8"), "parallel.py", "exec")


@pytest.mark.parametrize("name", ['q"""; print(5); """', "new\nline", "x.y", "", "x" * 65, "ümlaut"])
def test_axes_of_a_plan_are_identifiers(
    tmp_path: Path, tensor_parallel: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    document = json.loads(tensor_parallel.read_text(encoding="utf-8"))
    next(iter(document["meshes"].values()))["axes"][0]["name"] = name
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(document), encoding="utf-8")
    for target in ("hyper-parallel", "mindspore", "dtensor"):
        assert main(["emit", str(plan), "--target", target, "--out", str(tmp_path / target)]) == 3
        assert "axes.0.name" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("parallel_strategy_item", "MatMul_W", "parallel_strategy", [[4], [1, 2]]), "shards of two matrices"),
        (("parallel_strategy_item", "MatMul_W", "parallel_strategy", [[2147483647, 1], [1, 2]]), "do not divide"),
        (("parallel_layout_item", "W", "tensor_shape", [9999, 1]), "its slice has shape"),
        (("parallel_layout_item", "W", "dev_matrix", [16777216]), "device"),
    ],
)
def test_files_that_do_not_fit_the_model_are_refused(
    tmp_path: Path, tensor_parallel: Path, change: Any, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    document = json.loads(emit(tensor_parallel, tmp_path / "ms")["strategy.json"])
    table, key, field, value = change
    document[table][key.replace("W", "transformer.h.0.mlp.c_fc.weight")][field] = value
    path = tmp_path / "edited.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    arguments = ["read", str(path), "--format", "mindspore", "--model", str(SAMPLES / "gpt_tiny.onnx")]
    assert main([*arguments, "--out", str(tmp_path / "plan.json")]) == 3
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("change", [{"operator": "nosuch"}, {"slot": 9}])
def test_readers_that_the_plan_does_not_have_are_refused(
    tmp_path: Path, tensor_parallel: Path, change: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    document = json.loads(tensor_parallel.read_text(encoding="utf-8"))
    next(iter(document["parameters"].values()))["readers"][0] |= change
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(document), encoding="utf-8")
    assert main(["emit", str(plan), "--target", "mindspore", "--out", str(tmp_path / "ms")]) == 3
    assert "is no operand of the plan" in capsys.readouterr().err


def test_search_emits_beside_the_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["search", str(SAMPLES / "mlp.onnx"), "--devices", "4", "--hardware", "ascend-910b", "--no-cache"]
    targets = ["--emit", "mindspore", "--emit", "torch", "--emit", "dtensor", "--emit", "onnx"]
    assert main([*arguments, "--target", "mindspore", "--out", str(tmp_path), *targets, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert set(document["emitted"]) == {"mindspore", "torch", "dtensor", "onnx"}
    for target, told in document["emitted"].items():
        assert {Path(f).parent for f in told["files"]} == {tmp_path / target}
        assert all(Path(f).is_file() for f in told["files"])


class Cell:
    """A stand-in for MindSpore's cells: parameters of its own by name, and cells inside."""

    def __init__(self, *own: str, **inside: Cell) -> None:
        self.own, self.inside, self.again = own, inside, False

    def get_parameters(self, expand: bool = True) -> list[Any]:
        mine = [types.SimpleNamespace(name=n) for n in self.own]
        return mine + [p for c in self.inside.values() if expand for p in c.get_parameters()]

    def cells_and_names(self) -> list[tuple[str, Cell]]:
        found = [("", self)]
        for name, cell in self.inside.items():
            found += [(f"{name}.{n}".rstrip("."), c) for n, c in cell.cells_and_names()]
        return found

    def recompute(self) -> None:
        self.again = True


def network_of(plan: PlanDocument) -> Cell:
    """Cells as the parameters' names have them."""
    root = Cell()
    for name in plan.parameters:
        cell = root
        for part in name.split(".")[:-1]:
            cell = cell.inside.setdefault(part, Cell())
        cell.own = (*cell.own, name)
    return root


def test_a_pipeline_is_told_by_cells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(SAMPLES / "gpt_tiny.onnx")
    arguments = ["search", model, "--devices", "8", "--stages", "2", "--micro-batches", "4", "--no-cache"]
    pins = ["--hardware", "ascend-910b", "--target", "mindspore", "--pin", "rest=data_parallel", "--batch", "32"]
    assert main([*arguments, *pins, "--recompute", "blocks", "--out", str(tmp_path)]) == 0
    plan = read_plan(tmp_path / "plan.json")
    emit(tmp_path / "plan.json", tmp_path / "ms")
    assert "parameters that several stages read (transformer.wte.weight)" in capsys.readouterr().out
    module = generated(tmp_path / "ms" / "parallel.py", monkeypatch)
    network = network_of(plan)
    net = module.parallel(network, copies=2)
    _, wrapped, _ = net.calls[0]
    assert [c[0] for c in wrapped.calls] == ["MicroBatchInterleaved", "Pipeline"]
    part: Any = wrapped.network.network  # MindSpore adds up the losses of copies, and divides by micro-batches alone
    assert (part.network, part.copies, part.auto_prefix) == (network, 2, False)
    part.network = lambda *inputs: sum(inputs)
    assert part(1.0, 2.0) == 1.5
    _, micro_batches, (_, stages) = wrapped.calls[1]
    assert micro_batches == plan.schedule.micro_batches == 4
    for name, p in plan.parameters.items():
        first = min(plan.operators[r.operator].stage for r in p.readers)
        assert stages["network.network." + name.rpartition(".")[0]] == first
    assert ("pipeline", ("stages", 2), ("scheduler", "1f1b")) in net.calls
    assert ("load_param_strategy_file", str(tmp_path / "ms" / "strategy_stage1.ckpt")) in net.calls  # rank 5 of 8
    assert module.CONTEXT["pipeline_stages"] == 2
    again = {n for n, c in network.cells_and_names() if c.again}
    assert again == {"transformer.h.0", "transformer.h.1"}
    with pytest.raises(KeyError, match="no cell of the network holds"):
        module.recompute(Cell())
    with pytest.raises(ValueError, match="holds parameters of stages"):
        module.stage_config(Cell(both=Cell("transformer.wpe.weight", "transformer.ln_f.weight")))


def test_a_pipeline_of_inference_is_told_by_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = str(SAMPLES / "gpt_tiny.onnx")
    arguments = ["search", model, "--devices", "8", "--stages", "2", "--micro-batches", "4", "--no-cache"]
    options = ["--hardware", "ascend-910b", "--target", "mindspore", "--pin", "rest=data_parallel", "--batch", "32"]
    assert main([*arguments, *options, "--mode", "inference", "--out", str(tmp_path)]) == 0
    plan = read_plan(tmp_path / "plan.json")
    emit(tmp_path / "plan.json", tmp_path / "ms")
    module = generated(tmp_path / "ms" / "parallel.py", monkeypatch)
    net = module.parallel(network_of(plan))
    _, wrapped, _ = net.calls[0]
    ((wrapper, micro_batches, (_, stages)),) = wrapped.calls
    assert (wrapper, micro_batches, module.STAGES) == ("Pipeline", 4, 2)
    assert (stages["transformer.h.0.mlp.c_fc"], stages["transformer.ln_f"]) == (0, 1)
    assert ("load_param_strategy_file", str(tmp_path / "ms" / "strategy_stage1.ckpt")) in net.calls  # rank 5 of 8
    assert not hasattr(module, "SENS")


def test_hybrid_mode_has_what_divided_positions_communicate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pins = ("mesh=4", "*.layernormalization d1=x", "rest=replicated")
    plan = search(tmp_path / "plan", SAMPLES / "gpt_tiny.onnx", 4, *pins)
    found = read_plan(plan)
    assert not any(d for p in found.parameters.values() for d in p.stored.dims)
    emit(plan, tmp_path / "ms")
    module = generated(tmp_path / "ms" / "hybrid.py", monkeypatch)
    assert module.SLICED == {}
    assert any(tensor not in found.parameters for tensor, *_ in module.COLLECTIVES)
    whole = search(tmp_path / "whole", SAMPLES / "gpt_tiny.onnx", 4, "mesh=4", "rest=data_parallel")
    assert "hybrid.py" not in emit(whole, tmp_path / "data")


def test_hybrid_mode_names_slices_and_collectives(
    tmp_path: Path, tensor_parallel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    emit(tensor_parallel, tmp_path / "ms")
    module = generated(tmp_path / "ms" / "hybrid.py", monkeypatch)
    plan = read_plan(tensor_parallel)
    held = {n: [tuple(d) for d in p.stored.dims] for n, p in plan.parameters.items()}
    assert {n: list(d) for n, d in module.SLICED.items()} == {n: d for n, d in held.items() if any(d)}
    told = [(t, way, [s[1] for s in steps]) for t, way, _, steps in module.COLLECTIVES]
    communicating = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute"}
    planned = [
        (r.tensor, r.direction, [".".join(s.axes) for s in r.steps if s.kind in communicating])
        for r in plan.redistributions
    ]
    assert told == [x for x in planned if x[2]]
    assert module.group_of("y", 5) == [4, 5, 6, 7]
    assert module.group_of("x", 5) == [1, 5]
    network = network_of(plan)
    marked = [types.SimpleNamespace(name=p.name) for p in network.get_parameters()]
    module.mark(types.SimpleNamespace(get_parameters=lambda: marked))
    assert all(p.layerwise_parallel for p in marked)
    with pytest.raises(KeyError, match="emit with --names that agree"):
        module.mark(types.SimpleNamespace(get_parameters=lambda: []))


@pytest.mark.parametrize("devices", [8, 16])
def test_resnet_on_gpus_is_started_by_mpirun_with_a_hostfile(tmp_path: Path, resnet: Path, devices: int) -> None:
    plan = search(tmp_path / "plan", resnet, devices, "rest=data_parallel", hardware="a100-80")
    path = tmp_path / "hostfile"
    hosts = [f"192.168.0.{9 - i}" for i in range(devices // 8)]  # the first of the file has rank 0
    path.write_text("".join(f"{host} slots=8\n" for host in hosts), encoding="utf-8")
    files = emit(plan, tmp_path / "out", "--hosts", str(path))
    assert "rank_table.json" not in files
    assert files["hostfile"].decode() == path.read_text(encoding="utf-8")
    told = files["run_mpirun.sh"].decode()
    assert f"mpirun -n {devices} " in told
    assert ",".join(f"{host}:8" for host in hosts) in told
    assert "HOSTFILE" in told
    assert "btl_tcp_if_include" in told


@pytest.mark.parametrize("devices", [3, 5])
def test_a_number_of_devices_that_hccl_refuses_is_refused_without_hosts(
    tmp_path: Path, devices: int, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = search(tmp_path / "plan", SAMPLES / "mlp.onnx", devices)
    assert main(["emit", str(plan), "--target", "mindspore", "--out", str(tmp_path / "out")]) == 3
    assert f"for 1 server of {devices} Ascend devices; HCCL takes 1, 2, 4 or 8" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("devices", "why"),
    [
        ("3", "--devices 3 --emit mindspore: is for 1 server of 3 Ascend devices; HCCL takes 1, 2, 4 or 8 devices"),
        ("8,12", "--devices 12 --emit mindspore: 12 devices do not fill hosts of 8; search with --nodes; or leave"),
    ],
)
def test_a_number_of_devices_that_cannot_be_emitted_is_refused_before_the_search(
    tmp_path: Path, devices: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--devices", devices, "--hardware", "ascend-910b", "--emit", "mindspore", "--out", str(tmp_path / "plan")]
    assert main(["search", str(SAMPLES / "mlp.onnx"), *words]) == 2
    assert why in capsys.readouterr().err
    assert not (tmp_path / "plan").exists()


def test_a_merged_file_of_a_pipeline_is_read_back(tmp_path: Path) -> None:
    model = tmp_path / "mlp.onnx"
    sizes = ("--layers", "6", "--hidden", "2048", "--features", "2048", "--classes", "2048", "--batch", "64")
    assert main(["build", "mlp", *sizes, "--out", str(model)]) == 0
    pins = ("mesh=4", "layers.?.matmul n=x", "rest=replicated")
    options = [o for p in pins for o in ("--pin", p)]
    arguments = ["search", str(model), "--devices", "16", "--stages", "4", "--micro-batches", "4", "--no-cache"]
    more = ["--hardware", "ascend-910b", "--target", "mindspore", "--out", str(tmp_path / "plan")]
    assert main([*arguments, *options, *more]) == 0
    emit(tmp_path / "plan" / "plan.json", tmp_path / "ms")
    ours = read_plan(tmp_path / "plan" / "plan.json")
    for form in ("ckpt", "json"):
        back = tmp_path / form / "plan.json"
        file = tmp_path / "ms" / f"strategy_merged.{form}"
        arguments = ["read", str(file), "--format", "mindspore", "--model", str(model), "--out", str(back)]
        assert main([*arguments, "--micro-batches", "4"]) == 0
        theirs = read_plan(back)
        assert (theirs.devices, theirs.mesh, theirs.schedule.stages) == (16, ours.mesh, 4)
        assert theirs.parameters == ours.parameters
        readers = {r.operator for p in ours.parameters.values() for r in p.readers}
        assert {n: theirs.operators[n].stage for n in readers} == {n: ours.operators[n].stage for n in readers}


@pytest.mark.parametrize(
    ("renamed", "message"),
    [
        ({"0-layers.0.weight": "1-layers.0.weight", "0-layers.0.bias": "1-layers.0.bias"}, "data would flow back"),
        ({"1-layers.2.weight": "7-layers.2.weight"}, "expected stages 0 to 2"),
    ],
)
def test_stages_that_do_not_fit_the_model_are_refused(
    tmp_path: Path, renamed: dict[str, str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "mlp.onnx"
    sizes = ("--layers", "3", "--hidden", "2048", "--features", "64", "--classes", "32", "--batch", "64")
    assert main(["build", "mlp", *sizes, "--out", str(model)]) == 0
    arguments = ["search", str(model), "--devices", "4", "--stages", "2", "--no-cache", "--hardware", "ascend-910b"]
    assert main([*arguments, "--target", "mindspore", "--out", str(tmp_path / "plan")]) == 0
    document = json.loads(emit(tmp_path / "plan" / "plan.json", tmp_path / "ms")["strategy_merged.json"])
    table = document["parallel_layout_item"]
    assert set(renamed) <= set(table)
    document["parallel_layout_item"] = {renamed.get(n, n): v for n, v in table.items()}
    path = tmp_path / "edited.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    arguments = ["read", str(path), "--format", "mindspore", "--model", str(model)]
    assert main([*arguments, "--out", str(tmp_path / "back.json")]) == 3
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("target", ["mindspore", "huggingface"])
def test_a_data_parallel_network_comes_back_as_one(tmp_path: Path, target: str) -> None:
    """Every operator that has samples divides them, convolutions and statistics too, whatever their prices."""
    model = tmp_path / "resnet.onnx"
    sizes = ("--layers", "18", "--hidden", "16", "--image", "32", "--classes", "10", "--batch", "16")
    assert main(["build", "resnet", *sizes, "--out", str(model)]) == 0
    arguments = ["search", str(model), "--devices", "4", "--hardware", "ascend-910b", "--no-cache"]
    assert main([*arguments, "--strategy", "ddp", "--out", str(tmp_path / "plan")]) == 0
    assert main(["emit", str(tmp_path / "plan" / "plan.json"), "--target", target, "--out", str(tmp_path / "out")]) == 0
    file = tmp_path / "out" / {"mindspore": "strategy.ckpt", "huggingface": "distributed_config.json"}[target]
    back = tmp_path / "back.json"
    assert main(["read", str(file), "--format", target, "--model", str(model), "--out", str(back)]) == 0
    ours, theirs = read_plan(tmp_path / "plan" / "plan.json"), read_plan(back)
    read = {r.operator for p in ours.parameters.values() for r in p.readers}
    kept = set(ours.operators) if target == "huggingface" else read
    assert {n: theirs.operators[n].operands for n in kept} == {n: ours.operators[n].operands for n in kept}


def test_a_name_that_is_no_text_is_the_file_at_fault(
    tmp_path: Path, tensor_parallel: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = bytearray(emit(tensor_parallel, tmp_path / "ms")["strategy.ckpt"])
    content[content.rfind(b"ln_1.weight")] = 0xD8
    path = tmp_path / "bad.ckpt"
    path.write_bytes(bytes(content))
    arguments = ["read", str(path), "--format", "mindspore", "--model", str(SAMPLES / "gpt_tiny.onnx")]
    assert main([*arguments, "--out", str(tmp_path / "back.json")]) == 3
    assert "bad.ckpt" in capsys.readouterr().err


def test_files_of_another_plan_are_pointed_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(SAMPLES / "mlp.onnx")
    for devices in (4, 2):
        folder = str(tmp_path / str(devices))
        assert main(["search", model, "--devices", str(devices), "--no-cache", "--out", folder]) == 0
        arguments = ["emit", f"{folder}/plan.json", "--target", "onnx-ranks", "--model", model]
        capsys.readouterr()
        assert main([*arguments, "--out", str(tmp_path / "out")]) == 0
    assert "not of this plan: rank_00002.onnx, rank_00003.onnx" in capsys.readouterr().out


def test_a_target_that_refuses_does_not_cost_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["search", str(SAMPLES / "mlp.onnx"), "--devices", "4", "--no-cache", "--out", str(tmp_path), "--json"]
    pins = ["--pin", "mesh=2x2", "--pin", "rest=replicated"]
    assert main([*arguments, *pins, "--emit", "megatron", "--emit", "onnx"]) == 3
    found = capsys.readouterr()
    document = json.loads(found.out)
    assert "do the same" in document["emitted"]["megatron"]["refused"]
    assert "not emitted megatron: plan: " in found.err
    assert (tmp_path / "onnx" / "model.onnx").is_file()
    assert (tmp_path / "plan.json").is_file()


@pytest.mark.parametrize("form", ["ckpt", "json"])
def test_a_file_that_mindspore_saved_is_priced_and_comes_out_again(tmp_path: Path, form: str) -> None:
    """Saved by MindSpore 2.10 of a network of two products on 8 devices."""
    tensor, dtype = onnx.helper.make_tensor_value_info, onnx.TensorProto.FLOAT
    weights = [
        onnx.numpy_helper.from_array(np.zeros(shape, np.float32), f"network.network.w{i}")
        for i, shape in enumerate([(1024, 4096), (4096, 1024)])
    ]
    nodes = [
        onnx.helper.make_node("MatMul", ["x", weights[0].name], ["a"]),
        onnx.helper.make_node("Relu", ["a"], ["b"]),
        onnx.helper.make_node("MatMul", ["b", weights[1].name], ["y"]),
    ]
    inputs, outputs = [tensor("x", dtype, [64, 1024])], [tensor("y", dtype, [64, 1024])]
    graph = onnx.helper.make_graph(nodes, "mlp", inputs, outputs, weights)
    opset = onnx.helper.make_opsetid("", 20)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[opset], ir_version=10), str(tmp_path / "mlp.onnx"))
    saved, back = Path(__file__).parent / "mindspore" / f"mlp.{form}", tmp_path / "plan.json"
    arguments = ["read", str(saved), "--format", "mindspore", "--model", str(tmp_path / "mlp.onnx"), "--out", str(back)]
    assert main(arguments) == 0
    plan = read_plan(back)
    assert plan.mesh.devices == 8
    assert plan.cost.step_time_s > 0
    assert main(["verify", str(back), str(tmp_path / "mlp.onnx")]) == 0
    emit(back, tmp_path / "ms")
    theirs, ours = read_strategy_map(saved), read_strategy_map(tmp_path / "ms" / "strategy.ckpt")
    assert ours.operators == theirs.operators
    assert {n: p.arrangement for n, p in ours.parameters.items()} == {
        n: p.arrangement for n, p in theirs.parameters.items()
    }


def test_a_strategy_is_compared_with_what_is_found_without_it(
    tmp_path: Path, tensor_parallel: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    emit(tensor_parallel, tmp_path / "ms")
    file, model = str(tmp_path / "ms" / "strategy.ckpt"), str(SAMPLES / "gpt_tiny.onnx")
    arguments = ["read", file, "--format", "mindspore", "--model", model, "--out", str(tmp_path / "plan.json")]
    capsys.readouterr()
    assert main([*arguments, "--compare", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    ours = document["ours"]
    assert ours["objective_s"] <= document["objective_s"]
    theirs = read_plan(tmp_path / "plan.json")
    assert "transformer.h.0.mlp.c_fc.weight" in ours["parameters_otherwise"]
    assert set(ours["operators_otherwise"]) <= set(theirs.operators)
    assert main([*arguments, "--compare"]) == 0
    assert "searched freely: mesh" in capsys.readouterr().out


def test_a_plan_does_nothing_otherwise_than_itself(tensor_parallel: Path) -> None:
    plan = read_plan(tensor_parallel)
    assert differences(plan, plan) == Differences((), ())


def test_a_rank_table_is_a_hosts_file_too(tmp_path: Path, resnet: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = search(tmp_path / "plan", resnet, 16, "rest=data_parallel", hardware="ascend-910a")
    first = emit(plan, tmp_path / "a", "--hosts", str(hosts(tmp_path, 2)))
    again = emit(plan, tmp_path / "b", "--hosts", str(tmp_path / "a" / "rank_table.json"))
    assert again == first
    table = json.loads(first["rank_table.json"])
    table["server_list"][0]["device"][0]["rank_id"] = "9"
    (tmp_path / "wrong.json").write_text(json.dumps(table), encoding="utf-8")
    arguments = ["emit", str(plan), "--target", "mindspore", "--out", str(tmp_path / "c")]
    assert main([*arguments, "--hosts", str(tmp_path / "wrong.json")]) == 3
    assert "has rank 9, expected 0" in capsys.readouterr().err
