"""Processes of Megatron-core on the CPU, for tests: they load, save and run small GPT models over gloo.

Megatron-core asks for CUDA's device and its random states in a few places: `on_cpu` gives it the CPU and nothing to
track, which changes no number, since nothing here draws any.  Its writer needs psutil.  Layers are of its local specification, without
TransformerEngine; checkpoints, their names and the division among ranks are its own.
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

    class Nothing:
        def fork(self, *_: Any, **__: Any) -> contextlib.AbstractContextManager[None]:
            return contextlib.nullcontext()

    def current_device() -> Any:
        return torch.device("cpu")

    torch.cuda.current_device = current_device  # type: ignore[assignment]
    torch.cuda.synchronize = lambda *_: None  # type: ignore[assignment]
    for module in (random, tensor_parallel):
        module.get_cuda_rng_tracker = lambda *_, **__: Nothing()


def model(kind: str, config: dict[str, Any], tp: int, pp: int, *, vocabulary: int = 0) -> Any:
    """A GPTModel of the sizes of a Hugging Face configuration, on this rank of tp x pp."""
    import torch
    from megatron.core import parallel_state
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer import TransformerConfig

    if not parallel_state.is_initialized():
        parallel_state.initialize_model_parallel(tp, pp)
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
    rank: int, ranks: int, folder: str, kind: str, tp: int, pp: int, vocabulary: int, out: str, form: dict[str, Any]
) -> None:  # fmt: skip
    """Loads a checkpoint by dist_checkpointing, writes the logits of fixed ids to a file, and saves it again."""
    import torch
    from megatron.core import dist_checkpointing

    config = json.loads(Path(folder, "config.json").read_text())
    m = model(kind, config, tp, pp, vocabulary=vocabulary)
    state = dist_checkpointing.load({"model": m.sharded_state_dict()}, f"{folder}/megatron")
    m.load_state_dict(state["model"])
    m.eval()
    ids = torch.load(f"{folder}/ids.pt")
    found = logits(m, ids)
    if found is not None and rank == ranks - 1:
        torch.save(found[..., : config["vocab_size"]].clone(), f"{out}.pt")
    save(m, f"{out}.saved", form)


def save(m: Any, folder: str, form: dict[str, Any]) -> None:
    import torch
    from megatron.core import dist_checkpointing, parallel_state

    if torch.distributed.get_rank() == 0:
        Path(folder).mkdir()
    torch.distributed.barrier()
    group = parallel_state.get_data_parallel_group(with_context_parallel=True)
    state = {"model": m.sharded_state_dict(metadata={**form, "dp_cp_group": group}), "iteration": 7}
    dist_checkpointing.save(state, folder, content_metadata=dict(form))
