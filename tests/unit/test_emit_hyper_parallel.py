"""HyperParallel's files: placements, contracts at the boundaries of modules, layouts written and read back.  The system
itself runs them in tests/peer."""

from __future__ import annotations

import contextlib
import json
import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.cli.main import main
from planner.emit import Given, emit
from planner.emit.emission import Emission
from planner.emit.hyper_parallel.grid import grid_of
from planner.emit.hyper_parallel.layout_file import read_layout_file
from planner.emit.hyper_parallel.reading import read_layouts
from planner.emit.names import Name, NameRules
from planner.errors import InputError
from planner.frontends import load_model
from planner.ir import DeviceMesh, Graph, Layout
from planner.planning import PlanDocument, read_plan
from tests.unit.emit_plans import MEGATRON, SAMPLES, search, staged


@pytest.fixture(scope="module")
def tensor(tmp_path_factory: pytest.TempPathFactory) -> PlanDocument:
    return search(tmp_path_factory.mktemp("tp"), "llama_tiny.onnx", 8, *MEGATRON)


@pytest.fixture(scope="module")
def llama() -> Graph:
    return load_model(SAMPLES / "llama_tiny.onnx")


def turned(plan: PlanDocument, folder: Path) -> Path:
    """Names of a PyTorch network, whose matrices are the other way round."""
    path = folder / "names.json"
    table = {n: {"name": n, "transposed": len(p.shape) == 2 and "embed" not in n} for n, p in plan.parameters.items()}
    path.write_text(json.dumps({"parameters": table}), encoding="utf-8")
    return path


def emitted(plan: PlanDocument, names: Path | None = None) -> Emission:
    return emit("hyper-parallel", Given(plan, names))


def overrides(emission: Emission) -> dict[str, Any]:
    return {e["match"]: e for e in yaml.safe_load(emission.files["plan_overrides.yaml"])["plan_overrides"]}


def module(emission: Emission) -> dict[str, Any]:
    """The tables of the generated module."""
    text = emission.files["parallel.py"].decode()
    tables: dict[str, Any] = {}
    start, end = text.index("SIZES ="), text.index("def device_mesh")
    exec(text[start:end], tables)
    return tables


def test_megatrons_plan_is_what_hyperparallels_own_templates_say(tensor: PlanDocument, tmp_path: Path) -> None:
    """distributed/sharding_config.py, TEMPLATES without sequence parallelism."""
    emission = emitted(tensor, turned(tensor, tmp_path))
    found = overrides(emission)
    whole, columns, rows = {"tp": "replicate"}, {"tp": "shard(0)"}, {"tp": "shard(1)"}
    for i in range(2):
        attention, mlp = found[f"model.layers.{i}.self_attn"], found[f"model.layers.{i}.mlp"]
        kinds = {"q_proj": columns, "k_proj": columns, "v_proj": columns, "o_proj": rows}
        assert attention["params"] == {f"{n}.weight": p for n, p in kinds.items()}
        assert mlp["params"] == {"gate_proj.weight": columns, "up_proj.weight": columns, "down_proj.weight": rows}
        for block in (attention, mlp):
            assert block["in_src"] == block["in_dst"] == {"hidden_states": whole}
            assert block["out_src"] == {"output": {"tp": "partial"}}
            assert block["out_dst"] == {"output": whole}
        norm = found[f"model.layers.{i}.input_layernorm"]
        assert norm["params"] == {"weight": whole}
        assert norm["out_src"] == norm["out_dst"] == {"output": whole}
    embed, head = found["model.embed_tokens"], found["lm_head"]
    assert embed["params"] == {"weight": columns}
    assert (embed["out_src"], embed["out_dst"]) == ({"output": {"tp": "partial"}}, {"output": whole})
    assert head["params"] == {"weight": columns}
    assert (head["out_src"], head["out_dst"]) == ({"output": {"tp": "shard(2)"}}, {"output": whole})
    told = yaml.safe_load(emission.files["plan_overrides.yaml"])
    assert told["accelerator"] == {
        "tp_size": 2, "cp_size": 1, "ep_size": 1, "pp_size": 1, "sequence_parallel": False, "loss_parallel": False,
    }  # fmt: skip
    assert told["activation_checkpoint"] == {"mode": "off"}


