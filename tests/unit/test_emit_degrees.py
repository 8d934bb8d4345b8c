"""torchtitan, DeepSpeed and Megatron-LM: what each is told of a plan, what is refused, and what is said to be lost."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import types
from pathlib import Path
from typing import Any

import pytest

from planner.cli.main import main
from planner.emit.deepspeed import emit_deepspeed
from planner.emit.emission import Emission
from planner.emit.megatron import emit_megatron
from planner.emit.names import Name, NameRules
from planner.emit.torchtitan import emit_torchtitan
from planner.errors import InputError
from planner.planning import PlanDocument, read_plan, write_plan
from tests.unit.launcher_plans import BLOCKS, INPUTS, SAMPLES, plan, planned

TARGETS = ("torchtitan", "deepspeed", "megatron")


def emit(target: str, made: PlanDocument) -> Emission:
    if target == "torchtitan":
        return emit_torchtitan(made)
    if target == "megatron":
        return emit_megatron(made)
    return emit_deepspeed(made, NameRules().apply({n: tuple(p.shape) for n, p in made.parameters.items()}))


def arguments(made: PlanDocument) -> dict[str, str]:
    """As bash understands them."""
    script = emit("megatron", made).files["megatron_arguments.sh"].decode() + 'printf "%s\\n" "${MEGATRON_ARGS[@]}"\n'
    words = subprocess.run(["bash", "-c", script], check=True, capture_output=True, text=True).stdout.split("\n")[:-1]
    out: dict[str, str] = {}
    for word in words:
        if word.startswith("--"):
            out[word] = ""
        else:
            out[list(out)[-1]] += word
    return out


def config(made: PlanDocument) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(emit("deepspeed", made).files["ds_config.json"])
    return found


def module(made: PlanDocument) -> Any:
    text = emit("torchtitan", made).files["planner_torchtitan.py"].decode()
    out = types.ModuleType("planner_torchtitan")
    exec(compile(text, "planner_torchtitan.py", "exec"), out.__dict__)
    return out


def edited(made: PlanDocument, **schedule: Any) -> PlanDocument:
    copy = made.model_copy(deep=True)
    copy.schedule = copy.schedule.model_copy(update=schedule)
    return copy


def staged(made: PlanDocument, *firsts: str, micro_batches: int = 4) -> PlanDocument:
    """Cut before the first operators with these names."""
    copy = edited(made, stages=len(firsts) + 1, micro_batches=micro_batches, order="1f1b")
    copy.stages = [copy.stages[0]] * (len(firsts) + 1)
    stage = 0
    for name, op in copy.operators.items():
        stage += stage < len(firsts) and name.startswith(firsts[stage])
        op.stage = stage
    return copy


# What is told


def test_data_parallel_jobs_share_the_batch() -> None:
    made = plan("data")
    told = arguments(made)
    assert (told["--micro-batch-size"], told["--global-batch-size"], told["--seq-length"]) == ("1", "8", "16")
    assert "--use-distributed-optimizer" not in told
    assert config(made) == {
        "train_batch_size": 8,
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 0.0,  # without it DeepSpeed clips to 1.0
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 0},
    }
    titan = module(made).PARALLELISM
    assert (titan["data_parallel_replicate_degree"], titan["data_parallel_shard_degree"]) == (8, 1)


def test_parameters_in_shards_gathered_once_are_zero_2_and_are_not_resharded_after_forward() -> None:
    made = plan("zero")
    titan = module(made).PARALLELISM
    assert (titan["data_parallel_replicate_degree"], titan["data_parallel_shard_degree"]) == (1, 8)
    assert titan["fsdp_reshard_after_forward"] == "never"
    assert config(made)["zero_optimization"] == {"stage": 2}
    told = arguments(made)
    assert "--use-distributed-optimizer" in told
    assert "--num-distributed-optimizer-instances" not in told
    # 114,560 elements in fp32, beyond one of eight shards
    elements = sum(p.shape[0] * (p.shape[1] if p.shape[1:] else 1) for p in made.parameters.values())
    assert f"{4 * elements * 7 / 8 / 2**20:.2f} MiB" in "\n".join(emit("megatron", made).lost)


def test_shards_among_some_data_parallel_ranks_are_hybrid() -> None:
    made = plan("hybrid")
    titan = module(made).PARALLELISM
    assert (titan["data_parallel_replicate_degree"], titan["data_parallel_shard_degree"]) == (2, 4)
    assert arguments(made)["--num-distributed-optimizer-instances"] == "2"
    with pytest.raises(InputError, match=r"in 4 shards over y, on 8 data-parallel ranks.*rest=zero"):
        emit("deepspeed", made)
    assert not any("which ranks" in line for line in emit("megatron", made).lost)
    for target in ("torchtitan", "megatron"):
        lost = emit(target, plan("hybrid outside")).lost
        assert any("axis x is outside of y" in line for line in lost)


def test_tensor_parallelism_with_and_without_sequence() -> None:
    for name, sequence in (("tensor", False), ("sequence", True)):
        told = arguments(plan(name))
        assert told["--tensor-model-parallel-size"] == "4"
        assert ("--sequence-parallel" in told) == sequence
        titan = module(plan(name)).PARALLELISM
        assert (titan["tensor_parallel_degree"], titan["enable_sequence_parallel"]) == (4, sequence)
    assert any("wpe.weight" in line for line in emit("megatron", plan("sequence")).lost)
    with pytest.raises(InputError, match=r"divide positions at normalisations \(transformer.h.0.ln_1"):
        emit("deepspeed", plan("sequence"))


def test_a_normalisation_in_parts_shows_sequence_parallelism_too() -> None:
    pins = ("mesh=2x2", *INPUTS, "*.q_proj.matmul b0=x n=y", "*norm.reducemean d0=x d1=y")
    made = planned("llama_tiny", 4, pins)
    with pytest.raises(InputError, match="divide positions"):
        emit("deepspeed", made)


def test_autotp_is_told_every_matrix_by_name() -> None:
    told = config(plan("tables whole"))
    assert "train_batch_size" not in told
    assert told["train_micro_batch_size_per_gpu"] == 4
    specs = told["tensor_parallel"]["partition_config"]
    assert (specs["strict_mode"], specs["use_default_specs"]) == (True, False)
    kinds = {
        n: [s["partition_type"] for s in specs["layer_specs"] if any(re.match(p, n) for p in s["patterns"])]
        for n in ("transformer.h.1.attn.c_attn.weight", "transformer.h.0.mlp.c_proj.weight", "lm_head.weight",
                  "transformer.h.0.ln_1.weight")
    }  # fmt: skip
    assert list(kinds.values()) == [["column"], ["row"], ["skip"], []]


def test_a_tied_table_by_vocabulary_is_autotps_vocabulary_parallel_head() -> None:
    told = config(plan("tensor"))["tensor_parallel"]
    assert told["vocab_parallel_lm_head"] is True
    assert not any(s["partition_type"] == "skip" for s in told["partition_config"]["layer_specs"])


def test_the_last_product_by_columns_is_gathered() -> None:
    specs = config(plan("head gathered"))["tensor_parallel"]["partition_config"]["layer_specs"]
    assert [s["patterns"] for s in specs if s.get("gather_output")] == [[r"lm_head\.weight$"]]


def test_layers_that_are_divided_otherwise_are_named_one_by_one() -> None:
    made = planned("gpt_tiny", 4, ("mesh=2x2", *INPUTS, "*.h.1.mlp.c_fc.matmul b0=x n=y",
                                   "*.h.1.mlp.c_proj.matmul b0=x k=y",
                                   "*.h.0.*.matmul b0=x", "*.attn.c_*.matmul b0=x", "*.layernormalization d0=x",
                                   "*.wte.gather i0=x", "lm_head.matmul b0=x"))  # fmt: skip
    specs = config(made)["tensor_parallel"]["partition_config"]["layer_specs"]
    kinds = {p: s["partition_type"] for s in specs for p in s["patterns"]}
    assert kinds[r"transformer\.h\.1\.mlp\.c_fc\.weight$"] == "column"
    assert kinds[r"transformer\.h\.0\.mlp\.c_fc\.weight$"] == "skip"
    assert kinds[r"transformer\.h\.\d+\.attn\.c_attn\.weight$"] == "skip"


def test_experts_take_data_parallel_ranks() -> None:
    made = plan("experts in shards")
    told = arguments(made)
    assert (told["--expert-model-parallel-size"], told["--expert-tensor-parallel-size"]) == ("4", "1")
    assert "--use-distributed-optimizer" in told
    assert "--untie-embeddings-and-output-weights" in told
    titan = module(made)
    assert (titan.PARALLELISM["expert_parallel_degree"], titan.PARALLELISM["data_parallel_shard_degree"]) == (4, 4)
    assert titan.TRAINING["disable_cuda_graphs"] is True
    assert config(made)["expert_parallel"] == {"enabled": True, "autoep_size": 4}
    whole = plan("experts")
    assert "--use-distributed-optimizer" not in arguments(whole)
    with pytest.raises(InputError, match="axis x is expert parallel, and parameters are whole over it"):
        emit("torchtitan", whole)


def test_positions_of_inputs_are_context_parallel() -> None:
    made = plan("context")
    told = arguments(made)
    assert (told["--context-parallel-size"], told["--cp-comm-type"]) == ("4", "allgather")
    assert any("which positions" in line for line in emit("megatron", made).lost)
    with pytest.raises(InputError, match="axis y is context parallel, and parameters are whole over it"):
        emit("torchtitan", made)
    with pytest.raises(InputError, match="axis y splits the positions of inputs"):
        emit("deepspeed", made)


def test_a_ring_of_attention_passes_keys_on() -> None:
    made = plan("context").model_copy(deep=True)
    next(iter(made.operators.values())).strategy["y"] = "split:s&t"
    assert arguments(made)["--cp-comm-type"] == "p2p"


def test_recomputed_layers() -> None:
    made = planned("gpt_tiny", 8, ("rest=zero",), recompute="blocks")
    told = arguments(made)
    assert told["--recompute-granularity"] == "full"
    assert (told["--recompute-method"], told["--recompute-num-layers"]) == ("uniform", "1")
    assert module(made).RECOMPUTE is True
    assert module(plan("zero")).RECOMPUTE is False
    assert any("2 recomputed blocks" in line for line in emit("deepspeed", made).lost)
    assert not any("run again" in line for t in ("torchtitan", "megatron") for line in emit(t, made).lost)


def test_some_recomputed_layers_are_the_first_of_every_stage_in_megatron_and_all_in_torchtitan() -> None:
    blocks = planned("gpt_tiny", 8, ("rest=zero",), recompute="blocks").schedule.recompute
    first, second = (edited(plan("zero"), recompute=[b]) for b in blocks)
    for made in (first, second):
        told = arguments(made)
        assert (told["--recompute-method"], told["--recompute-num-layers"]) == ("block", "1")
        assert any("all 2 layers, the plan 1" in line for line in emit("torchtitan", made).lost)
    assert not any("run again" in line for line in emit("megatron", first).lost)
    assert any("the first; the plan 1 of 2" in line for line in emit("megatron", second).lost)
    part = edited(plan("zero"), recompute=[b[:-4] for b in blocks])
    assert all(any("in part" in line for line in emit(t, part).lost) for t in ("torchtitan", "megatron"))
    with pytest.raises(InputError, match="which are no layers"):
        emit("megatron", edited(plan("zero"), recompute=[["transformer.ln_f.layernormalization"]]))


def test_stages_of_whole_layers() -> None:
    made = staged(plan("zero llama"), "model.layers.1.")
    told = arguments(made)
    assert (told["--pipeline-model-parallel-size"], told["--pipeline-model-parallel-layout"]) == ("2", "Et|tL")
    assert told["--num-layers"] == "2"
    assert (told["--micro-batch-size"], told["--global-batch-size"]) == ("2", "32")
    titan = module(made)
    assert titan.PARALLELISM["pipeline_parallel_degree"] == 2
    assert titan.PARALLELISM["pipeline_parallel_schedule"] == "1F1B"
    assert titan.PARALLELISM["module_fqns_per_model_part"] == [
        ["tok_embeddings", "layers.0"],
        ["layers.1", "norm", "lm_head"],
    ]
    assert (titan.SAMPLES, titan.MICRO_BATCHES, titan.MICRO_BATCH) == (32, 4, 2)
    assert not any("stages begin" in line for t in ("torchtitan", "megatron") for line in emit(t, made).lost)
    with pytest.raises(InputError, match="2 pipeline stages; DeepSpeed takes them from a PipelineModule"):
        emit("deepspeed", made)


def test_stages_that_the_planner_cuts_are_whole_layers() -> None:
    made = planned("llama_tiny", 8, ("rest=data_parallel",), stages=2, micro_batches=2)
    assert arguments(made)["--pipeline-model-parallel-layout"] == "Et|tL"
    assert not any("stages begin" in line for line in emit("megatron", made).lost)


def test_stages_that_cut_a_layer_are_rounded_and_said_so() -> None:
    made = staged(plan("zero llama"), "model.layers.1.")
    cut = next(n for n in made.operators if n.startswith("model.layers.1."))
    made.operators[cut].stage = 0
    assert arguments(made)["--pipeline-model-parallel-layout"] == "Et|tL"
    assert any("moved, with their memory and time: model.layers.1" in line for line in emit("megatron", made).lost)


def test_parameters_at_the_ends_that_lie_in_other_stages_are_said_to_move() -> None:
    made = staged(plan("zero llama"), "model.layers.1.", "model.norm")
    with pytest.raises(InputError, match="stage 2 of 3 holds no whole layer"):
        emit("megatron", made)
    made = staged(plan("zero llama"), "model.layers.0.self_attn.q_proj")
    with pytest.raises(InputError, match="stage 0 of 2 holds no whole layer"):
        emit("torchtitan", made)
    made = staged(plan("zero llama"), "model.layers.1.")
    made.operators["lm_head.matmul"].stage = 0
    assert any("lm_head.weight" in line for line in emit("megatron", made).lost if "stages begin" in line)


def test_a_tied_table_in_two_stages_is_megatrons_alone() -> None:
    made = staged(plan("zero"), "transformer.h.1.")
    assert arguments(made)["--pipeline-model-parallel-layout"] == "Et|tL"
    with pytest.raises(
        InputError,
        match=r"transformer.wte.weight is read in several stages, or chunks of them \(transformer.wte.gather and",
    ):
        emit("torchtitan", made)


def test_a_batch_in_parts_on_one_stage_accumulates_gradients() -> None:
    made = edited(plan("zero"), micro_batches=4)
    told = config(made)
    assert (told["train_batch_size"], told["gradient_accumulation_steps"]) == (32, 4)
    assert arguments(made)["--global-batch-size"] == "32"
    assert any("for each of the 4 micro-batches" in line for line in emit("torchtitan", made).lost)


@pytest.mark.parametrize(("precision", "word"), [("bf16", "--bf16"), ("fp16", "--fp16"), ("fp32", "")])
def test_numbers(precision: str, word: str) -> None:
    made = edited(plan("data"), precision=precision)
    assert {a for a in arguments(made) if "p16" in a or "f16" in a} == ({word} if word else set())
    assert [k for k in config(made) if k in ("bf16", "fp16")] == ([precision] if word else [])
    if precision == "fp16":
        with pytest.raises(InputError, match="computes in fp16"):
            emit("torchtitan", made)
    else:
        told = module(made).TRAINING["mixed_precision_param"]
        assert told == ("float32" if precision == "fp32" else "bfloat16")


def test_the_optimizer() -> None:
    sgd = edited(plan("data"), optimizer="sgd")
    assert (arguments(sgd)["--optimizer"], arguments(sgd)["--sgd-momentum"]) == ("sgd", "0.0")
    assert any("sgd" in line for line in emit("torchtitan", sgd).lost)
    momentum = edited(plan("data"), optimizer="momentum")
    assert arguments(momentum)["--optimizer"] == "sgd"
    assert "--sgd-momentum" not in arguments(momentum)
    with pytest.raises(InputError, match="distributed optimizer is Adam alone"):
        emit("megatron", edited(plan("zero"), optimizer="sgd"))


# What the torchtitan module does


def job(released: bool) -> Any:
    training = (
        {"local_batch_size": 0, "global_batch_size": 0, "seq_len": 0}
        if released
        else {"num_tokens_per_train_step": 0, "num_tokens_per_microbatch_per_dp_rank": 0, "max_context_length": 0}
    )
    spaces = [types.SimpleNamespace(**x) for x in (training, {})]
    return types.SimpleNamespace(training=spaces[0], parallelism=spaces[1], activation_checkpoint="selective")


def test_the_torchtitan_module_knows_batches_in_samples_and_in_tokens() -> None:
    made = staged(plan("zero llama"), "model.layers.1.")
    released = module(made).apply(job(released=True))
    assert (released.training.local_batch_size, released.training.global_batch_size) == (8, 32)
    assert (released.parallelism.pipeline_parallel_microbatch_size, released.training.seq_len) == (2, 16)
    later = module(made).apply(job(released=False))
    assert later.training.num_tokens_per_train_step == 32 * 16
    assert later.training.num_tokens_per_microbatch_per_dp_rank == 2 * 16
    assert later.parallelism.num_pp_microbatches == 4
    assert released.activation_checkpoint is later.activation_checkpoint is None
    accumulated = module(edited(plan("zero llama"), micro_batches=4))
    assert accumulated.apply(job(released=True)).training.local_batch_size == 2
    assert accumulated.apply(job(released=False)).parallelism.num_pp_microbatches == 1


# What is refused


def changed(made: PlanDocument, name: str, *dims: str) -> PlanDocument:
    """A parameter read and kept as these axes say, '' for whole."""
    copy = made.model_copy(deep=True)
    p = copy.parameters[name]
    layout = p.stored.model_copy(update={"dims": [list(d) for d in dims], "partial": {}})
    p.stored, p.compute = layout, [layout]
    for r in p.readers:
        copy.operators[r.operator].operands[r.slot] = layout
    return copy


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("name", "dims", "message"),
    [
        ("transformer.h.0.mlp.c_proj.weight", ("", ""), r"h\.0\.mlp\.c_proj\.matmul .*pin .*h\.0\.mlp\.c_proj\.matmul"),
        ("transformer.h.1.mlp.c_fc.bias", ("",), r"its bias transformer\.h\.1\.mlp\.c_fc\.bias is not.*c_fc\.add"),
        ("transformer.h.1.mlp.c_proj.bias", ("y",), r"its bias transformer\.h\.1\.mlp\.c_proj\.bias is divided"),
    ],
)
def test_half_a_block_is_refused(target: str, name: str, dims: tuple[str, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        emit(target, changed(plan("tensor"), name, *dims))


@pytest.mark.parametrize("target", TARGETS)
def test_columns_that_are_gathered_are_refused(target: str) -> None:
    made = planned("gpt_tiny", 4, ("mesh=2x2", *INPUTS, *BLOCKS, "*.wte.gather i0=x v=y", "lm_head.matmul b0=x n=y",
                                   "*.layernormalization d0=x", "*.mlp.gelu d0=x"))  # fmt: skip
    with pytest.raises(InputError, match=r"mlp\.c_fc\.add is gathered or exchanged .* pin what reads it"):
        emit(target, made)


@pytest.mark.parametrize("target", ["torchtitan", "megatron"])
def test_whole_products_and_tables_are_refused_where_degrees_divide_all(target: str) -> None:
    with pytest.raises(
        InputError, match=r"table transformer\.wte\.weight is whole .* pin transformer\.wte\.gather with v"
    ):
        emit(target, plan("tables whole"))
    made = changed(plan("tensor llama"), "lm_head.weight", "", "")
    with pytest.raises(InputError, match=r"lm_head\.matmul outside of layers .* pin lm_head\.matmul with its columns"):
        emit(target, made)
    made = changed(
        changed(plan("tensor"), "transformer.h.0.attn.c_attn.weight", "", ""), "transformer.h.0.attn.c_attn.bias", ""
    )
    with pytest.raises(
        InputError, match=r"all 4 tensor-parallel ranks compute transformer\.h\.0\.attn\.c_attn\.matmul"
    ):
        emit(target, made)


@pytest.mark.parametrize("target", ["torchtitan", "megatron"])
def test_a_tied_output_layer_on_the_whole_table_is_refused(target: str) -> None:
    made = plan("tensor").model_copy(deep=True)
    product = made.operators["lm_head.matmul"].operands
    assert product[1] is not None
    product[1] = product[1].model_copy(update={"dims": [[], []]})
    with pytest.raises(
        InputError, match=r"lm_head\.matmul .* whole of table transformer\.wte\.weight.* \(n\) over \[y"
    ):
        emit(target, made)


def test_autotp_has_no_tables_by_vocabulary_but_tied_ones() -> None:
    with pytest.raises(InputError, match=r"embed_tokens\.weight is divided by vocabulary; AutoTP"):
        emit("deepspeed", plan("tensor llama"))


@pytest.mark.parametrize("target", TARGETS)
def test_plans_of_inference_and_idle_devices_are_refused(target: str) -> None:
    with pytest.raises(InputError, match="one of inference"):
        emit(target, edited(plan("data"), mode="inference"))
    idle = planned("gpt_tiny", 8, ("mesh=8", "rest=replicated"))
    with pytest.raises(InputError, match="8 devices do the same"):
        emit(target, idle)


@pytest.mark.parametrize("target", TARGETS)
def test_a_few_whole_parameters_are_said_and_many_are_refused(target: str) -> None:
    pins = ("mesh=8", "*.ln_*.weight stored=replicated", "rest=zero")
    assert any("parameters that stay whole" in line for line in emit(target, planned("gpt_tiny", 8, pins)).lost)
    pins = ("mesh=8", "*.weight stored=replicated", "rest=zero")
    with pytest.raises(InputError, match=r"stay whole, with .*% of all elements"):
        emit(target, planned("gpt_tiny", 8, pins))


@pytest.mark.parametrize("target", TARGETS)
def test_ranks_that_lie_otherwise_are_said(target: str) -> None:
    assert not any("which ranks" in line for line in emit(target, plan("tensor")).lost)
    assert any("axis x is outside of y" in line for line in emit(target, plan("tensor outside")).lost)


def test_torchtitan_trains_models_of_tokens() -> None:
    with pytest.raises(InputError, match="no matrix of tokens"):
        emit("torchtitan", planned("mlp", 4, ("rest=data_parallel",)))
    assert "--seq-length" not in arguments(planned("mlp", 4, ("rest=data_parallel",)))


def test_experts_beside_tensor_parallelism() -> None:
    made = planned("moe_tiny", 8, ("mesh=2x4", *INPUTS, "reads=*.experts.* type=Einsum e=x", "*.q_proj.matmul b0=x n=y",
                                   "*.k_proj.matmul b0=x n=y", "*.v_proj.matmul b0=x n=y", "*.o_proj.matmul b0=x k=y",
                                   "*embed_tokens.gather i0=x v=y", "lm_head.matmul b0=x n=y"))  # fmt: skip
    for target in TARGETS:
        with pytest.raises(InputError, match=r"experts"):
            emit(target, made)


# Through the command line


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ['q"""; print(5); """', "back\\N", "new\nline", "$model", "`id`", "'; id; '"])
def test_names_are_data_in_files(target: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = plan("data").model_copy(deep=True)
    made.model.name = name
    write_plan(made, tmp_path / "plan.json")
    assert main(["emit", str(tmp_path / "plan.json"), "--target", target, "--out", str(tmp_path / "out")]) == 0
    assert "planner run" in capsys.readouterr().out
    for path in (tmp_path / "out").iterdir():
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".py":
            ast.parse(text)
        if path.suffix == ".sh":
            assert subprocess.run(["bash", "-n", path], check=False).returncode == 0
            assert path.stat().st_mode & 0o100
    if target == "megatron":
        ran = subprocess.run(["bash", str(tmp_path / "out" / "megatron_arguments.sh")], check=True, capture_output=True)
        assert ran.stdout == b""


def test_names_of_the_network_are_used() -> None:
    made = plan("tables whole")
    named = {n: Name("module." + n) for n in made.parameters}
    told = json.loads(emit_deepspeed(made, named).files["ds_config.json"])
    patterns = [p for s in told["tensor_parallel"]["partition_config"]["layer_specs"] for p in s["patterns"]]
    assert all(p.startswith((r"module\.", "(")) for p in patterns)


@pytest.mark.parametrize(
    ("model", "strategy", "wanted"),
    [
        ("gpt_tiny", "megatron:tp=2,dp=4,sp=false", {"--tensor-model-parallel-size": "2"}),
        (
            "llama_tiny",
            "megatron:tp=2,dp=2,pp=2",
            {"--tensor-model-parallel-size": "2", "--pipeline-model-parallel-size": "2", "--sequence-parallel": ""},
        ),
        (
            "llama_tiny",
            "megatron:tp=2,dp=2,cp=2",
            {"--tensor-model-parallel-size": "2", "--context-parallel-size": "2", "--sequence-parallel": ""},
        ),
        (
            "moe_tiny",
            "megatron:tp=2,dp=4,ep=4",
            {"--tensor-model-parallel-size": "2", "--expert-model-parallel-size": "4", "--sequence-parallel": ""},
        ),
    ],
)
def test_known_configurations_come_back_as_their_own_degrees(
    model: str, strategy: str, wanted: dict[str, str], tmp_path: Path
) -> None:
    search = ["search", str(SAMPLES / f"{model}.onnx"), "--devices", "8", "--strategy", strategy, "--no-cache"]
    assert main([*search, "--out", str(tmp_path)]) == 0
    told = arguments(read_plan(tmp_path / "plan.json"))
    degrees = {k: v for k, v in told.items() if k.endswith(("-parallel-size", "-parallel")) and v != "1"}
    degrees.pop("--expert-tensor-parallel-size", None)
    assert degrees == wanted


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("change", [{"operator": "nosuch"}, {"slot": 9}])
def test_readers_that_the_plan_does_not_have_are_refused(target: str, change: dict[str, Any]) -> None:
    made = plan("data").model_copy(deep=True)
    first = made.parameters["transformer.wpe.weight"]
    first.readers[0] = first.readers[0].model_copy(update=change)
    with pytest.raises(InputError, match="is no operand of the plan"):
        emit(target, made)
