"""Our distributed_config.json, loaded by transformers on 4 gloo processes: logits and gradients are those of one
process, and every rank holds the shards that the plan says."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from planner.emit.huggingface import emit_huggingface
from planner.errors import InputError
from planner.planning import PlanDocument

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5.20")
pytest.importorskip("accelerate")
pytest.importorskip("onnxscript")
models = pytest.importorskip("tests.peer.transformers_models")
pytestmark = [pytest.mark.peer, pytest.mark.slow]

CASES: dict[str, Callable[[], tuple[str, ...]]] = {
    # Megatron's layout
    "llama tensor 4": lambda: ("llama", "mesh=4", *models.tensor_pins("", "x")),
    # the same weights, but every result gathered and every input cut
    "llama gathered 4": lambda: ("llama", "mesh=4", *models.tensor_pins("", "x"), "rest=replicated"),
    "llama data 2 tensor 2": lambda: ("llama", "mesh=2x2", *models.tensor_pins("x", "y")),
    "llama FSDP 2 tensor 2": lambda: (
        "llama", "mesh=2x2", *models.tensor_pins("x", "y"), *models.stored("llama", "x", "y"),
    ),
    "llama FSDP 4": lambda: ("llama", "mesh=4", *models.stored("llama", "x"), "rest=data_parallel"),
    "llama replicas 2 FSDP 2": lambda: ("llama", "mesh=2x2", *models.stored("llama", "y"), "rest=data_parallel"),
    "gpt2 FSDP 4": lambda: ("gpt2", "mesh=4", *models.stored("gpt2", "x"), "rest=data_parallel"),
    "gpt2 data 4": lambda: ("gpt2", "mesh=4", "rest=data_parallel"),
    "gpt2 tables 4": lambda: (
        "gpt2", "mesh=4", "*wte* type=Gather v=x", "*lm_head* type=Transpose d0=x", "*lm_head* type=MatMul n=x",
        "*wpe* type=Gather r0=x", "rest=replicated",
    ),
}  # fmt: skip


def write(folder: Path, case: str) -> dict[str, Any]:
    """The emitted files, and what the plan says that a rank holds of every parameter, by the network's names."""
    name, *pins = CASES[case]()
    plan = models.plan(name, *pins)
    names = models.names_of(plan)
    folder.mkdir()
    for file, content in emit_huggingface(plan, names).files.items():
        (folder / file).write_bytes(content)
    held = {names[n].name: p.stored.layout().local_shape(tuple(p.shape), plan.mesh) for n, p in plan.parameters.items()}
    return {"case": case, "folder": str(folder), "model": name, "held": held, "sharded": case != "gpt2 data 4"}


def whole(t: Any) -> Any:
    return t.full_tensor() if hasattr(t, "full_tensor") else t


def gradients(model: Any, ids: Any, labels: Any) -> tuple[Any, dict[str, Any]]:
    logits = whole(model(input_ids=ids).logits)
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()).backward()
    return logits.detach(), {n: whole(p.grad).detach() for n, p in model.named_parameters()}


def loaded(folder: str) -> Any:
    spec = importlib.util.spec_from_file_location("emitted_load", Path(folder) / "load.py")
    assert spec is not None
    assert spec.loader is not None
    emitted = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(emitted)
    return emitted


def check(case: dict[str, Any], checkpoint: str) -> None:
    emitted = loaded(case["folder"])
    batch = models.tokens()
    one = transformers.AutoModelForCausalLM.from_pretrained(
        checkpoint, dtype=torch.float32, attn_implementation="eager"
    )
    logits, wanted = gradients(one, batch[:, :-1], batch[:, 1:])
    model = emitted.load(checkpoint, attn_implementation="eager")
    named = dict(model.named_parameters())
    tied = {"lm_head.weight"} - set(named)
    held = {n: tuple(p.to_local().shape if hasattr(p, "to_local") else p.shape) for n, p in named.items()}
    for n, shape in case["held"].items():
        assert held["transformer.wte.weight" if n in tied else n] == shape, n
    assert case["sharded"] == any(held[n] != p.shape for n, p in one.named_parameters())
    given = emitted.samples({"ids": batch[:, :-1], "labels": batch[:, 1:], "logits": logits})
    found, gathered = gradients(model, given["ids"], given["labels"])
    torch.testing.assert_close(found, given["logits"], rtol=1e-4, atol=1e-5)
    for n, g in wanted.items():
        torch.testing.assert_close(gathered[n], g, rtol=1e-4, atol=1e-6, msg=lambda m, n=n: f"{n}: {m}")