def test_positions_between_products_are_gathered_and_scattered_at_the_boundaries(tmp_path: Path) -> None:
    pins = [p.replace("[x,_,_]", "[x,y,_]") for p in MEGATRON if "embed_tokens.gather layout" not in p]
    plan = search(
        tmp_path, "llama_tiny.onnx", 8, *pins, "*layernorm.* type=Mul d0=x d1=y", "model.norm.* type=Mul d0=x d1=y"
    )
    emission = emitted(plan)
    found = overrides(emission)
    assert yaml.safe_load(emission.files["plan_overrides.yaml"])["accelerator"]["sequence_parallel"]
    for name in ("self_attn", "mlp"):
        block = found[f"model.layers.0.{name}"]
        assert block["in_dst"] == {"hidden_states": {"tp": "replicate"}}
        assert block["out_dst"] == {"output": {"tp": "shard(1)"}}
    norm = found["model.layers.0.input_layernorm"]
    assert norm["out_src"] == {"output": {"tp": "shard(1)"}}
    assert norm["out_dst"]["output"] == found["model.layers.0.self_attn"]["in_src"]["hidden_states"]


def test_every_parameter_is_in_one_entry_and_in_the_plan(tensor: PlanDocument) -> None:
    emission = emitted(tensor)
    told = [f"{m}.{n}" for m, e in overrides(emission).items() for n in e["params"]]
    assert sorted(told) == sorted(tensor.parameters)
    tables = module(emission)
    assert tables["AXES"] == ("dp", "tp")
    assert tables["SIZES"] == (4, 2)
    assert set(tables["PARAMETERS"][0]) == set(tensor.parameters)
    assert tables["PARAMETERS"][0]["lm_head.weight"] == ("replicate", "shard(1)")
    assert tables["INPUTS"][0]["model.layers.0.mlp.down_proj.input"] == [("shard(0)", "shard(2)")]
    assert tables["OUTPUTS"][0]["model.layers.0.mlp.down_proj.output"] == ("shard(0)", "replicate")


def test_a_table_tied_to_the_output_layer_is_its_own_modules(tmp_path: Path) -> None:
    emission = emitted(search(tmp_path, "gpt_tiny.onnx", 4, "mesh=4", "rest=data_parallel"))
    found = overrides(emission)
    assert found["transformer.wte"]["params"] == {"weight": {"tp": "replicate"}}
    assert list(found["transformer.wte"]["in_src"]) == ["input"]
    assert found["lm_head"]["params"] == {}
    assert found["lm_head"]["out_dst"] == {"output": {"tp": "replicate"}}
    assert found["transformer.wpe"]["in_src"] == found["transformer.wpe"]["out_dst"] == {}  # it is added, by no module
    tables = module(emission)
    assert {"transformer.wte.output", "lm_head.input", "lm_head.output"} <= {
        *tables["INPUTS"][0],
        *tables["OUTPUTS"][0],
    }
    assert "transformer.wpe.input" not in tables["INPUTS"][0]


def left_out(emission: Emission) -> str:
    assert "plan_overrides.yaml" not in emission.files
    return next(line for line in emission.lost if line.startswith("plan_overrides.yaml is left out"))


def test_conversions_that_no_boundary_makes_leave_the_overrides_out(tmp_path: Path) -> None:
    pins = [p for p in MEGATRON if "produced" not in p]
    told = left_out(emitted(search(tmp_path, "llama_tiny.onnx", 8, *pins)))
    assert "tensor model.layers.0.self_attn.add_2 goes from [x,_,_] to [x,_,_]+y between modules" in told
    pins = [p for p in MEGATRON if "softmax" not in p]
    told = left_out(emitted(search(tmp_path, "llama_tiny.onnx", 8, *pins, "*.softmax d0=x")))
    assert "inside module model.layers.0.self_attn" in told


def test_experts_and_plans_without_degrees_leave_the_overrides_out(tmp_path: Path) -> None:
    pins = ("mesh=4", "reads=*.experts.* type=Einsum e=x", "rest=data_parallel")
    assert "has to be given as code" in left_out(emitted(search(tmp_path, "moe_tiny.onnx", 4, *pins)))
    pins = ("mesh=8", "lm_head.matmul n=x", "rest=data_parallel")
    told = left_out(emitted(search(tmp_path, "llama_tiny.onnx", 8, *pins)))
    assert "mesh axis x is data parallel at input" in told


