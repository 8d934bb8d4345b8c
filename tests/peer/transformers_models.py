"""Small Llama and GPT-2 of transformers with random weights, exported to ONNX and planned."""

from __future__ import annotations

from fnmatch import fnmatch
from functools import cache, reduce
from operator import add
from pathlib import Path
from typing import Any

from planner.cost_models import load_profile
from planner.emit.names import NameRules
from planner.frontends import import_bytes
from planner.planning import PlanDocument, Request, describe, make_plan
from planner.planning.constraints import parse_pin
from planner.pricing import Settings

BATCH, POSITIONS, VOCABULARY = 8, 16, 256
NAMES = NameRules(prefixes={"module.": ""})

COLUMNS = ("*.[qkv]_proj/*", "*.gate_proj/*", "*.up_proj/*", "*lm_head/*")
ROWS = ("*.o_proj/*", "*.down_proj/*")


def network(name: str) -> Any:
    """float32, eager attention (exact, and with a DTensor strategy for every operator), no dropout.  All parameters are
    random, biases and norms too: the exporter merges equal ones and drops zeros."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    if name == "llama":
        model: Any = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=VOCABULARY, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
                num_attention_heads=8, num_key_value_heads=4, max_position_embeddings=64,
                attn_implementation="eager", use_cache=False,
            )
        )  # fmt: skip
    else:
        model = GPT2LMHeadModel(
            GPT2Config(
                vocab_size=VOCABULARY, n_embd=64, n_layer=2, n_head=4, n_positions=256, attn_implementation="eager",
                attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0, bos_token_id=0, eos_token_id=0, use_cache=False,
            )
        )  # fmt: skip
    for p in model.parameters():
        p.data += 0.1 * torch.randn(p.shape)
    return model


def tokens() -> Any:
    import torch

    return torch.randint(0, VOCABULARY, (BATCH, POSITIONS + 1), generator=torch.Generator().manual_seed(1))


@cache
def exported(name: str) -> bytes:
    """The network with its loss: the mean of the cross entropy over all tokens."""
    import torch

    class Loss(torch.nn.Module):
        def __init__(self, module: Any) -> None:
            super().__init__()
            self.module = module

        def forward(self, input_ids: Any, labels: Any) -> Any:
            logits = self.module(input_ids=input_ids).logits
            return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())

    t = tokens()
    # GPT-2's `split` is exported as a sequence where nothing is optimised; Llama's weights would be turned and renamed
    # where it is.
    made = torch.onnx.export(
        Loss(network(name)), (t[:, :-1], t[:, 1:]), dynamo=True, optimize=name == "gpt2", verbose=False
    )
    assert made is not None
    return bytes(made.model_proto.SerializeToString())


def save(name: str, folder: Path) -> Path:
    network(name).save_pretrained(folder / name)
    return folder / name


def plan(name: str, *pins: str, devices: int = 4) -> PlanDocument:
    graph = import_bytes(exported(name), name=name)
    constraints = reduce(add, map(parse_pin, pins))
    request = Request(devices, load_profile("cpu"), Settings(training=True, precision="fp32"), constraints=constraints)
    return describe(make_plan(graph, request), bind={}, batch=None)


def in_stages(made: PlanDocument) -> PlanDocument:
    """For inference in two stages of a layer each, what embeds before the first and the rest behind the second."""
    ends = ("module.model.norm", "module.lm_head", "module.model.layers.1.")
    operators = {
        n: o.model_copy(update={"stage": int(f"{o.module}.".startswith(ends))}) for n, o in made.operators.items()
    }
    schedule = made.schedule.model_copy(update={"mode": "inference", "stages": 2})
    return made.model_copy(update={"operators": operators, "schedule": schedule, "stages": made.stages * 2})


def names_of(made: PlanDocument) -> Any:
    return NAMES.apply({n: tuple(p.shape) for n, p in made.parameters.items()})


def tensor_pins(data: str, tensor: str) -> tuple[str, ...]:
    """Megatron's layout of Llama: `data` and `tensor` are mesh axes, `data` may be empty."""
    samples = f"b0={data} " if data else ""
    return (
        *(f"{m} type=MatMul {samples}n={tensor}" for m in COLUMNS),
        *(f"{m} type=Transpose d0={tensor}" for m in COLUMNS),
        *(f"{m} type=MatMul {samples}k={tensor}" for m in ROWS),
        *(f"{m} type=Transpose d1={tensor}" for m in ROWS),
        f"*embed_tokens* type=Gather {f'i0={data} ' if data else ''}v={tensor}",
    )


def stored(name: str, data: str, tensor: str = "") -> tuple[str, ...]:
    """Every parameter in shards over `data` along its first dimension, beside what `tensor` divides of it."""
    out = []
    for t in import_bytes(exported(name), name=name).parameters:
        first, last = data, ""
        if tensor and len(t.shape or ()) == 2:
            rows = any(fnmatch(t.name, m.replace("/*", ".weight")) for m in ROWS)
            first, last = (data, tensor) if rows else (f"{data}.{tensor}", "")
        dims = [first, *[last or "_"] * (len(t.shape or ()) - 1)]
        out.append(f"{t.name} stored=[{','.join(dims)}]")
    return tuple(out)
