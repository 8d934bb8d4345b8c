"""Megatron-LM itself parses and checks our arguments, and deals ranks as the plan's mesh has them.

`megatron-core` is a package; `megatron.training` is in none, and needs a checkout of Megatron-LM on PYTHONPATH.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner.emit.megatron import emit_megatron
from planner.emit.scheme import scheme_of
from planner.planning import PlanDocument
from tests.unit.launcher_plans import plan, planned

pytestmark = [pytest.mark.peer, pytest.mark.slow]
MODEL = (
    "--num-layers", "2", "--hidden-size", "64", "--num-attention-heads", "4", "--max-position-embeddings", "16",
    "--vocab-size", "128", "--tokenizer-type", "NullTokenizer", "--no-gradient-accumulation-fusion",
)  # fmt: skip
EXPERTS = ("--num-experts", "4", "--moe-router-topk", "2", "--group-query-attention", "--num-query-groups", "4")


def arguments(made: PlanDocument, folder: Path) -> list[str]:
    """As `run_megatron.sh` hands them to the pretraining script."""
    for name, content in emit_megatron(made).files.items():
        (folder / name).write_bytes(content)
    (folder / "torchrun").write_text('#!/bin/bash\nprintf "%s\\n" "$@"\n', encoding="utf-8")
    (folder / "torchrun").chmod(0o755)
    told = subprocess.run(
        ["bash", str(folder / "run_megatron.sh"), "pretrain.py"],
        env={"PATH": f"{folder}:/usr/bin:/bin"},
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    return told[told.index("pretrain.py") + 1 :]


def parsed(made: PlanDocument, folder: Path, monkeypatch: pytest.MonkeyPatch, *more: str) -> tuple[Any, Any]:
    """Megatron-LM's arguments and the configuration that it makes of them."""
    known = pytest.importorskip("megatron.training.arguments")
    monkeypatch.setattr(known, "get_device_arch_version", lambda: 9)
    monkeypatch.setattr(sys, "argv", ["pretrain.py", *arguments(made, folder), *MODEL, *more])
    monkeypatch.setenv("WORLD_SIZE", str(made.devices))
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    found = known.validate_args(known.parse_args(), {})
    return found, known.core_transformer_config_from_args(found)


@pytest.mark.parametrize("name", ["data", "zero", "hybrid", "tensor", "sequence", "context", "tensor llama"])
def test_arguments_are_understood(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = plan(name)
    found, config = parsed(made, tmp_path, monkeypatch)
    model = found.tensor_model_parallel_size * found.context_parallel_size
    assert found.data_parallel_size * model == made.devices
    assert found.global_batch_size == 8
    assert found.global_batch_size == found.micro_batch_size * found.data_parallel_size
    assert found.use_distributed_optimizer == (name in ("zero", "hybrid"))
    assert config.sequence_parallel == (name == "sequence")
    assert config.bf16
    assert found.untie_embeddings_and_output_weights == ("llama" in name)


def test_experts_are_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, config = parsed(plan("experts in shards"), tmp_path, monkeypatch, *EXPERTS)
    assert (found.expert_model_parallel_size, config.num_moe_experts) == (4, 4)
    assert found.data_parallel_size == 4


def test_stages_and_recomputation_are_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = planned("gpt_tiny", 8, ("rest=zero",), stages=2, micro_batches=2, recompute="blocks")
    found, config = parsed(made, tmp_path, monkeypatch)
    assert found.global_batch_size == 2 * found.micro_batch_size * found.data_parallel_size == 8
    assert [len(row[0]) for row in config.pipeline_model_parallel_layout.layout] == [2, 2]
    assert (config.recompute_granularity, config.recompute_method) == ("full", "uniform")


@pytest.mark.parametrize("name", ["data", "tensor", "context", "experts in shards", "hybrid"])
def test_ranks_work_together_as_planned(name: str) -> None:
    state = pytest.importorskip("megatron.core.parallel_state")
    made = plan(name)
    uses = {"tensor": "tp", "context": "cp", "data": "dp", "expert": "dp"}
    scheme = scheme_of(made, "Megatron-LM")
    assert scheme.displaced("data", "shards", "expert", "context", "tensor") is None
    ranks = state.RankGenerator(tp=scheme.tensor, ep=1, dp=scheme.data, pp=1, cp=scheme.context, order="tp-cp-ep-dp-pp")
    for use in {uses[u] for u in scheme.uses.values()}:
        axes = [a for a in made.mesh.names if uses[scheme.uses[a]] == use and made.mesh.sizes[a] > 1]
        assert sorted(map(sorted, ranks.get_ranks(use))) == sorted(map(sorted, groups(made, axes)))


def groups(made: PlanDocument, axes: list[str]) -> list[list[int]]:
    mesh = made.mesh
    grid = np.arange(mesh.devices).reshape(mesh.shape)
    order = [i for i, a in enumerate(mesh.names) if a not in axes] + [mesh.names.index(a) for a in axes]
    found: list[list[int]] = grid.transpose(order).reshape(-1, mesh.size(axes)).tolist()
    return found