def test_what_hyperparallel_would_do_otherwise_is_refused(tmp_path: Path) -> None:
    pins = ("mesh=2x4", "transformer.wte.gather i0=x v=y", "lm_head.matmul b0=x", "rest=data_parallel")
    with pytest.raises(InputError, match=r"wte\.weight is computed with as .* \(read by transformer\.wte\.gather"):
        emitted(search(tmp_path, "gpt_tiny.onnx", 8, *pins))
    with pytest.raises(InputError, match=r"bias is computed with as \[_\], and .*matmul makes columns \[y\]"):
        emitted(search(tmp_path, "mlp.onnx", 4, "mesh=2x2", "type=MatMul m=x n=y", "rest=data_parallel"))


def test_gradients_and_optimizer_shards_are_hsdps(tmp_path: Path) -> None:
    whole = emitted(search(tmp_path / "whole", "mlp.onnx", 4, "mesh=4", "rest=data_parallel")).files["parallel.py"]
    assert b'hsdp(module, shard_size=1, threshold=0, optimizer_level="level1")' in whole
    emission = emitted(search(tmp_path / "zero", "mlp.onnx", 4, "mesh=4", "rest=zero"))
    assert b'hsdp(module, shard_size=4, threshold=0, optimizer_level="level2")' in emission.files["parallel.py"]
    assert any("shards in .layout files" in line for line in emission.lost)


def test_every_stage_has_the_entries_and_layouts_of_its_own_parameters(tensor: PlanDocument) -> None:
    emission = emitted(staged(tensor, [0, 1], micro_batches=2))
    told = [yaml.safe_load(emission.files[f"plan_overrides_stage{s}.yaml"])["plan_overrides"] for s in range(2)]
    assert told[0][-1]["match"] == "model.layers.0.mlp"
    assert told[1][0]["match"] == "model.layers.1.input_layernorm"
    assert [set(t) for t in module(emission)["PARAMETERS"]] == [
        {f"{e['match']}.{n}" for e in entries for n in e["params"]} for entries in told
    ]
    assert "model.layers.1.mlp.down_proj.output" in module(emission)["OUTPUTS"][1]
    first, second = (json.loads(emission.files[f"rank{r}.layout"]) for r in (0, 8))
    assert set(first) == {"0"}
    assert set(second) == {"8"}
    assert set(first["0"]) | set(second["8"]) == set(tensor.parameters)
    assert not set(first["0"]) & set(second["8"])
    assert second["8"]["lm_head.weight"]["rank_list"] == list(range(8, 16))


def test_a_parameter_that_several_stages_read_is_laid_out_in_each(tmp_path: Path) -> None:
    model = str(SAMPLES / "gpt_tiny.onnx")
    arguments = ["search", model, "--devices", "8", "--stages", "2", "--micro-batches", "4", "--batch", "32"]
    options = ["--no-cache", "--hardware", "ascend-910b", "--pin", "rest=data_parallel", "--out", str(tmp_path)]
    assert main([*arguments, *options]) == 0
    emission = emitted(read_plan(tmp_path / "plan.json"))
    table = "transformer.wte.weight"
    first, second = module(emission)["PARAMETERS"]
    assert set(first) & set(second) == {table}
    assert {*first[table], *second[table]} == {"replicate"}
    for rank in (0, 4):
        told = json.loads(emission.files[f"rank{rank}.layout"])[str(rank)]
        assert told[table]["rank_list"] == list(range(rank, rank + 4))
    assert any(line.startswith(f"1 parameters that several stages read ({table})") for line in emission.lost)


def test_a_model_without_parameters_leaves_the_overrides_out(tmp_path: Path) -> None:
    plan = search(tmp_path, "mlp.onnx", 4, "mesh=4", "rest=data_parallel")
    emission = emitted(plan.model_copy(update={"parameters": {}}))
    assert "no module of the plan has parameters" in left_out(emission)
    assert module(emission)["PARAMETERS"] == [{}]


def test_recomputed_blocks_that_are_no_layers_leave_the_overrides_out(tensor: PlanDocument) -> None:
    schedule = tensor.schedule.model_copy(update={"recompute": [["lm_head.matmul"]]})
    emission = emitted(tensor.model_copy(update={"schedule": schedule}))
    assert "(lm_head.matmul, …), which are no layers" in left_out(emission)
    assert {"parallel.py", "rank0.layout"} == set(emission.files)


