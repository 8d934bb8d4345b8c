"""torchtitan itself takes our configuration, and lays out ranks as the plan's mesh has them, and parameters as the
plan says; on a process group that only pretends.

What runs after that (FSDP of its default backend, kernels) needs CUDA.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from planner.emit.scheme import scheme_of
from planner.emit.torchtitan import emit_torchtitan
from planner.planning import PlanDocument
from tests.peer.test_emit_megatron import groups
from tests.unit.launcher_plans import plan, planned

torch = pytest.importorskip("torch")
pytest.importorskip("torchtitan.trainer")
pytestmark = [pytest.mark.peer, pytest.mark.slow]

STAGED = ("llama_tiny", 8, ("rest=zero",))

# Of the graph → of torchtitan's Llama, which has queries, keys and values in one matrix.
NAMES = {
    "model.embed_tokens": "tok_embeddings", "lm_head": "lm_head", "model.norm": "norm",
    "model.layers.0.self_attn.q_proj": "layers.0.attention.qkv_linear.wqkv",
    "model.layers.0.self_attn.o_proj": "layers.0.attention.wo",
    "model.layers.0.mlp.gate_proj": "layers.0.feed_forward.w1",
    "model.layers.0.mlp.down_proj": "layers.0.feed_forward.w2",
    "model.layers.0.mlp.up_proj": "layers.0.feed_forward.w3",
    "model.layers.0.input_layernorm": "layers.0.attention_norm",
    "model.layers.0.post_attention_layernorm": "layers.0.ffn_norm",
}  # fmt: skip


def configured(made: PlanDocument, folder: Path, monkeypatch: pytest.MonkeyPatch, model: str = "llama3") -> Any:
    """The job's configuration as torchtitan's command line makes it."""
    from torchtitan.config.manager import ConfigManager

    for name, content in emit_torchtitan(made).files.items():
        (folder / name).write_bytes(content)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "planner_torchtitan", raising=False)
    monkeypatch.setenv("TITAN_MODEL", model)
    monkeypatch.setenv("TITAN_CONFIG", f"{model}_debugmodel")
    found = ConfigManager().parse_args(["--module", "planner_torchtitan", "--config", "planned"])
    type(found).__post_init__(found)
    return found


@pytest.fixture
def meshes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """From a configuration, a number of ranks and one of them, to torchtitan's meshes."""
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from torchtitan.distributed import ParallelDims, parallel_dims
    from torchtitan.distributed.utils import set_spmd_backend

    monkeypatch.setattr(parallel_dims, "device_type", "cpu")

    def build(config: Any, world: int, rank: int) -> Any:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        torch.distributed.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
        found = ParallelDims.from_config(config.parallelism, world)
        found.build_mesh()
        set_spmd_backend(config.parallelism.spmd_backend)
        return found

    yield build
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def model(config: Any) -> Any:
    config.model_spec.model.update_from_config(config=config)
    with torch.device("meta"):
        return config.model_spec.model.build()


@pytest.mark.parametrize("name", ["data", "zero", "hybrid", "tensor", "sequence", "tensor llama", "zero llama"])
def test_the_configuration_is_taken(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchtitan.distributed import ParallelDims

    made = plan(name)
    config = configured(made, tmp_path, monkeypatch)
    dims = ParallelDims.from_config(config.parallelism, made.devices)
    scheme = scheme_of(made, "torchtitan")
    assert (dims.dp_replicate * dims.dp_shard, dims.tp, dims.cp, dims.pp) == (scheme.data, scheme.tensor, 1, 1)
    assert dims.dp_shard == scheme.shards
    assert config.training.global_batch_size == 8
    assert config.training.local_batch_size == 8 // scheme.data
    assert config.activation_checkpoint is None


def test_experts_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, meshes: Any) -> None:
    made = plan("experts in shards")
    config = configured(made, tmp_path, monkeypatch, "deepseek_v3")
    found = meshes(config, made.devices, 0)
    assert found.get_mesh("ep").mesh.tolist() == [0, 1, 2, 3]


