"""Models of transformers, torchvision and timm from their code to a verified plan, by the commands that a user types.

    python -m tests.bench.exports [NAME ...]

Each is exported without weights, searched and verified; a line of the table of docs/export.md is printed for it, with
seconds of processor time.
Needs torch, onnxscript, transformers, torchvision and timm.  Configurations of transformers are written here from
their published sizes, so that nothing is downloaded.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

MODELS: Final = Path(__file__).with_name("exports_models.py")
LIMIT: Final = 900  # seconds of one command


@dataclass(frozen=True)
class Case:
    """A model: entries of its config.json, or the function of `exports_models` that makes it."""

    batch: int
    devices: int
    config: dict[str, Any] = field(default_factory=dict)
    function: str = ""
    options: tuple[str, ...] = ()

    def source(self, folder: Path) -> list[str]:
        """Arguments of `planner export`."""
        if self.config:
            (folder / "config.json").write_text(json.dumps(self.config), encoding="utf-8")
            return ["--hf", str(folder), "--batch", str(self.batch), *self.options]
        image = f"float32[{self.batch},3,224,224]"
        labels = f"int64[{self.batch}]"
        return [f"{MODELS}:{self.function}", "--inputs", image, "--loss", "cross_entropy", "--targets", labels,
                *self.options]  # fmt: skip


def _llm(kind: str, name: str, **entries: Any) -> dict[str, Any]:
    return {"model_type": kind, "architectures": [name], **entries}


CASES: Final = {
    "GPT-2 small": Case(64, 16, _llm("gpt2", "GPT2LMHeadModel"), options=("--sequence", "1024", "--no-dropout")),
    "Llama 3 8B": Case(
        64, 64,
        _llm(
            "llama", "LlamaForCausalLM", vocab_size=128256, hidden_size=4096, intermediate_size=14336,
            num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8, max_position_embeddings=8192,
            rope_theta=500000.0, rms_norm_eps=1e-5, tie_word_embeddings=False,
        ),
        options=("--sequence", "2048"),
    ),
    "BERT base": Case(64, 16, _llm("bert", "BertForMaskedLM"), options=("--sequence", "512", "--no-dropout")),
    "T5 base": Case(
        64, 16,
        _llm(
            "t5", "T5ForConditionalGeneration", d_model=768, d_ff=3072, num_layers=12, num_heads=12,
            decoder_start_token_id=0, pad_token_id=0,
        ),
        options=("--sequence", "512", "--no-dropout"),
    ),
    "Mixtral 8x7B": Case(
        64, 64,
        _llm(
            "mixtral", "MixtralForCausalLM", vocab_size=32000, hidden_size=4096, intermediate_size=14336,
            num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8, num_local_experts=8,
            num_experts_per_tok=2, max_position_embeddings=32768, sliding_window=None, tie_word_embeddings=False,
        ),
        options=("--sequence", "2048"),
    ),
    "Qwen3 30B-A3B": Case(
        64, 64,
        _llm(
            "qwen3_moe", "Qwen3MoeForCausalLM", vocab_size=151936, hidden_size=2048, num_hidden_layers=48,
            num_attention_heads=32, num_key_value_heads=4, head_dim=128, moe_intermediate_size=768, num_experts=128,
            num_experts_per_tok=8, max_position_embeddings=40960, intermediate_size=6144,
        ),
        options=("--sequence", "2048"),
    ),
    "ViT base": Case(256, 16, _llm("vit", "ViTForImageClassification"), options=("--no-dropout",)),
    "Whisper small": Case(
        64, 16,
        _llm(
            "whisper", "WhisperForConditionalGeneration", d_model=768, encoder_layers=12, decoder_layers=12,
            encoder_attention_heads=12, decoder_attention_heads=12, encoder_ffn_dim=3072, decoder_ffn_dim=3072,
        ),
        options=("--sequence", "128", "--no-dropout"),
    ),
    "CLIP ViT-B/32": Case(256, 16, _llm("clip", "CLIPModel"), options=("--no-dropout",)),
    "ResNet-50": Case(256, 16, function="resnet50"),
    "ConvNeXt tiny": Case(256, 16, function="convnext_tiny"),
    "Swin tiny": Case(256, 16, function="swin_tiny", options=("--no-dropout",)),
    "EfficientNet B0": Case(256, 16, function="efficientnet_b0", options=("--no-dropout",)),
    "DeiT small": Case(256, 16, function="deit_small"),
}  # fmt: skip

HEAD: Final = """\
| model | operators | weights | export | devices | plan | step | gap | search | verified |
|---|---|---|---|---|---|---|---|---|---|"""


def planner(cache: Path, *arguments: str) -> tuple[float, subprocess.CompletedProcess[str]]:
    """A command and its seconds of processor time."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "planner.cli.main", *arguments]
    environment = {**os.environ, "PLANNER_CACHE_DIR": str(cache)}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False)
    except subprocess.TimeoutExpired:
        done = subprocess.CompletedProcess(command, -1, "", f"stopped after {LIMIT} s")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done


def row(name: str, case: Case, folder: Path) -> tuple[str, bool]:
    """A line of the table, which says what failed where something did, and whether nothing did."""
    model = folder / "model.onnx"
    seconds, exported = planner(folder, "export", *case.source(folder), "--out", str(model))
    if exported.returncode:
        return f"| {name} | export: {' '.join(exported.stderr.split())[-300:]} |", False
    by = " (torch.onnx)" if "note: written by torch.onnx" in exported.stderr else ""
    on = ("--devices", str(case.devices), "--hardware", "h100")
    searching, found = planner(folder, "search", str(model), *on, "--json", "--out", str(folder / "plan"))
    weights = exported.stdout.split(" operators, ")[1].split(" weights")[0]
    if found.returncode:
        return f"| {name} | {weights} | {seconds:.0f} s{by} | search: {' '.join(found.stderr.split())[-300:]} |", False
    plan = json.loads(found.stdout)
    proving, proof = planner(folder, "verify", str(folder / "plan"), str(model), "--json")
    said = json.loads(proof.stdout) if proof.stdout.startswith("{") else {}
    what = " and ".join(said.get("checked", ()))
    wrong = str(said.get("failures") or said.get("fields") or " ".join(proof.stderr.split()))[-300:]
    error = said.get("max_error")
    verified = f"ok, {said['scope']}, {what}, error {error:.0e}" if said.get("ok") else wrong
    line = (
        f"| {name} | {plan['operators']:,} | {weights} | {seconds:.0f} s{by} | {case.devices} | {words(plan)} "
        f"| {1000 * plan['step_time_s']:.1f} ms | {100 * plan['gap']:.2f} % | {searching:.0f} s "
        f"| {verified} ({proving:.0f} s) |"
    )
    return line, bool(said.get("ok"))


def words(plan: dict[str, Any]) -> str:
    """The plan in words, without what is laid out differently."""
    return str(plan["in_words"]).partition(";")[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(CASES)}; default: all")
    chosen = parser.parse_args().names or list(CASES)
    print(HEAD, flush=True)
    failed = []
    for name in chosen:
        with tempfile.TemporaryDirectory() as folder:
            line, well = row(name, CASES[name], Path(folder))
        print(line, flush=True)
        failed += [] if well else [name]
    print(
        f"{len(chosen) - len(failed)} of {len(chosen)} exported, planned and verified"
        + "".join(f"; not {n}" for n in failed)
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