@given(st.lists(st.integers(1, 3), min_size=1, max_size=3), st.data())
def test_every_rank_holds_what_the_layout_says(sizes: list[int], data: st.DataObject) -> None:
    """The slice as core/layout.py of HyperParallel takes it from a tensor map, against the layout's own axes."""
    mesh = DeviceMesh.of(*sizes)
    where = [data.draw(st.integers(-1, 1)) for _ in sizes]
    layout = Layout(tuple(tuple(n for n, d in zip(mesh.names, where, strict=True) if d == i) for i in range(2)))
    others = [Layout((data.draw(st.sampled_from([(), (n,)])),)) for n in mesh.names]
    grid = grid_of(mesh, [layout, *others], {})
    tensor_map, matrix = grid.tensor_map(layout), list(grid.sizes.values())
    for rank in range(mesh.devices):
        place, rest = [], rank
        for size in reversed(matrix):
            rest, at = divmod(rest, size)
            place.append(at)
        own = mesh.coordinates(rank)
        for d, axes in enumerate(layout.dims):
            told = tensor_map[d] if isinstance(tensor_map[d], tuple) else (tensor_map[d],)
            index = parts = 0
            parts = 1
            for axis in reversed(told):  # type: ignore[arg-type]  # a tuple by now
                if axis >= 0:
                    index += place[axis] * parts
                    parts *= matrix[-1 - axis]
            expected = 0
            for a in axes:
                expected = expected * mesh.sizes[a] + own[a]
            assert (index, parts) == (expected, math.prod(mesh.sizes[a] for a in axes))


def test_round_trip_gives_the_same_parameters(tensor: PlanDocument, tmp_path: Path) -> None:
    names = turned(tensor, tmp_path)
    for folder, option in (("own", []), ("turned", ["--names", str(names)])):
        out = tmp_path / folder
        out.mkdir()
        given = Given(tensor, names if option else None)
        (out / "rank0.layout").write_bytes(emit("hyper-parallel", given).files["rank0.layout"])
        arguments = ["read", str(out / "rank0.layout"), "--format", "layout", "--out", str(out / "plan.json"), *option]
        assert main([*arguments, "--model", str(SAMPLES / "llama_tiny.onnx")]) == 0
        back = read_plan(out / "plan.json")
        assert back.mesh == tensor.mesh
        for n, p in tensor.parameters.items():
            assert back.parameters[n].compute == p.compute
            assert back.parameters[n].stored == p.compute[0]
        again, first = saved(back, names if option else None)["0"], json.loads((out / "rank0.layout").read_text())["0"]
        assert again.keys() == first.keys()
        assert all(again[n] | {"alias_name": []} == first[n] | {"alias_name": []} for n in first)


def saved(plan: PlanDocument, names: Path | None = None) -> dict[str, Any]:
    found = json.loads(emitted(plan, names).files["rank0.layout"])
    assert isinstance(found, dict)
    return found


