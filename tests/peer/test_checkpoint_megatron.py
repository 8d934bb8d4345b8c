"""Megatron-core itself loads what we write of a model of Hugging Face, under other tensor and pipeline parallelism, and
we read what it saves: logits are those of transformers, and bytes come back as they were."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner import checkpoint
from planner.checkpoint import megatron as of_megatron
from planner.checkpoint.source import open_checkpoint
from tests.checkpoint.layouts import write_file
from tests.checkpoint.test_transforming import arrays_of
from tests.peer.megatron_ranks import load_and_run, run_ranks

pytestmark = [pytest.mark.peer, pytest.mark.slow]
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("megatron.core")

VOCABULARY, PADDED = 100, 128


def of_transformers(kind: str, folder: Path) -> Any:
    """A small model with random weights, saved; norms too, which begin as ones."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
             "num_key_value_heads": 2, "vocab_size": VOCABULARY}  # fmt: skip
    if kind == "gpt2":
        made = transformers.GPT2LMHeadModel(transformers.GPT2Config(
            n_layer=2, n_head=4, n_embd=32, vocab_size=VOCABULARY, n_positions=64))  # fmt: skip
    elif kind == "mixtral":
        config = transformers.MixtralConfig(**sizes, num_local_experts=4, num_experts_per_tok=2)
        made = transformers.MixtralForCausalLM(config)
    else:
        made = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes))
    for p in made.parameters():
        p.data.add_(torch.randn_like(p) * 0.05)
    made.eval().save_pretrained(folder)
    return made


def with_adam(folder: Path) -> None:
    """The state of an optimizer beside the model, as `planner checkpoint` has it."""
    numbers = np.random.default_rng(1)
    state = {}
    for name, w in arrays_of(folder / "model.safetensors").items():
        state[f"{name}.exp_avg"] = numbers.standard_normal(w.shape).astype(np.float32)
        state[f"{name}.exp_avg_sq"] = numbers.random(w.shape).astype(np.float32)
        state[f"{name}.step"] = np.array(12, np.float32)
    write_file(folder / "optimizer.safetensors", state)


NUMBERED = {"non_homogeneous_layers": True}
APART = {"singleton_local_shards": True, "non_homogeneous_layers": True}


@pytest.mark.parametrize(("kind", "tp", "pp", "ep", "form", "adam"), [
    ("llama", 1, 1, 1, {}, True), ("llama", 2, 1, 1, {}, True), ("llama", 1, 2, 1, {}, False),
    ("llama", 2, 2, 1, NUMBERED, True), ("llama", 2, 1, 1, APART, False), ("gpt2", 2, 1, 1, {}, True),
    ("mixtral", 2, 1, 1, {}, True), ("mixtral", 1, 1, 2, {}, False), ("mixtral", 1, 1, 1, APART, False),
])  # fmt: skip
def test_megatron_and_transformers_have_the_same_logits(
    kind: str, tp: int, pp: int, ep: int, form: dict[str, Any], adam: bool, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(of_megatron, "_SMALL", 0)  # in chunks of layers, as large tensors are
    monkeypatch.setattr(of_megatron, "_CHUNK", 2048)
    model = of_transformers(kind, tmp_path / "hf")
    if adam:
        with_adam(tmp_path / "hf")
    shutil.copy(tmp_path / "hf/config.json", tmp_path)
    checkpoint.transform(tmp_path / "hf", tmp_path / "megatron", map=f"hf-{kind}:megatron")
    assert checkpoint.verify(tmp_path / "megatron") == []
    ids = torch.randint(0, VOCABULARY, (2, 16))
    torch.save(ids, tmp_path / "ids.pt")
    run_ranks(tp * pp * ep, load_and_run, str(tmp_path), kind, tp, pp, ep, PADDED, form)
    expected = model(ids).logits.detach()
    torch.testing.assert_close(torch.load(tmp_path / "logits.pt"), expected, atol=1e-5, rtol=0)

    for name in ("megatron", "saved"):  # back from what we wrote, and from what Megatron saved
        done = checkpoint.transform(tmp_path / name, tmp_path / f"{name}-hf", map=f"megatron:hf-{kind}",
                                    config=tmp_path / "config.json")  # fmt: skip
        for file in ("model.safetensors", *(["optimizer.safetensors"] if adam else [])):
            before, after = arrays_of(tmp_path / "hf" / file), arrays_of(tmp_path / f"{name}-hf" / file)
            assert set(before) == set(after)
            assert all(before[n].tobytes() == after[n].tobytes() for n in before), file
        again = type(model).from_pretrained(tmp_path / f"{name}-hf").eval()
        torch.testing.assert_close(again(ids).logits.detach(), expected, atol=0, rtol=0)
    assert any("100:128" in n for n in done.skipped)  # rows that Megatron added to the vocabulary
    assert "common.iteration" in done.values
    assert any("_extra_state/shard_" in n for n in done.values)


def test_dcp_of_pytorch_reads_chunks_of_a_stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch.distributed.checkpoint as dcp

    monkeypatch.setattr(of_megatron, "_SMALL", 0)
    monkeypatch.setattr(of_megatron, "_CHUNK", 40)
    values = {f"h.{i}.w": np.arange(30, dtype=np.float32).reshape(6, 5) + i for i in range(3)}
    write_file(tmp_path / "a.npz", values)
    name = "decoder.layers.w.weight"
    checkpoint.transform(tmp_path / "a.npz", tmp_path / "m", format="megatron", map={name: {"stacked": "h.#.w"}})
    into = {name: torch.zeros(3, 6, 5)}
    dcp.load(into, checkpoint_id=tmp_path / "m")
    np.testing.assert_array_equal(into[name].numpy(), np.stack(list(values.values())))
    assert len(open_checkpoint(tmp_path / "m", None).tensors[name].pieces) == 9
    assert json.loads((tmp_path / "m/metadata.json").read_text())["sharded_backend"] == "torch_dist"
