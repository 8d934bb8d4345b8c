"""The DTensor plan by name, applied to Llama and GPT-2 of transformers on 2x2 gloo processes: forward, gradients, one
step; parameters are kept and data enters and leaves modules as the plan says."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from planner.emit.dtensor import emit_dtensor

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", minversion="5.20")
pytest.importorskip("onnxscript")
models = pytest.importorskip("tests.peer.transformers_models")
pytestmark = [pytest.mark.peer, pytest.mark.slow]

CASES: dict[str, Callable[[], tuple[str, ...]]] = {
    "llama data": lambda: ("llama", "mesh=2x2", "rest=data_parallel"),
    "llama ZeRO": lambda: ("llama", "mesh=2x2", "rest=zero"),
    "llama tensor": lambda: ("llama", "mesh=2x2", *models.tensor_pins("x", "y")),
    "llama tensor ZeRO": lambda: (
        "llama", "mesh=2x2", *models.tensor_pins("x", "y"), *models.stored("llama", "x", "y"),
    ),
    "llama sequence": lambda: (
        "llama", "mesh=2x2", *models.tensor_pins("x", "y"), "*layernorm/* type=Pow d0=x d1=y",
        "*layernorm/* type=Mul d0=x d1=y",
    ),
    "gpt2 data": lambda: ("gpt2", "mesh=2x2", "rest=data_parallel"),
    "gpt2 ZeRO": lambda: ("gpt2", "mesh=2x2", "rest=zero"),
    "gpt2 tensor": lambda: (
        "gpt2", "mesh=2x2", "*.c_fc/* type=Gemm m=x n=y", "*.mlp.c_proj/* type=Gemm m=x k=y",
        "*wte* type=Gather i0=x v=y", "*lm_head* type=Transpose d0=y", "*lm_head* type=MatMul b0=x n=y",
    ),
    "gpt2 fused attention": lambda: (
        "gpt2", "mesh=2x2", "*.c_attn/* type=Gemm m=x n=y", "*.attn.c_proj/* type=Gemm m=x k=y", "rest=data_parallel",
    ),
}  # fmt: skip


def write(folder: Path, case: str) -> dict[str, str]:
    name, *pins = CASES[case]()
    plan = models.plan(name, *pins)
    folder.mkdir()
    for file, content in emit_dtensor(plan, models.names_of(plan)).files.items():
        (folder / file).write_bytes(content)
    return {"case": case, "model": name, "module": str(folder / "parallel.py")}


def whole(t: Any) -> Any:
    return t.full_tensor() if hasattr(t, "full_tensor") else t


def step(model: Any, ids: Any, labels: Any) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """Logits, gradients and parameters after one step of AdamW, whole.  Its epsilon is large: gradients that are zero
    but for rounding would else make steps of full size."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-3)
    logits = whole(model(input_ids=ids).logits)
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()).backward()
    named = dict(model.named_parameters())
    found = {n: whole(p.grad).detach().clone() for n, p in named.items()}
    optimizer.step()
    return logits.detach(), found, {n: whole(p).detach().clone() for n, p in named.items()}


def check(case: dict[str, str]) -> None:
    spec = importlib.util.spec_from_file_location("emitted_parallel", case["module"])
    assert spec is not None
    assert spec.loader is not None
    emitted = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(emitted)
    batch = models.tokens()
    ids, labels = batch[:, :-1].contiguous(), batch[:, 1:].contiguous()
    logits, gradients, after = step(models.network(case["model"]), ids, labels)
    mesh = emitted.device_mesh("cpu")
    model = emitted.parallelize(models.network(case["model"]), mesh)
    seen = set()
    for path, (_, told) in emitted.MODULES.items():

        def look(_: Any, x: Any, y: Any, path: str = path, told: Any = told) -> None:
            assert list(y.placements) == emitted._placements(told[1]), path
            seen.add(path)

        model.get_submodule(path).register_forward_hook(look)
    given = emitted.shard_inputs({"input_ids": ids}, mesh)["input_ids"]
    with emitted.implicit_replication():
        split_logits, split_gradients, split_after = step(model, given, labels)
    assert seen == set(emitted.MODULES)
    torch.testing.assert_close(split_logits, logits, rtol=1e-4, atol=1e-5)
    assert set(split_gradients) == set(gradients)
    for n, g in split_gradients.items():
        torch.testing.assert_close(g, gradients[n], rtol=1e-4, atol=1e-6, msg=lambda m, n=n: f"gradient of {n}: {m}")
        torch.testing.assert_close(split_after[n], after[n], rtol=1e-4, atol=1e-5, msg=lambda m, n=n: f"{n}: {m}")
    kept = {n: list(p.placements) for n, p in model.named_parameters()}
    told = {id(p): n for n, p in model.named_parameters(remove_duplicate=False)}
    assert len(kept) == len(told) == len(emitted.PARAMETERS)
    for n, (layout, _) in emitted.PARAMETERS.items():
        assert kept.get(n, kept.get("transformer.wte.weight")) == emitted._placements(layout), n


def rank_main(rank: int, cases: list[dict[str, str]], store: str, out: str) -> None:
    os.environ.update({"RANK": str(rank), "WORLD_SIZE": "4", "LOCAL_RANK": str(rank)})
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=4)
    for case in cases:
        try:
            check(case)
            said = "as one process"
        except Exception as e:
            said = f"{type(e).__name__}: {e}"
        Path(out, f"{case['case']}.{rank}").write_text(said, encoding="utf-8")
    torch.distributed.barrier()  # gloo aborts where a peer leaves early
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Case → what each rank found.  All run in one set of processes: to start them takes longer than to run them."""
    folder = tmp_path_factory.mktemp("torch")
    cases = [write(folder / f"case{i}", case) for i, case in enumerate(CASES)]
    torch.multiprocessing.spawn(rank_main, args=(cases, str(folder / "store"), str(folder)), nprocs=4)
    return {c: [(folder / f"{c}.{rank}").read_text(encoding="utf-8") for rank in range(4)] for c in CASES}


@pytest.mark.parametrize("case", CASES)
def test_forward_gradients_and_a_step_are_those_of_one_process(outcomes: dict[str, list[str]], case: str) -> None:
    assert outcomes[case] == ["as one process"] * 4
