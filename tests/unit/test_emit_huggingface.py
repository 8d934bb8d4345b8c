"""DistributedConfig: styles of Llama's modules, what is refused, files read back; run by transformers in tests/peer."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.cli.main import main
from planner.emit import NameRules, read
from planner.emit.huggingface import emit_huggingface
from planner.emit.huggingface.reading import read_distributed_config
from planner.emit.names import Name
from planner.errors import InputError, PlannerError
from planner.frontends import load_model
from planner.planning import PlanDocument, read_plan

SAMPLES = Path(__file__).parents[2] / "sample_graphs"
COLUMNS = ("*.[qkv]_proj.matmul", "*.gate_proj.matmul", "*.up_proj.matmul", "lm_head.matmul")
ROWS = ("*.o_proj.matmul", "*.down_proj.matmul")


def tensor(data: str, axis: str) -> tuple[str, ...]:
    samples = f"b0={data} " if data else ""
    return (
        *(f"{m} {samples}n={axis}" for m in COLUMNS),
        *(f"{m} {samples}k={axis}" for m in ROWS),
        f"model.embed_tokens.gather {f'i0={data} ' if data else ''}v={axis}",
    )


NORMS = "*norm.weight stored=[_]"  # whole, as transformers holds them


def plan(folder: Path, model: str, *pins: str, more: tuple[str, ...] = ()) -> PlanDocument:
    options = [o for p in pins for o in ("--pin", p)]
    arguments = ["search", str(SAMPLES / model), "--devices", "4", "--hardware", "cpu", "--no-cache", *more]
    assert main([*arguments, "--out", str(folder), *options]) == 0
    return read_plan(folder / "plan.json")


def linear(made: PlanDocument) -> dict[str, Name]:
    """Names of a network that holds the weights of products the other way round, as nn.Linear does."""
    return {n: Name(n, transposed=len(p.shape) == 2 and "embed" not in n) for n, p in made.parameters.items()}


def config(made: PlanDocument, names: dict[str, Name] | None = None) -> dict[str, Any]:
    return json.loads(emit_huggingface(made, names or linear(made)).files["distributed_config.json"])


MEGATRON = {
    "model.embed_tokens": "embedding_rowwise",
    "model.layers.*.self_attn.q_proj": "colwise",
    "model.layers.*.self_attn.k_proj": "colwise",
    "model.layers.*.self_attn.v_proj": "colwise",
    "model.layers.*.self_attn.o_proj": "rowwise",
    "model.layers.*.mlp.gate_proj": "colwise",
    "model.layers.*.mlp.up_proj": "colwise",
    "model.layers.*.mlp.down_proj": "rowwise",
    "lm_head": "colwise_gather_output",
    "model.layers.*.input_layernorm": "replicate",
    "model.layers.*.post_attention_layernorm": "replicate",
    "model.norm": "replicate",
}


def test_megatrons_layout_is_colwise_and_rowwise(tmp_path: Path) -> None:
    found = config(plan(tmp_path, "llama_tiny.onnx", "mesh=2x2", *tensor("x", "y")))
    assert found["tp_plan"] == MEGATRON
    assert (found["tp_size"], found["fsdp_size"], found["dp_replicate_size"], found["pp_size"]) == (2, 1, 2, 1)


def test_heads_that_do_not_divide_among_the_ranks_are_gathered(tmp_path: Path) -> None:
    """Two heads of keys and values among four ranks: no rank could look at its part by heads."""
    found = config(plan(tmp_path, "llama_tiny.onnx", "mesh=4", *tensor("", "x"), NORMS))["tp_plan"]
    assert found["model.layers.*.self_attn.k_proj"] == "colwise_gather_output"
    assert found["model.layers.*.mlp.up_proj"] == "colwise"


def test_results_that_are_gathered_and_inputs_that_are_cut_have_styles_of_their_own(tmp_path: Path) -> None:
    found = config(plan(tmp_path, "llama_tiny.onnx", "mesh=2x2", *tensor("x", "y"), "rest=data_parallel"))["tp_plan"]
    assert found["model.layers.*.self_attn.q_proj"] == "colwise_gather_output"
    assert found["model.layers.*.mlp.down_proj"] == "rowwise_split_input"


def test_modules_that_the_plan_leaves_whole_are_named_as_such(tmp_path: Path) -> None:
    """transformers keeps its own rule for what a config leaves out."""
    attention = tuple(p for p in tensor("x", "y") if not any(m in p for m in ("gate", "up_", "down")))
    data = ("*.mlp.*_proj.matmul b0=x", "*.mlp.mul* d0=x", NORMS, "*.mlp.*_proj.weight stored=[_,_]")
    made = plan(tmp_path, "llama_tiny.onnx", "mesh=2x2", *attention, *data)
    found = config(made)["tp_plan"]
    assert found["model.layers.*.mlp.up_proj"] == found["model.layers.*.mlp.down_proj"] == "replicate"
    assert found["model.layers.*.self_attn.o_proj"] == "rowwise"


def test_degrees_are_replicas_shards_and_tensor_parallel_ranks(tmp_path: Path) -> None:

    for pins, sizes in (
        (("mesh=2x2", *tensor("x", "y")), (2, 1, 2)),
        (("mesh=4", "rest=zero"), (1, 4, 1)),
        (("mesh=4", "rest=data_parallel"), (1, 1, 4)),
    ):
        made = plan(tmp_path / str(len(pins)) / pins[-1][-4:], "llama_tiny.onnx", *pins)
        found = config(made)
        assert (found["tp_size"], found["fsdp_size"], found["dp_replicate_size"]) == sizes
        assert set(found["fsdp_plan"].values()) == {"keep_full_weight"}
        assert "model.layers.*" in found["fsdp_plan"]


def test_stages_are_those_that_transformers_makes_or_refused(tmp_path: Path) -> None:
    def staged(cut: int) -> PlanDocument:
        """Layers before `cut` in the first stage."""
        made = plan(tmp_path / str(cut), "llama_tiny.onnx", "mesh=1", more=("--mode", "inference", "--devices", "1"))
        operators = {
            n: o.model_copy(
                update={"stage": int(o.module.startswith(("model.norm", "lm_head")) or layer(o.module) >= cut)}
            )
            for n, o in made.operators.items()
        }
        schedule = made.schedule.model_copy(update={"stages": 2, "micro_batches": 4})
        return made.model_copy(update={"operators": operators, "schedule": schedule, "stages": made.stages * 2})

    def layer(module: str) -> int:
        return int(module.split(".")[2]) if module.startswith("model.layers.") else -1

    made = staged(1)
    found = emit_huggingface(made, linear(made))
    assert json.loads(found.files["distributed_config.json"])["pp_size"] == 2
    assert any("stage after stage" in line for line in found.lost)
    uneven = staged(2)
    with pytest.raises(InputError, match=r"layers\.1\..* is in stage 0; transformers puts it into stage 1"):
        emit_huggingface(uneven, linear(uneven))
    split = plan(tmp_path / "tensor", "llama_tiny.onnx", "mesh=2x2", *tensor("x", "y"), more=("--mode", "inference"))
    split = split.model_copy(update={"schedule": made.schedule, "stages": made.stages})
    with pytest.raises(InputError, match="2 pipeline stages and 2 data-parallel ranks"):
        emit_huggingface(split, linear(split))
    trained = made.model_copy(update={"schedule": made.schedule.model_copy(update={"mode": "training"})})
    with pytest.raises(InputError, match="runs forward only"):
        emit_huggingface(trained, linear(trained))


@pytest.mark.parametrize(
    ("model", "pins", "names", "message"),
    [
        # the network holds inputs x outputs, as GPT-2's Conv1D does
        ("llama_tiny.onnx", ("mesh=2x2", *tensor("x", "y")), "plain", r"q_proj\.weight.*Conv1D"),
        # one layer otherwise than the others
        ("llama_tiny.onnx", ("mesh=2x2", *(p.replace("*.", "model.layers.0.*.") for p in tensor("x", "y")),
         "model.layers.1.*_proj.matmul b0=x", "rest=data_parallel"), "linear", "layers.1.* are divided alike"),
        ("llama_tiny.onnx", ("mesh=4", "rest=replicated"), "linear", "4 devices do the same"),
        ("llama_tiny.onnx", ("mesh=4", "input_ids layout=[_,x]", "*.mlp.*_proj.matmul m=x"), "linear",
         "context parallel; DistributedConfig splits no positions"),
        ("moe_tiny.onnx", ("mesh=4", "reads=*.experts.* type=Einsum e=x", "rest=data_parallel"), "plain",
         "expert parallel"),
        # a product on parts that is none of a weight's rows
        ("llama_tiny.onnx", ("mesh=2x2", *(p for p in tensor("x", "y") if "down" not in p), "*.mlp.mul d0=x d2=y",
         "*.down_proj.matmul b0=x", "*norm.weight stored=[_]", "*down_proj.weight stored=[_,_]"), "linear",
         "down_proj.matmul does not work on the parts"),
    ],
)  # fmt: skip
def test_what_transformers_would_do_otherwise_is_refused(
    tmp_path: Path, model: str, pins: tuple[str, ...], names: str, message: str
) -> None:
    made = plan(tmp_path, model, *pins)
    told = linear(made) if names == "linear" else {n: Name(n) for n in made.parameters}
    with pytest.raises(InputError, match=message):
        emit_huggingface(made, told)


def layouts(made: PlanDocument) -> dict[str, tuple[list[str], str]]:
    return {n: ([str(x.layout()) for x in p.compute], str(p.stored.layout())) for n, p in made.parameters.items()}


def names_file(folder: Path, made: PlanDocument) -> Path:
    path = folder / "names.json"
    told = {n: {"name": x.name, "transposed": x.transposed} for n, x in linear(made).items()}
    path.write_text(json.dumps({"parameters": told}), encoding="utf-8")
    return path


STORED = (
    *(f"{m.removesuffix('.matmul')}.weight stored=[_,x.y]" for m in COLUMNS),
    *(f"{m.removesuffix('.matmul')}.weight stored=[y,x]" for m in ROWS),
    "*norm.weight stored=[x]",
    "model.embed_tokens.weight stored=[x.y,_]",
)


@pytest.mark.parametrize(
    "pins",
    [
        ("mesh=2x2", *tensor("x", "y")),
        ("mesh=2x2", *tensor("x", "y"), *STORED),
        ("mesh=2x2", *tensor("x", "y"), "rest=data_parallel"),
        ("mesh=4", "rest=data_parallel"),
        ("mesh=4", "*_proj.weight stored=[_,x]", "lm_head.weight stored=[_,x]", "rest=zero"),
    ],
    ids=["tensor", "tensor and FSDP", "gathered", "data", "FSDP"],
)
def test_emitted_and_read_back_parameters_lie_alike(tmp_path: Path, pins: tuple[str, ...]) -> None:
    made = plan(tmp_path / "plan", "llama_tiny.onnx", *pins)
    names = names_file(tmp_path, made)
    plan_file, out = str(tmp_path / "plan" / "plan.json"), tmp_path / "out"
    assert main(["emit", plan_file, "--target", "huggingface", "--names", str(names), "--out", str(out)]) == 0
    arguments = ["read", str(out / "distributed_config.json"), "--format", "huggingface", "--names", str(names)]
    model = str(SAMPLES / "llama_tiny.onnx")
    assert main([*arguments, "--model", model, "--hardware", "cpu", "--out", str(tmp_path / "read.json")]) == 0
    found = read_plan(tmp_path / "read.json")
    assert layouts(found) == layouts(made)
    assert found.mesh == made.mesh
    assert config(found)["tp_size"] == config(made)["tp_size"]


GRAPH = load_model(SAMPLES / "llama_tiny.onnx")
TURNED = NameRules(
    {
        t.name: Name(t.name, len(t.shape or ()) == 2 and "embed" not in t.name)
        for t in GRAPH.parameters
        if t.name in GRAPH.consumers
    }
)
VALID: dict[str, Any] = {
    "tp_size": 2, "fsdp_size": 2, "dp_replicate_size": 1, "pp_size": 1, "tp_plan": MEGATRON,
    "fsdp_plan": {"model.layers.*": "keep_full_weight"},
}  # fmt: skip


def reading(folder: Path, document: Any) -> Any:
    path = folder / "distributed_config.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document), encoding="utf-8")
    return read_distributed_config(path, GRAPH, TURNED)


def test_what_a_file_says_and_a_plan_cannot_is_told(tmp_path: Path) -> None:
    found = reading(
        tmp_path,
        VALID | {
            "fsdp_mixed_precision": True, "color": 1, "ep_implementation": "auto",
            "fsdp_plan": {"model.layers.*": "free_full_weight"},
            "tp_plan": {k: v for k, v in MEGATRON.items() if k != "model.norm"} | {"lm_head": "packed_colwise"},
        },
    )  # fmt: skip
    assert str(found.mesh) == "2x2"
    told = "\n".join(found.unused)
    for word in ("fsdp_mixed_precision", "color", "free_full_weight", "packed_colwise of lm_head", "model.norm.weight"):
        assert word in told
    assert "ep_implementation" not in told


def test_layers_of_a_pipeline_are_cut_as_transformers_cuts_them(tmp_path: Path) -> None:
    found = reading(tmp_path, {"tp_size": 2, "pp_size": 2, "tp_plan": MEGATRON})
    assert {n: found.stages[n] for n in ("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight")} == {
        "model.embed_tokens.weight": 0, "model.norm.weight": 1, "lm_head.weight": 1,
    }  # fmt: skip
    assert {s for n, s in found.stages.items() if "layers.1." in n} == {1}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tp_plan": None}, "tp_plan: is left to the model class"),
        ({"tp_plan": "auto"}, "tp_plan: is left to the model class"),
        ({"tp_size": None}, "left to the number of processes"),
        ({"tp_size": 0}, "tp_size: expected a whole number"),
        ({"tp_size": 3}, "3 shards|uneven|divide"),
        ({"ep_size": 2}, "ep_size: experts"),
        ({"pp_size": 2}, "does not combine it with FSDP"),
        ({"tp_plan": {"lm_head": "sideways"}}, "'sideways' is no style"),
        ({"tp_plan": {"model.norm": "embedding_colwise"}}, "which has 1 dimensions"),
        ({"fsdp_plan": {"lm_head": "colwise"}}, "fsdp_plan: lm_head: expected"),
        ({"fsdp_cpu_offload": "yes"}, "expected true or false"),
    ],
)
def test_files_that_say_nothing_certain_are_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        reading(tmp_path, VALID | change)


def test_only_files_of_the_form_are_read(tmp_path: Path) -> None:
    for text in ("", "[]", "nonsense", "{}", "[" * 100_000):
        with pytest.raises(InputError, match=r"distributed_config\.json"):
            reading(tmp_path, text)
    with pytest.raises(InputError, match="cannot be read"):
        read("huggingface", tmp_path / "absent.json", GRAPH, None)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 9) | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
STYLES = st.sampled_from([*MEGATRON.values(), "packed_colwise", "moe_tp_experts", "sequence_parallel", ""])


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from([*VALID, "ep_size", "ep_plan", "fsdp_cpu_offload"]), JSON, max_size=4))
def test_no_value_of_a_field_crashes_the_reader(
    tmp_path_factory: pytest.TempPathFactory, change: dict[str, Any]
) -> None:
    with contextlib.suppress(PlannerError):
        reading(tmp_path_factory.mktemp("fuzz"), VALID | change)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.sampled_from(list(MEGATRON)) | st.text(max_size=6), STYLES, max_size=6), st.integers(1, 4))
def test_no_style_crashes_the_reader(tmp_path_factory: pytest.TempPathFactory, plan: dict[str, str], size: int) -> None:
    with contextlib.suppress(PlannerError):
        reading(tmp_path_factory.mktemp("fuzz"), VALID | {"tp_plan": plan, "tp_size": size})


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=60), st.integers(0, 900))
def test_no_bytes_crash_the_reader(tmp_path_factory: pytest.TempPathFactory, noise: bytes, at: int) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "config.json"
    text = json.dumps(VALID).encode()
    path.write_bytes(text[:at] + noise + text[at + len(noise) :])
    with contextlib.suppress(PlannerError):
        read_distributed_config(path, GRAPH, TURNED)
