"""HyperParallel's search configurations as constraints: what of them binds our search, and what is refused."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from planner.cli.main import main
from planner.errors import InputError
from planner.planning import read_plan
from planner.planning.constraints import Constraints, JobDescription, parse_constraints

SAMPLES = Path(__file__).parents[2] / "sample_graphs"
DENSE: dict[str, Any] = {  # the sections and keys of its examples/dense_llm_search.yaml, for another model
    "model": {"name": "tiny", "n_layers": 2, "dim": 64, "moe_enabled": False, "local_batch_size": 1},
    "cluster": {
        "num_nodes": 1, "cards_per_node": 8, "device_memory_gb": 64.0, "device_type": "A2",
        "intra_node_bandwidth_gbps": 200.0, "inter_node_bandwidth_gbps": 100.0,
    },
    "parallelism": {
        "dp": [1, 2, 4, 8], "fsdp": [1, 2], "tp": [1, 2, 4], "pp": [1, 2], "cp": [1, 2], "ep": 1,
        "micro_batch_num": [1, 2, 4],
    },
    "constraint": {"global_batch_size": 16, "memory_limit_gb": 60.0},
    "recompute": "none",
    "pp_config": {"stage_partition_mode": "uniform", "pp_interleave_num": 1, "pipeline_schedule": "1F1B"},
}  # fmt: skip


def changed(**parts: Any) -> dict[str, Any]:
    """DENSE with keys of its sections set, or sections themselves; None takes one out."""
    out = {k: dict(v) if isinstance(v, dict) else v for k, v in DENSE.items()}
    for name, value in parts.items():
        section, _, key = name.partition("__")
        table = out.setdefault(section, {}) if key else out
        if value is None:
            table.pop(key or section, None)
        else:
            table[key or section] = value
    return out


def parsed(document: Any) -> Constraints:
    return parse_constraints(yaml.safe_dump(document), "search.yaml")


def job(document: Any) -> JobDescription:
    found = parsed(document).job
    assert found is not None
    return found


def test_degrees_become_meshes_of_data_context_and_tensor() -> None:
    found = parsed(DENSE)
    for data, context, tensor in found.meshes:
        assert any(data == dp * fsdp for dp in (1, 2, 4, 8) for fsdp in (1, 2))
        assert context in (1, 2)
        assert tensor in (1, 2, 4)
        assert data * context * tensor in (8, 4)  # one stage, or two
    assert {(8, 1, 1), (2, 1, 4), (2, 2, 2), (4, 1, 1), (1, 2, 4)} <= set(found.meshes)
    assert (1, 1, 8) not in found.meshes


def test_what_is_left_open_is_left_to_the_search() -> None:
    open_ = changed(parallelism={"dp": "auto", "tp": "AUTO", "pp": "auto"})
    assert parsed(open_).meshes == ()
    assert parsed(open_).degrees is None
    assert job(open_).stages == ()
    assert set(parsed(changed(parallelism={"tp": 2, "pp": 1})).meshes) == {(4, 1, 2)}
    assert set(parsed(changed(parallelism={"dp": 2, "pp": 1})).meshes) == {(2, 1, 4)}


def test_the_job_is_what_the_file_says() -> None:
    found = job(DENSE)
    assert (found.devices, found.hardware, found.batch) == (8, "ascend-910b", 16)
    assert found.memory_limit == 60 * 2**30
    assert (found.stages, found.micro_batches) == ((1, 2), (1, 2, 4))
    assert found.recompute == "none"
    assert len(found.notes) == 4
    assert job(changed(constraint__memory_limit_gb=None)).memory_limit == 64 * 2**30
    assert job(changed(constraint=None)).batch is None
    assert job(changed(recompute="full")).recompute == "blocks"
    assert job(changed(pp_config__pp_degree=[1, 2])).stages == (1, 2)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"train_yaml": "train.yaml"}, "train_yaml: is not read here"),
        ({"solver": "x"}, "solver: is not a key that is known here"),
        ({"parallelism__sp": 2}, "parallelism.sp: is not a key"),
        ({"cluster": None}, "cluster: expected num_nodes"),
        ({"cluster__num_nodes": 0}, "cluster.num_nodes: expected a whole number"),
        ({"cluster__device_type": "ascend910b"}, "cluster.device_type: expected A2 or A3"),
        ({"cluster__device_type": ["A2"]}, "cluster.device_type: expected A2 or A3"),
        ({"constraint__memory_limit_gb": -1}, "memory_limit_gb: expected GiB"),
        ({"parallelism__tp": []}, "parallelism.tp: expected a degree"),
        ({"parallelism__tp": [1, "two"]}, "parallelism.tp: expected a degree"),
        ({"parallelism__tp": 3, "parallelism__pp": 1}, "no product is 8 devices"),
        ({"parallelism__ep": [1, 2]}, "parallelism.ep: among how many ranks"),
        ({"model__moe_enabled": True}, "parallelism.ep: among how many ranks"),
        ({"parallelism": {"fsdp": 8}}, "parallelism.fsdp: which ranks share .* give dp as well"),
        ({"parallelism": {"fsdp": [1, 2], "tp": "auto"}}, "parallelism.fsdp: which ranks share"),
        ({"parallelism": {"fsdp": 2, "tp": 2, "dp": "auto"}}, "parallelism.fsdp: which ranks share"),
        ({"parallelism__etp": 2}, "parallelism.etp: how single experts"),
        ({"recompute": "selective"}, "recompute: expected none or full"),
        ({"recompute": ["full"]}, "recompute: expected none or full"),
        ({"pp_config__pp_degree": 4}, "pp_config.pp_degree: says 4, and parallelism.pp"),
        ({"pp_config__pp_degree": [[1]]}, "pp_config.pp_degree: expected a number"),
        ({"pp_config__pipeline_schedule": "zbv"}, "pipeline_schedule: expected 1F1B"),
        ({"pp_config__stage_partition_mode": "manual"}, "stage_partition_mode: stages are cut where"),
        ({"pp_config__pp_interleave_num": 2}, "pp_interleave_num: a stage is one run"),
        ({"pp_config__layer_recompute_layers": [0]}, "layer_recompute_layers: layers that are recomputed"),
    ],
)
def test_what_no_search_here_holds_to_is_refused_with_its_key(parts: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=rf"search\.yaml:\d+: .*{message}|search\.yaml.*{message}"):
        parsed(changed(**parts))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 40) | st.floats() | st.text("ab", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=2),
    max_leaves=6,
)
PLACES = [(s, k) for s, v in DENSE.items() for k in (v if isinstance(v, dict) else [""])]


@given(st.sampled_from(PLACES), VALUES)
def test_hostile_values_are_the_input_at_fault(place: tuple[str, str], value: Any) -> None:
    section, key = place
    document = changed()
    if key:
        document[section][key] = value
    else:
        document[section] = value
    with contextlib.suppress(InputError):
        assert parsed(document).job is not None


def searched(folder: Path, document: Any, *options: str) -> int:
    path = folder / "search.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    model = str(SAMPLES / "gpt_tiny.onnx")
    arguments = ["search", model, "--hardware", "ascend-910b", "--no-cache", "--out", str(folder / "plan")]
    if "--devices" not in options:
        arguments += ["--devices", "8"]
    return main([*arguments, "--constraints", str(path), *options])


def test_a_search_holds_to_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert searched(tmp_path, changed(parallelism={"dp": 4, "tp": 2, "pp": 1})) == 0
    told = capsys.readouterr()
    assert "note: search.yaml: model: dim, local_batch_size, moe_enabled, n_layers: the graph says" in told.err
    plan = read_plan(tmp_path / "plan" / "plan.json")
    assert plan.mesh.shape == (4, 1, 2)
    assert plan.inputs["input_ids"].shape == [16, 16]  # the batch of the file
    assert plan.cluster.memory_limit_bytes == 60 * 2**30
    products = [o for o in plan.operators.values() if o.type == "MatMul"]
    assert products
    assert all(o.strategy["x"] == "split:b0" for o in products)


def test_stages_and_micro_batches_come_from_the_file(tmp_path: Path) -> None:
    document = changed(parallelism={"dp": 4, "pp": 2, "micro_batch_num": 4}, pp_config=None)
    assert searched(tmp_path, document) == 0
    plan = read_plan(tmp_path / "plan" / "plan.json")
    assert (plan.schedule.stages, plan.schedule.micro_batches) == (2, 4)
    assert plan.mesh.shape == (4, 1, 1)


def test_shards_of_parameters_are_pinned_beside_degrees(tmp_path: Path) -> None:
    document = changed(parallelism={"dp": 1, "fsdp": 8, "pp": 1})
    assert searched(tmp_path, document, "--pin", "rest=zero") == 0
    plan = read_plan(tmp_path / "plan" / "plan.json")
    assert plan.mesh.shape == (8, 1, 1)
    assert all("x" in (a for d in p.stored.dims for a in d) for p in plan.parameters.values())


@pytest.mark.parametrize(
    ("parts", "options", "message"),
    [
        ({}, ("--devices", "4"), "is for 8 devices, and --devices says 4"),
        ({}, ("--hardware", "a100-80"), "is for ascend-910b; give --hardware ascend-910b, not a100-80"),
        ({}, ("--batch", "8"), "the batch is 16, and --batch 8"),
        ({}, ("--recompute", "blocks"), "recomputation is none, and --recompute blocks"),
        ({}, ("--stages", "4"), "allows 1, 2 stages, not 4: give --stages with one"),
        ({}, ("--stages", "2"), "stage_partition_mode is uniform"),
        ({"parallelism__pp": [2, 4], "pp_config": None}, (), "which are searched one at a time: give --stages"),
        ({"parallelism__micro_batch_num": [2, 4]}, (), "one at a time: give --micro-batches"),
        ({"parallelism__micro_batch_num": [1, 2]}, (), "allows 1, 2 micro-batches, which are searched one at a time"),
        (
            {"parallelism": {"dp": 4, "pp": 2, "micro_batch_num": [1, 2]}, "pp_config": None},
            (),
            "allows 1, 2 micro-batches, which are searched one at a time",
        ),
    ],
)
def test_options_that_say_otherwise_are_refused(
    tmp_path: Path, parts: dict[str, Any], options: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    one = {"parallelism__micro_batch_num": None, **parts}
    assert searched(tmp_path, changed(**one), *options) == 3
    assert message in capsys.readouterr().err
