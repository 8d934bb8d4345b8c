"""`--target`: what is searched for a framework can be emitted for it."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner.builder import build
from planner.cli.main import main
from planner.emit import TARGETS, Given, emit, unsupported
from planner.emit.uniform import Model
from planner.errors import InputError
from planner.frontends import load_model
from planner.ir import DeviceMesh, Layout, Reduction
from planner.planning import PlanDocument, read_plan
from planner.planning.schemes import parse_strategy
from planner.pricing.dtensor import Placeable
from planner.requests.cancel import Cancellation
from planner.requests.search import SearchRequest
from planner.requests.searcher import Searcher
from planner.rules.expansion import Layouts
from planner.targets import BY_DEGREES, IN_PARTS, ONE_COPY, Target
from tests.unit.frontends_models import external, node, serialised, value

SIZES: dict[str, dict[str, Any]] = {
    "gpt": {"layers": 4, "hidden": 64, "heads": 4, "vocab": 256, "seq": 32, "batch": 16},
    "llama": {"layers": 4, "hidden": 64, "heads": 4, "kv_heads": 4, "ffn": 128, "vocab": 256, "seq": 32, "batch": 16},
    "moe": {
        **{"layers": 2, "hidden": 64, "heads": 4, "kv_heads": 4, "ffn": 128, "vocab": 256, "seq": 32, "batch": 16},
        "experts": 4,
    },
}
# One of each kind that some framework cannot express.
STRATEGIES = (
    "megatron:tp=1,zero=0,micro_batch=2",
    "megatron:tp=1,zero=1,micro_batch=1",
    "megatron:tp=1,zero=2,micro_batch=2",
    "megatron:tp=1,zero=3,micro_batch=1",
    "megatron:tp=2,zero=0,micro_batch=2",
    "megatron:tp=2,zero=1,micro_batch=2,sp=0",
    "megatron:tp=2,cp=2,zero=1,micro_batch=4",
    "megatron:cp=2,zero=3,micro_batch=4",
    "megatron:tp=2,pp=2,micro_batch=2",
    "megatron:pp=2,zero=0,micro_batch=2",
    "megatron:pp=2,micro_batch=2,vpp=2",
    "megatron:pp=2,micro_batch=2,schedule=zb-v",
    "megatron:pp=2,micro_batch=2,schedule=gpipe",
    "megatron:pp=2,micro_batch=2,recompute=full",
    "megatron:tp=2,micro_batch=2,recompute=full,recompute_blocks=0.5",
    "megatron:tp=2,micro_batch=2,recompute=selective",
    "megatron:pp=2,micro_batch=2,recompute=full,recompute_layers=1-0",
)
OF_EXPERTS = ("megatron:ep=2,zero=1,micro_batch=2", "megatron:ep=2,tp=2,micro_batch=2")
# What depends on how a model's layers are written is met by trying: search takes the next configuration there.
BY_TRYING = {("huggingface", "tp"), ("mindspore", "tp"), ("hyper-parallel", "zero"), ("mindspore", "ep")}


def written(architecture: str, folder: Path) -> Path:
    path = folder / f"{architecture}.onnx"
    path.write_bytes(build(architecture, SIZES[architecture]).SerializeToString())
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@lru_cache
def planned(path: Path, strategy: str) -> PlanDocument:
    request = SearchRequest(path, "8", strategy=strategy)
    return PlanDocument.model_validate_json(Searcher(request, None, None, Cancellation()).search(8).plans[0])


@pytest.mark.parametrize("architecture", list(SIZES))
def test_what_a_target_can_be_told_is_emitted(architecture: str, folder: Path) -> None:
    """Law: a configuration of which nothing is unsupported has a plan that the emitter takes."""
    path = written(architecture, folder)
    model = Model.of(load_model(path))
    told = 0
    # Of a GPT, whose table makes logits, too, those in which that matters.
    strategies = {"moe": OF_EXPERTS, "gpt": STRATEGIES[4:6] + STRATEGIES[8:11]}.get(architecture, STRATEGIES)
    for strategy in strategies:
        c = parse_strategy(strategy, devices=8, batch=16)
        kinds = {k for k, there in (("tp", c.tp > 1), ("zero", c.zero > 0), ("ep", c.ep > 1)) if there}
        for name, target in TARGETS.items():
            if unsupported(name, c, model) or any((name, k) in BY_TRYING for k in kinds):
                continue
            emit(name, Given(planned(path, strategy), model_file=path if target.needs else None))
            told += 1
    assert told >= 2 * len(strategies)


@pytest.mark.parametrize(
    ("keys", "target", "unsaid"),
    [
        ("recompute=products", "megatron", "recompute=products"),
        ("recompute=selective", "mindformers", "recompute=selective"),
        ("recompute=full,recompute_layers=1-0", "megatron", "recompute_layers=1-0"),
        ("recompute=full,recompute_layers=1-0", "mindformers", ""),
        ("recompute=selective", "megatron", ""),
    ],
)
def test_what_of_recomputation_the_files_do_not_say_is_named(folder: Path, keys: str, target: str, unsaid: str) -> None:
    made = planned(written("llama", folder), f"megatron:pp=2,micro_batch=2,{keys}")
    emission = emit(target, Given(made))
    lines = [line for line in emission.lost if "the predicted time assumes" in line]
    assert any(unsaid in line for line in lines) if unsaid else not any("recompute" in line for line in lines)
    if target == "mindformers" and not unsaid:
        assert "recompute: [[1, 0]]" in emission.files["mindformers.yaml"].decode()


def test_targets_are_named_once() -> None:
    names = set(Target.__args__)  # type: ignore[attr-defined]
    assert names == {"any", *TARGETS}
    assert names >= BY_DEGREES | IN_PARTS | ONE_COPY


def search(path: Path, out: Path, *more: str) -> dict[str, Any]:
    """The document of `planner search --json`."""
    import contextlib
    import io

    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        assert main(["search", str(path), "--devices", "8", "--no-cache", "--json", "--out", str(out), *more]) == 0
    found: dict[str, Any] = json.loads(text.getvalue())
    return found


@pytest.mark.parametrize("target", sorted(BY_DEGREES))
def test_a_search_for_a_launcher_finds_what_it_can_be_told(target: str, folder: Path, tmp_path: Path) -> None:
    """Law: no slower than the same search for any target by less than it says, and its plan is emitted."""
    found = search(written("gpt", folder), tmp_path, "--emit", target, "--memory-limit", "1200000")
    assert found["emitted"][target]["files"]
    said = found["uniform"]
    assert said["target"] == target
    assert said["step_time_any_s"] <= said["step_time_s"] <= found["step_time_s"] * (1 + 1e-9)
    assert found["peak_memory_bytes"] <= 1200000


def test_what_a_target_refuses_of_a_model_is_not_found_for_it(folder: Path, tmp_path: Path) -> None:
    """transformers divides no Conv1D, as the emitter sees by the layout of its weights alone."""
    found = search(written("gpt", folder), tmp_path, "--target", "huggingface")
    assert "tp=" not in found["uniform"]["strategy"]


def test_optimizer_parallel_is_found_for_mindspore(folder: Path, tmp_path: Path) -> None:
    """Its weights are cut further along their first dimension among all ranks with equal parts."""
    found = search(
        written("llama", folder), tmp_path, "--emit", "mindspore", "--space", "operators", "--pin", "rest=zero"
    )
    assert found["emitted"]["mindspore"]["files"]
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert any(p["stored"] != p["compute"][0] for p in plan["parameters"].values())


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--target", "megatron", "--mesh", "8"), "--mesh decides on operators"),
        (("--target", "deepspeed", "--space", "operators"), "--space operators decides"),
        (("--target", "megatron", "--mode", "inference"), "--mode is inference"),
        (("--target", "megatron", "--memory-limit", "1kB"), "are too large for a device"),
        (("--target", "deepspeed", "--stages", "2"), "it cannot express"),
        (("--target", "deepspeed", "--strategy", "megatron:pp=2"), "cannot express pipeline stages"),
    ],
)
def test_what_cannot_be_is_said(
    options: tuple[str, ...], expected: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = main(
        ["search", str(written("gpt", folder)), "--devices", "8", "--no-cache", "--out", str(tmp_path), *options]
    )
    assert status > 0
    assert expected in capsys.readouterr().err


def test_a_plan_of_zero_3_says_so(folder: Path) -> None:
    """Its gradients and weights are exchanged in every micro-batch, as launchers have to be told."""
    plan = planned(written("llama", folder), "megatron:tp=1,zero=3,micro_batch=1")
    assert plan.schedule.run["zero"] == 3
    assert '"stage": 3' in emit("deepspeed", Given(plan)).files["ds_config.json"].decode()
    titan = emit("torchtitan", Given(plan))
    assert "'fsdp_reshard_after_forward': 'always'" in titan.files["planner_torchtitan.py"].decode()
    assert not any("zero=3" in line for line in titan.lost)
    assert any("zero=3" in line for line in emit("megatron", Given(plan)).lost)
    with pytest.raises(InputError, match="pipeline stages"):
        emit("deepspeed", Given(planned(written("llama", folder), "megatron:pp=2,micro_batch=2,vpp=2")))


def test_a_table_that_a_target_keeps_in_one_layout_is_not_the_end_of_the_search(tmp_path: Path) -> None:
    """BERT's words are not divided evenly: in shards of its columns the table is read by another layout than it is
    kept in, which MindSpore cannot express.  Without shards it has."""
    path = tmp_path / "bert.onnx"
    sizes = {"layers": 2, "hidden": 1024, "heads": 16, "seq": 512, "vocab": 30522, "batch": 128}
    path.write_bytes(build("bert", sizes).SerializeToString())
    found = search(path, tmp_path / "plan", "--space", "whole", "--emit", "mindspore")
    assert found["emitted"]["mindspore"].get("refused") is None
    assert (tmp_path / "plan" / "mindspore").is_dir()


def convolutions(path: Path) -> Path:
    """Of one sample with many channels, which are worth dividing."""
    nodes, stored, given = [], [], "x"
    for i in range(2):
        stored.append(external(f"conv.{i}.weight", [64, 64, 3, 3]))
        nodes += [node("Conv", f"{given} conv.{i}.weight", f"h{i}", pads=[1] * 4), node("Relu", f"h{i}", f"r{i}")]
        given = f"r{i}"
    path.write_bytes(serialised(nodes, [value("x", [1, 64, 32, 32])], [given], stored))
    return path


@pytest.mark.parametrize("mode", ["training", "inference"])
def test_for_dtensor_convolutions_are_divided_by_samples_alone(tmp_path: Path, mode: str) -> None:
    """Law: what is searched for DTensor is emitted for it; for any target channels are divided here."""
    path, taken = convolutions(tmp_path / "model.onnx"), {}
    for target in ("any", "dtensor"):
        out = tmp_path / target
        found = search(path, out, "--target", target, "--hardware", "cpu", "--mode", mode)
        plan = read_plan(out / "plan.json")
        taken[target] = found["step_time_s"]
        if target == "dtensor":
            assert emit("dtensor", Given(plan)).files
        else:
            with pytest.raises(InputError, match="divided along channels"):
                emit("dtensor", Given(plan))
    assert taken["any"] < taken["dtensor"]


def test_for_dtensor_a_parameter_is_computed_with_in_one_layout(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = [node("MatMul", "x w", "a"), node("MatMul", "x w", "b"), node("Add", "a b", "y")]
    path = tmp_path / "model.onnx"
    path.write_bytes(serialised(nodes, [value("x", [8, 16])], ["y"], [external("w", [16, 16])]))
    arguments = ["search", str(path), "--devices", "2", "--hardware", "cpu", "--no-cache", "--out", str(tmp_path)]
    pins = ["--pin", "a n=2", "--pin", "b k=2"]
    assert main([*arguments, *pins]) == 0
    with pytest.raises(InputError, match="parameter w is computed with as"):
        emit("dtensor", Given(read_plan(tmp_path / "plan.json")))
    capsys.readouterr()
    assert main([*arguments, *pins, "--target", "dtensor", "--force"]) == 3
    assert "the target dtensor keeps a parameter in one layout to compute with" in capsys.readouterr().err
    assert main([*arguments, "--pin", "a n=2", "--target", "dtensor", "--force"]) == 0
    assert "target      dtensor: no parameter in two layouts" in capsys.readouterr().out
    assert emit("dtensor", Given(read_plan(tmp_path / "plan.json"))).files


def test_for_dtensor_a_dimension_is_cut_in_the_order_of_the_mesh() -> None:
    mesh, layouts = DeviceMesh.of(2, 2), Layouts()
    pairs = {
        "[x.y]": Layout((("x", "y"),)), "[y.x]": Layout((("y", "x"),)), "[x]": Layout((("x",),)),
        "[x]+y": Layout((("x",),), (("y", Reduction.SUM),)),
    }  # fmt: skip
    number = {name: layouts.number(x) for name, x in pairs.items()} | {"-": -1}
    placeable = Placeable(layouts, mesh)

    def allowed(first: str, second: str) -> bool:
        return bool(placeable.allows(np.array([number[first]]), np.array([number[second]]))[0])

    assert allowed("[x.y]", "-")
    assert allowed("[x]", "[x]+y")
    assert not allowed("[y.x]", "-")
    assert not allowed("[x]", "[x.y]")


def test_a_plan_that_its_target_refuses_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A pipeline that cuts a module is found only when the plan is emitted."""
    path = tmp_path / "model.onnx"
    nodes = [
        node("MatMul", "x fc.w", "a", module="fc"), node("Relu", "a", "r", module="fc"),
        node("MatMul", "r fc.v", "y", module="fc"), node("ReduceMean", "y", "loss", keepdims=0),
    ]  # fmt: skip
    stored = [external("fc.w", [16, 16]), external("fc.v", [16, 16])]
    path.write_bytes(serialised(nodes, [value("x", ["b", 16])], [value("loss", [])], stored))
    arguments = ["search", str(path), "--devices", "2", "--hardware", "cpu", "--no-cache", "--out", str(tmp_path)]
    more = ["--batch", "8", "--stages", "2", "--micro-batches", "2", "--mode", "training"]
    assert main([*arguments, *more, "--target", "dtensor"]) == 0
    refusal = "warning: dtensor cannot be given this plan: plan: no module with parameters runs in stage 1"
    assert refusal in capsys.readouterr().err