def test_later_versions_and_several_ranks_are_read(tensor: PlanDocument, llama: Graph, tmp_path: Path) -> None:
    one = saved(tensor)["0"]
    for item in one.values():
        item["device_matrix"] = item.pop("mesh_shape")
    path = tmp_path / "all.layout"
    path.write_text(
        json.dumps({"0": one, "5": one | {"extra": {"type": "torch.int64", "full_shape": []}}}), encoding="utf-8"
    )
    reading = read_layouts(path, llama, NameRules())
    assert str(reading.mesh) == "4x2"
    assert len(reading.constraints.parameters) == len(tensor.parameters)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tensor_map": [0, 0]}, "expected distinct axes"),
        ({"tensor_map": [2, -1]}, "expected distinct axes"),
        ({"tensor_map": [0]}, "1 entries, full_shape 2"),
        ({"tensor_map": "x"}, "expected a list"),
        ({"mesh_shape": [0, 2]}, "at least 1"),
        ({"mesh_shape": [1 << 20, 2]}, "at most 65,536 ranks"),
        ({"rank_list": [1, 0, 2, 3, 4, 5, 6, 7]}, "neighbouring ranks in their order"),
        ({"rank_list": [8, 9, 10, 11, 12, 13, 14, 15]}, "said to lie on other ranks"),
        ({"interleaved_parallel": True}, "interleaved_parallel"),
        ({"full_shape": [128, 63]}, r"has shape \[128, 63\], expected \[128, 64\]"),
        ({"mesh_shape": [8, 1, 1]}, "expected distinct axes|do not nest|divide"),
        ({"mesh_shape": [2, 2], "rank_list": [0, 1, 2, 3]}, "the same ranks, found 4, 8"),
    ],
)
def test_files_that_do_not_fit_are_refused(
    tensor: PlanDocument, llama: Graph, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    document = saved(tensor)
    document["0"]["model.embed_tokens.weight"] |= change
    if "mesh_shape" in change and len(change["mesh_shape"]) == 3:
        document["0"]["model.embed_tokens.weight"]["tensor_map"] = [3, -1]
    path = tmp_path / "edited.layout"
    path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(InputError, match=message):
        read_layouts(path, llama, NameRules())


def test_ranks_that_contradict_each_other_and_lacking_parameters_are_refused(
    tensor: PlanDocument, llama: Graph, tmp_path: Path
) -> None:
    one = saved(tensor)["0"]
    path = tmp_path / "edited.layout"
    other = json.loads(json.dumps(one))
    other["lm_head.weight"]["tensor_map"] = [-1, -1]
    path.write_text(json.dumps({"0": one, "1": other}), encoding="utf-8")
    with pytest.raises(InputError, match="one way on rank 1 and another"):
        read_layouts(path, llama, NameRules())
    del one["lm_head.weight"]
    path.write_text(json.dumps({"0": one}), encoding="utf-8")
    with pytest.raises(InputError, match=r"lm_head\.weight' is not in it"):
        read_layouts(path, llama, NameRules())
    with pytest.raises(InputError, match="is not in it"):
        read_layouts(path, llama, NameRules({"lm_head.weight": Name("head")}))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=12,
)
KEYS = ("mesh_shape", "tensor_map", "rank_list", "full_shape", "alias_name", "type", "interleaved_parallel")


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_hostile_files_are_the_input_at_fault(
    tensor: PlanDocument, llama: Graph, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    document: Any = saved(tensor)
    kind = data.draw(st.sampled_from(["field", "parameter", "rank", "all", "bytes"]))
    name = data.draw(st.sampled_from(sorted(document["0"])))
    if kind == "field":
        small = st.lists(st.integers(-2, 9), max_size=5)
        document["0"][name][data.draw(st.sampled_from(KEYS))] = data.draw(VALUES | small)
    elif kind == "parameter":
        document["0"][name] = data.draw(VALUES)
    elif kind == "rank":
        document = {data.draw(st.text(max_size=3)): document["0"], "1": data.draw(VALUES)}
    elif kind == "all":
        document = data.draw(VALUES)
    content = data.draw(st.binary(max_size=40)) if kind == "bytes" else json.dumps(document).encode()
    path = tmp_path_factory.mktemp("hostile") / "a.layout"
    path.write_bytes(content)
    with contextlib.suppress(InputError):
        assert read_layouts(path, llama, NameRules()).mesh.devices >= 1


def test_missing_files_are_the_input_at_fault(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_layout_file(tmp_path / "none.layout")


@pytest.mark.parametrize("name", ['q"""; print(5); """', "back\\N", 'quo"te', "ümlaut", "$model"])
def test_names_are_data_in_the_files(tensor: PlanDocument, tmp_path: Path, name: str) -> None:
    path = tmp_path / "names.json"
    path.write_text(json.dumps({"prefixes": {"lm_head": name}}), encoding="utf-8")
    emission = emitted(tensor, path)
    assert f"{name}.weight" in module(emission)["PARAMETERS"][0]
    assert name in overrides(emission)
    assert f"{name}.weight" in json.loads(emission.files["rank0.layout"])["0"]


def test_the_data_of_a_tied_output_layer_is_not_its_weight(tmp_path: Path) -> None:
    arguments = ["search", str(SAMPLES / "gpt_tiny.onnx"), "--devices", "8", "--no-cache", "--out", str(tmp_path)]
    assert main([*arguments, "--strategy", "megatron:tp=2"]) == 0
    text = emitted(read_plan(tmp_path / "plan.json")).files["parallel.py"].decode()
    assert "'lm_head.input': [('shard(0)', 'replicate')]" in text