def test_stages_micro_batches_and_recomputation_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchtitan.distributed import ParallelDims
    from torchtitan.distributed.activation_checkpoint import FullAC

    made = planned(*STAGED, stages=2, micro_batches=2, recompute="blocks")
    config = configured(made, tmp_path, monkeypatch)
    dims = ParallelDims.from_config(config.parallelism, made.devices)
    assert (dims.pp, dims.dp_shard) == (2, 4)
    assert isinstance(config.activation_checkpoint, FullAC.Config)
    assert config.training.local_batch_size == 2 * config.parallelism.pipeline_parallel_microbatch_size == 2
    names = [n for part in config.parallelism.module_fqns_per_model_part for n in part]
    whole = model(config)
    assert all(whole.get_submodule(n) is not None for n in names)


@pytest.mark.parametrize("name", ["zero", "tensor llama", "hybrid"])
def test_ranks_work_together_as_planned(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, meshes: Any
) -> None:
    made = plan(name)
    scheme = scheme_of(made, "torchtitan")
    config = configured(made, tmp_path, monkeypatch)
    config.parallelism.spmd_backend = "partial_dtensor"
    axes = {
        "tp": [a for a, use in scheme.uses.items() if use == "tensor"],
        "fsdp": list(scheme.sharded),
        "dp_replicate": [a for a, use in scheme.uses.items() if use == "data" and a not in scheme.sharded],
    }
    for rank in range(made.devices):
        found = meshes(config, made.devices, rank)
        for mesh, over in axes.items():
            if over:
                wanted = next(sorted(g) for g in groups(made, over) if rank in g)
                assert found.get_mesh(mesh).mesh.tolist() == wanted, (rank, mesh)


@pytest.mark.parametrize("sequence", [False, True])
def test_tensor_parallel_parameters_are_cut_as_planned(
    sequence: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, meshes: Any
) -> None:
    made = plan("tensor llama")
    config = configured(made, tmp_path, monkeypatch)
    config.parallelism.enable_sequence_parallel = sequence
    whole = model(config)
    before = {n: tuple(p.shape) for n, p in whole.named_parameters()}
    whole.parallelize(meshes(config, made.devices, 1))
    after = {n: tuple(p.shape) for n, p in whole.named_parameters()}
    for ours, theirs in NAMES.items():
        dims = made.parameters[f"{ours}.weight"].compute[0].dims
        shards = [math.prod(made.mesh.sizes[a] for a in d) for d in dims]
        if len(shards) == 2 and "embed" not in ours:  # the graph has matrices the other way round
            shards = shards[::-1]
        name = f"{theirs}.weight"
        assert after[name] == tuple(n // k for n, k in zip(before[name], shards, strict=True)), name


def test_fully_sharded_parameters_are_kept_as_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, meshes: Any
) -> None:
    made = plan("zero llama")
    config = configured(made, tmp_path, monkeypatch)
    config.parallelism.spmd_backend = "partial_dtensor"
    whole = config.model_spec.parallelize_fn(
        model(config), parallel_dims=meshes(config, made.devices, 1), training=config.training,
        parallelism=config.parallelism, compile_config=config.compile, ac_config=config.activation_checkpoint,
        dump_folder="",
    )  # fmt: skip
    from torch.distributed.fsdp import FSDPModule

    assert all(p.to_local().numel() * 4 == p.numel() for p in whole.parameters())
    states = [m._get_fsdp_state() for m in whole.modules() if isinstance(m, FSDPModule)]
    groups = [g for s in states for g in ([s._fsdp_param_group] if s._fsdp_param_group else [])]
    assert groups
    # Not resharded after the forward pass: gathered once, as the plan has it.
    assert all(g.post_forward_mesh_info is None for g in groups)
