"""Processes of Megatron-core on the CPU, for tests: they load, save and run small GPT models over gloo.

Megatron-core asks for CUDA's device and its random states in a few places: `on_cpu` gives it the CPU and nothing to
track, which changes no number, since nothing here draws any.  Its writer needs psutil.  Layers are of its local
specification, without TransformerEngine; checkpoints, their names and the division among ranks are its own.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock


def run_ranks(ranks: int, work: Callable[..., None], *arguments: Any) -> None:
    """Calls `work(rank, ranks, *arguments)` in so many processes that know each other."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_process, args=(r, ranks, port, work, arguments)) for r in range(ranks)]
    for p in processes:
        p.start()
    try:
        end = time.monotonic() + 60
        for p in processes:
            p.join(max(0.0, end - time.monotonic()))
        assert [p.exitcode for p in processes] == [0] * ranks
    finally:
        for p in processes:
            if p.is_alive():
                p.kill()


def _process(rank: int, ranks: int, port: int, work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    import torch

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    on_cpu()
    torch.distributed.init_process_group("gloo", rank=rank, world_size=ranks)
    work(rank, ranks, *arguments)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def on_cpu() -> None:
    import torch
    from megatron.core import tensor_parallel
    from megatron.core.tensor_parallel import random
    from megatron.core.transformer.moe import moe_utils

    class Nothing:
        def fork(self, *_: Any, **__: Any) -> contextlib.AbstractContextManager[None]:
            return contextlib.nullcontext()

    def current_device() -> Any:
        return torch.device("cpu")

    torch.cuda.current_device = current_device  # type: ignore[assignment]
    torch.cuda.synchronize = lambda *_: None  # type: ignore[assignment]
    moe_utils.te_general_gemm = None  # which it looks for without having TransformerEngine
    for module in (random, tensor_parallel):
        module.get_cuda_rng_tracker = lambda *_, **__: Nothing()


def model(kind: str, config: dict[str, Any], tp: int, pp: int, ep: int, *, vocabulary: int = 0) -> Any:
    """A GPTModel of the sizes of a Hugging Face configuration, on this rank; its experts lie on `ep` ranks."""
    import torch
    from megatron.core import parallel_state
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer import TransformerConfig

    if not parallel_state.is_initialized():
        parallel_state.initialize_model_parallel(tp, pp, expert_model_parallel_size=ep)
    gpt2 = kind == "gpt2"
    common: dict[str, Any] = {
        "use_cpu_initialization": True, "bias_activation_fusion": False, "bias_dropout_fusion": False,
        "masked_softmax_fusion": False, "gradient_accumulation_fusion": False, "apply_rope_fusion": False,
        "attention_dropout": 0.0, "hidden_dropout": 0.0, "pipeline_dtype": torch.float32,
        "tensor_model_parallel_size": tp, "pipeline_model_parallel_size": pp,
    }  # fmt: skip
    if gpt2:
        sizes: dict[str, Any] = {
            "num_layers": config["n_layer"], "hidden_size": config["n_embd"], "num_attention_heads": config["n_head"],
            "layernorm_epsilon": config["layer_norm_epsilon"],
            "activation_func": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
        }  # fmt: skip
    else:
        sizes = {
            "num_layers": config["num_hidden_layers"], "hidden_size": config["hidden_size"],
            "num_attention_heads": config["num_attention_heads"], "num_query_groups": config["num_key_value_heads"],
            "ffn_hidden_size": config["intermediate_size"], "gated_linear_unit": True, "add_bias_linear": False,
            "activation_func": torch.nn.functional.silu, "normalization": "RMSNorm",
            "layernorm_epsilon": config["rms_norm_eps"], "add_qkv_bias": bool(config.get("attention_bias")),
        }  # fmt: skip
    experts: dict[str, Any] = {}
    if kind == "mixtral":
        count = config["num_local_experts"]
        sizes |= {
            "num_moe_experts": count, "moe_router_topk": config["num_experts_per_tok"],
            "expert_model_parallel_size": ep,
            "moe_ffn_hidden_size": config["intermediate_size"], "moe_grouped_gemm": False,
            "moe_router_load_balancing_type": "none", "moe_token_dispatcher_type": "allgather",
        }  # fmt: skip
        experts = {"num_experts": count, "moe_grouped_gemm": False}
    spec = get_gpt_layer_local_spec(normalization=None if gpt2 else "RMSNorm", **experts)
    theta = config.get("rope_theta") or (config.get("rope_parameters") or {}).get("rope_theta") or 10000
    return GPTModel(
        config=TransformerConfig(**common, **sizes), transformer_layer_spec=spec,
        vocab_size=vocabulary or config["vocab_size"], max_sequence_length=config.get("n_positions", 64),
        pre_process=parallel_state.is_pipeline_first_stage(), post_process=parallel_state.is_pipeline_last_stage(),
        position_embedding_type="learned_absolute" if gpt2 else "rope", parallel_output=False,
        share_embeddings_and_output_weights=gpt2, rotary_base=int(theta),
    )  # fmt: skip


def logits(m: Any, ids: Any) -> Any:
    """Of the last stage; None elsewhere.  Stages hand over what they computed."""
    import torch
    from megatron.core import parallel_state

    n = ids.shape[1]
    mask = torch.triu(torch.ones(1, 1, n, n, dtype=torch.bool), 1)
    with torch.no_grad():
        if not parallel_state.is_pipeline_first_stage():
            before = torch.empty(n, ids.shape[0], m.config.hidden_size)
            torch.distributed.recv(before, parallel_state.get_pipeline_model_parallel_prev_rank())
            m.set_input_tensor(before)
        out = m(ids, torch.arange(n)[None].expand_as(ids), mask)
        if not parallel_state.is_pipeline_last_stage():
            torch.distributed.send(out.contiguous(), parallel_state.get_pipeline_model_parallel_next_rank())
            return None
    return out


def load_and_run(
    rank: int, ranks: int, folder: str, kind: str, tp: int, pp: int, ep: int, vocabulary: int, form: dict[str, Any]
) -> None:  # fmt: skip
    """Loads `megatron` of a folder by dist_checkpointing, writes the logits of its `ids.pt`, and saves all again.

    With an optimizer's state in it, Megatron's optimizer loads and saves that, too.
    """
    import torch
    from megatron.core import dist_checkpointing, parallel_state

    place = Path(folder)
    config = json.loads((place / "config.json").read_text())
    m = model(kind, config, tp, pp, ep, vocabulary=vocabulary)
    weights = m.sharded_state_dict()
    wanted = {"model": weights}
    optimizer = None
    if (place / "hf/optimizer.safetensors").exists():
        optimizer = adam(m)
        wanted["optimizer"] = own_groups(optimizer.sharded_state_dict(weights, is_loading=True), optimizer)
    state = dist_checkpointing.load(wanted, str(place / "megatron"))
    m.load_state_dict(state["model"])
    m.eval()
    if optimizer is not None:
        optimizer.load_state_dict(state["optimizer"])
    found = logits(m, torch.load(place / "ids.pt"))
    if found is not None and rank == ranks - 1:
        torch.save(found[..., : config["vocab_size"]].clone(), place / "logits.pt")
    if rank == 0:
        (place / "saved").mkdir()
    torch.distributed.barrier()
    group = parallel_state.get_data_parallel_group(with_context_parallel=True)
    weights = m.sharded_state_dict(metadata={**form, "dp_cp_group": group})
    again: dict[str, Any] = {"model": weights, "iteration": 7}
    if optimizer is not None:
        again["optimizer"] = optimizer.sharded_state_dict(weights)
    dist_checkpointing.save(again, str(place / "saved"), content_metadata=dict(form))


def adam(m: Any) -> Any:
    """Megatron's optimizer of weights in fp32, around PyTorch's AdamW."""
    import torch
    from megatron.core.optimizer import OptimizerConfig
    from megatron.core.optimizer.optimizer import FP32Optimizer

    def begin(inner: Any, _: Any) -> None:
        for g in inner.param_groups:
            for p in g["params"]:
                inner.state[p] = {"step": torch.tensor(0.0), "exp_avg": torch.zeros_like(p.data),
                                  "exp_avg_sq": torch.zeros_like(p.data)}  # fmt: skip

    group = {"params": list(m.parameters()), "wd_mult": 1.0, "lr_mult": 1.0, "is_expert_parallel": False,
             "is_decoupled_lr": False}  # fmt: skip
    tensor = torch.tensor
    with mock.patch.object(torch, "tensor", lambda *a, device=None, **k: tensor(*a, **k)):  # its scale is CUDA's
        return FP32Optimizer(torch.optim.AdamW([group], lr=0.1), OptimizerConfig(optimizer="adam", lr=0.1), begin)


def own_groups(state: dict[str, Any], optimizer: Any) -> dict[str, Any]:
    """With settings such as the learning rate from the optimizer itself: Hugging Face's files have none."""
    from megatron.core.dist_checkpointing.mapping import LocalNonpersistentObject

    return state | {"param_groups": LocalNonpersistentObject(optimizer.optimizer.state_dict()["param_groups"])}