def rank_main(rank: int, cases: list[dict[str, Any]], checkpoints: dict[str, str], store: str, out: str) -> None:
    os.environ.update({"RANK": str(rank), "WORLD_SIZE": "4", "LOCAL_RANK": str(rank)})
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=4)
    for case in cases:
        try:
            check(case, checkpoints[case["model"]])
            said = "as one process"
        except Exception as e:
            said = f"{type(e).__name__}: {e}"
        Path(out, f"{case['case']}.{rank}").write_text(said, encoding="utf-8")
    torch.distributed.barrier()  # gloo aborts where a peer leaves early
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Case → what each rank found.  All run in one set of processes: to start them takes longer than to run them."""
    folder = tmp_path_factory.mktemp("huggingface")
    checkpoints = {name: str(models.save(name, folder)) for name in ("llama", "gpt2")}
    cases = [write(folder / f"case{i}", case) for i, case in enumerate(CASES)]
    torch.multiprocessing.spawn(rank_main, args=(cases, checkpoints, str(folder / "store"), str(folder)), nprocs=4)
    return {c: [(folder / f"{c}.{rank}").read_text(encoding="utf-8") for rank in range(4)] for c in CASES}


@pytest.mark.parametrize("case", CASES)
def test_logits_gradients_and_shards_are_those_of_the_plan(outcomes: dict[str, list[str]], case: str) -> None:
    assert outcomes[case] == ["as one process"] * 4


def test_the_file_is_what_the_config_class_makes_of_it(tmp_path: Path) -> None:
    write(tmp_path / "files", "llama FSDP 2 tensor 2")
    document = json.loads((tmp_path / "files" / "distributed_config.json").read_text(encoding="utf-8"))
    made = transformers.DistributedConfig.from_dict(document).to_dict()
    assert {k: made[k] for k in document} == document


def test_the_plan_of_megatron_is_transformers_own_plan(tmp_path: Path) -> None:
    write(tmp_path / "files", "llama tensor 4")
    document = json.loads((tmp_path / "files" / "distributed_config.json").read_text(encoding="utf-8"))
    own = {n: s for n, s in document["tp_plan"].items() if s != "replicate"}
    assert own == models.network("llama").tp_plan


def test_products_that_transformers_cannot_divide_are_refused() -> None:
    plan: PlanDocument = models.plan(
        "gpt2", "mesh=4", "*.c_fc/* type=Gemm n=x", "*.mlp.c_proj/* type=Gemm k=x", "rest=replicated"
    )
    with pytest.raises(InputError, match=r"transformer\.h\.0\.mlp\.c_fc\.weight.*Conv1D"):
        emit_huggingface(plan, models.names_of(plan))


def stage_main(rank: int, folder: str, checkpoint: str) -> None:
    os.environ.update({"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank)})
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    ids = models.tokens()[:, :-1]
    one = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    model = loaded(folder).load(checkpoint)
    here = {n for n, _ in model.named_parameters()}
    ends = {"model.embed_tokens.weight"}, {"model.norm.weight", "lm_head.weight"}
    assert here == {n for n, _ in one.named_parameters() if f".layers.{rank}." in n} | ends[rank]
    with torch.no_grad():
        torch.testing.assert_close(model(input_ids=ids).logits, one(input_ids=ids).logits)
    torch.distributed.barrier()  # gloo aborts where a peer leaves early
    torch.distributed.destroy_process_group()


def test_stages_are_those_of_the_plan(tmp_path: Path) -> None:
    """Forward alone: that is all that transformers' pipeline runs."""
    plan = models.in_stages(models.plan("llama", "mesh=1", devices=1))
    for file, content in emit_huggingface(plan, models.names_of(plan)).files.items():
        (tmp_path / file).write_bytes(content)
    checkpoint = models.save("llama", tmp_path)
    torch.multiprocessing.spawn(stage_main, args=(str(tmp_path), str(checkpoint)), nprocs=2)
