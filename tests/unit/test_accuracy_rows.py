"""Rows as published -> cases: what is read, derived, filled in, left out, refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner.accuracy.rows import Case, filled_in, read_rows
from planner.accuracy.sources import FRAMEWORKS, HARDWARE, framework_of, hardware_of
from planner.errors import InputError
from tests.unit.accuracy_rows import PROFILES, one, read, row

LLAMA = {"hidden": 4096, "layers": 32, "heads": 32, "kv_heads": 32, "ffn": 11008, "vocab": 32000}
MINDFORMERS: dict[str, Any] = {
    "source": "mindspore-lab/mindformers@r1.3.0:docs/model_cards/llama2.md",
    "model": "llama2_7b",
    "model_dims": {"hidden_size": 4096, "num_layers": 32, "num_heads": 32, "vocab_size": 32000},
    "hardware": "Ascend 910B (Atlas 800T A2)",
    "precision": "bfloat16",
}


def test_a_row_says_all(tmp_path: Path) -> None:
    found = one(tmp_path)
    assert found.hardware == "a100-80"
    assert found.step_s == 0.5
    assert found.complete
    assert found.configuration.text() == (
        "dp=2,tp=2,pp=2,recompute=full,micro_batch=2,micro_batches=4,precision=fp16,attention=unfused,loss=operators"
    )
    assert dict(found.model.sizes)["vocab"] == 51200  # 50257 padded to a multiple of 256 and of 1024 alike


@pytest.mark.parametrize("value", ["full", "Full", "full (every layer)"])
def test_recomputation_in_words(tmp_path: Path, value: str) -> None:
    assert one(tmp_path, recompute=value).configuration.recompute == "full"


@pytest.mark.parametrize(
    ("switches", "kind", "blocks"),
    [
        ({"recompute": True, "select_recompute": False}, "full", 1.0),
        ({"recompute": False, "select_recompute": False}, "none", 1.0),
        ({"recompute": False, "select_recompute": True}, "selective", 1.0),
        ({"recompute": False, "select_recompute": [".*mul"]}, "selective", 1.0),
        ({"recompute": True, "select_recompute": True}, "full", 1.0),
        ({"recompute": [4, 4, 4, 4], "select_recompute": None}, "full", 0.5),
        ({"recompute": [[8, 0], [8, 0]], "select_recompute": None}, "full", 0.5),
        ({"recompute": [0, 0, 0, 0], "select_recompute": None}, "none", 1.0),
    ],
)
def test_recomputation_as_mindformers_switches(tmp_path: Path, switches: Any, kind: str, blocks: float) -> None:
    c = one(tmp_path, **MINDFORMERS, recompute=switches).configuration
    assert (c.recompute, c.recompute_blocks) == (kind, blocks)


@pytest.mark.parametrize(
    ("told", "precision", "matrix"),
    [
        ("amp_bf16", "bf16", "bf16"),
        ("amp_fp8", "bf16", "fp8"),
        ("FP8-CS", "bf16", "fp8"),
        ("fp8-rowwise", "bf16", "fp8-row"),
        ("MXFP8", "bf16", "mxfp8"),
        ("NVFP4", "bf16", "fp4"),
        ("float16", "fp16", "fp16"),
        ("bfloat16", "bf16", "bf16"),
        ("fp32", "fp32", "fp32"),
        ("tf32", "fp32", "tf32"),
    ],
)
def test_precisions(tmp_path: Path, told: str, precision: str, matrix: str) -> None:
    c = one(tmp_path, precision=told).configuration
    assert (c.precision, c.matrix) == (precision, matrix)


def test_a_step_time_is_measured_or_derived(tmp_path: Path) -> None:
    tokens = 16 * 1024 / 8
    assert one(tmp_path, measured={"step_time_s_derived": 0.25}).step_s == 0.25
    assert one(tmp_path, measured={"tokens_per_s_per_gpu": 4096}).step_s == pytest.approx(tokens / 4096)
    rated = one(tmp_path, measured={"model_tflops_per_gpu": 100})
    assert rated.step_s == pytest.approx(tokens * rated.model.flops_per_token(1024) / 1e14)


def test_memory_is_what_was_published(tmp_path: Path) -> None:
    found = one(tmp_path, measured={"step_time_s": 1, "peak_alloc_gib": 2, "peak_reserved_gib": 3})
    assert (found.allocated_bytes, found.reserved_bytes) == (2 * 2**30, 3 * 2**30)
    assert one(tmp_path, measured={"step_time_s": 1, "peak_memory_gib": None}).reserved_bytes is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"num_devices": 16}, r"dp 2 x tp 2 x pp 2 x cp 1 is not num_devices 16"),
        ({"global_batch": 15}, "global_batch 15 is no multiple of dp 2 x micro_batch 2"),
        ({"ep": 3}, "ep=3"),
        ({"dp": None, "tp": None}, "dp, tp not given"),
        ({"hardware": "TPU-v4"}, "no profile for hardware 'TPU-v4'"),
        ({"model": "alexnet"}, "alexnet"),
        ({"measured": {"mfu_pct": 50}}, "no step time"),
        ({"measured": {"step_time_s": 1, "tokens_per_s_per_gpu": 9000}}, "at 9000.0 tokens/s"),
    ],
)
def test_what_cannot_be_predicted_is_left_out_with_its_reason(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    found = read(tmp_path, row(**changes), row(id=2))
    assert [c.row for c in found.cases] == ["2"]
    (left,) = found.left_out
    assert left.row == "1"
    assert reason in left.reason


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"dp": "two"}, "dp"),
        ({"tp": 0}, "tp"),
        ({"zero": 4}, "zero"),
        ({"zero": -1}, "zero"),
        ({"micro_batch": 1.5}, "micro_batch"),
        ({"pp": True}, "pp"),
        ({"model": None}, "model"),
        ({"model_dims": [1]}, "model_dims"),
        ({"model_dims": {"hidden": "wide", "layers": 1, "heads": 1}}, "model_dims"),
        ({"measured": None}, "measured"),
        ({"measured": {"step_time_s": -1}}, "measured.step_time_s"),
        ({"measured": {"step_time_s": "fast"}}, "measured.step_time_s"),
        ({"precision": "int3"}, "precision"),
        ({"recompute": "some"}, "recompute"),
        ({"recompute": 3}, "recompute"),
        ({"hardware": 7}, "hardware"),
    ],
)
def test_a_malformed_row_is_named_with_its_field(tmp_path: Path, changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError, match=rf"rows\.json: row 1: {field}: expected "):
        read(tmp_path, row(**changes))


@pytest.mark.parametrize("text", ["", "{", "3", '{"meta": 1}', "[1]", "[" * 100_000, '{"rows": {}}'])
def test_a_malformed_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "rows.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"rows\.json"):
        read_rows(path, PROFILES)


def test_a_file_may_be_the_list_itself(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text(json.dumps([row()]), encoding="utf-8")
    assert len(read_rows(path, PROFILES).cases) == 1


# Frameworks


def test_the_framework_follows_from_the_source() -> None:
    names = {
        "NVIDIA/Megatron-LM@5281919420:images/tables.tex": "Megatron-LM 2020-2021",
        "NVIDIA/Megatron-LM@50a4b5fa02:images/cases_april2021.png": "Megatron-LM 2020-2021",
        "NVIDIA/Megatron-LM@d98e8a64:images/model_table.png + README.md": "Megatron-LM 2024",
        "NVIDIA/NeMo@4c73f77670:docs": "NeMo",
        "NVIDIA-NeMo/Megatron-Bridge@067f987d:docs": "Megatron Bridge",
        "a private note": "unknown",
    }
    assert {s: framework_of(s).name for s in names} == names


def test_every_framework_and_profile_is_named_once_and_says_its_source() -> None:
    assert len({f.name for f in FRAMEWORKS}) == len(FRAMEWORKS)
    assert all(len(f.source) > 30 for f in FRAMEWORKS)
    assert all(candidates for _, candidates in HARDWARE)


def test_what_neither_row_nor_framework_says_is_filled_in_and_marked(tmp_path: Path) -> None:
    found = one(tmp_path, source="NVIDIA/Megatron-LM@d98e8a64:images/model_table.png", recompute=None, micro_batch=None)
    assert set(found.filled) == {"virtual_stages", "micro_batch", "recompute"}
    assert found.missing == ("recompute",)
    assert found.configuration.micro_batch == 1
    assert not found.complete
    assert one(tmp_path, source="elsewhere").filled == ("framework",)


@pytest.mark.parametrize("limit", range(3))
def test_missing_recomputation_is_the_least_that_fits(tmp_path: Path, limit: int) -> None:
    found = one(tmp_path, source="NVIDIA/NeMo@1:docs", recompute=None, vpp=1)
    order = ["none", "selective", "full"]

    def fits(tried: Case) -> bool:
        return order.index(tried.configuration.recompute) >= limit

    done = filled_in(found, fits)
    assert done.configuration.recompute == order[limit]
    assert not done.missing
    assert done.filled == found.filled


@pytest.mark.parametrize("eighths", [0, 3, 8, 9])
def test_missing_offloading_is_the_least_that_fits(tmp_path: Path, eighths: int) -> None:
    bridge = "NVIDIA-NeMo/Megatron-Bridge@067f987d:docs"
    found = one(tmp_path, source=bridge, recompute=None, zero=3, pp=1, vpp=1, tp=1, dp=8, global_batch=64)
    assert found.missing == ("offload",)
    assert found.complete

    done = filled_in(found, lambda tried: 8 * tried.configuration.offload >= eighths)
    expected = (eighths / 8, "none") if eighths <= 8 else (0.0, "full")
    assert (done.configuration.offload, done.configuration.recompute) == expected


@pytest.mark.parametrize(
    ("file", "precision", "held", "attention"),
    [
        ("configs/llama2/finetune_llama2_7b.yaml", "bfloat16", (4, 4), "native"),
        ("configs/llama2/pretrain_llama2_7b_bf16.yaml", "bfloat16", (2, 2), "native"),
        ("configs/codellama/finetune_codellama_34b_32p.yaml", "float16", (2, 2), "native"),
        ("configs/gpt2/run_gpt2_13b.yaml", "float16", (2, 2), "unfused"),
        ("configs/gpt2/run_gpt2.yaml", "float16", (4, 4), "unfused"),
        ("configs/glm3/finetune_glm3_6b_bf16.yaml", "bfloat16", (2, 2), "unfused"),
        ("research/qwen/finetune_qwen_7b.yaml", "float16", (4, 4), "native"),
        ("research/qwen1_5/pretrain_qwen1_5_72b.yaml", "bfloat16", (4, 4), "native"),
        ("research/yi/finetune_yi_6b.yaml", "bfloat16", (2, 2), "native"),
        ("research/yi/finetune_yi_34b.yaml", "bfloat16", (4, 4), "native"),
    ],
)
def test_mindformers_files_say_how_weights_are_held(
    tmp_path: Path, file: str, precision: str, held: tuple[int, int], attention: str
) -> None:
    changes = {**MINDFORMERS, "source": f"mindspore-lab/mindformers@r1.3.0:x.md + {file}", "precision": precision}
    c = one(tmp_path, **changes, recompute={"recompute": True}).configuration
    assert (c.parameter_bytes, c.gradient_bytes) == held
    assert (c.attention, c.loss) == (attention, "one_hot")


def test_offsets_are_layers_beyond_an_even_share(tmp_path: Path) -> None:
    changes: dict[str, Any] = {**MINDFORMERS, "recompute": {"recompute": True}, "pp": 4, "tp": 1}
    c = one(tmp_path, **changes, dp=1, num_devices=4, offset=[-1, 1, 1, -1]).configuration
    assert c.stage_layers == (7, 9, 9, 7)
    for even in (0, None, [0, 0, 0, 0]):
        assert one(tmp_path, **changes, dp=1, num_devices=4, offset=even).configuration.stage_layers is None
    left = read(tmp_path, row(**changes, dp=1, num_devices=4, offset=[1, 0, 0, 0])).left_out
    assert "offset [1, 0, 0, 0] does not cut 32 layers into 4 stages" in left[0].reason


def test_scales_by_row_are_found_after_gathering(tmp_path: Path) -> None:
    titan = "pytorch/torchtitan@b5bcd76:benchmarks/x.md"
    kinds = ("bf16", "fp8", "fp8-tensorwise", "fp8-rowwise")
    found = [one(tmp_path, source=titan, precision=p, zero=3, pp=1, dp=4).configuration for p in kinds]
    assert [c.cast_gathers for c in found] == [True, True, True, False]


def test_what_is_given_is_never_filled_in(tmp_path: Path) -> None:
    found = one(tmp_path)
    assert filled_in(found, lambda tried: False) is found


def test_torchtitan_cuts_the_local_batch_into_as_many_parts_as_stages(tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "source": "pytorch/torchtitan@b5bcd76:benchmarks/x.md",
        "model": "llama3.1-8b",
        "model_dims": None,
        "hardware": "H100-SXM-80GB",
        "dp": 1,
        "micro_batch": None,
        "zero": 3,
        "global_batch": 32,
        "num_devices": 16,
        "pp": 8,
    }
    plain = one(tmp_path, **changes, schedule="1F1B", note="AsyncTP").configuration
    assert (plain.micro_batch, plain.micro_batches, plain.zero) == (4, 8, 1)
    assert (plain.overlap_tensor, plain.sequence_parallel) == (True, True)
    woven = one(tmp_path, **changes, schedule="Interleaved1F1B").configuration
    assert (woven.schedule, woven.virtual_stages, woven.overlap_tensor) == ("interleaved", 2, False)


@pytest.mark.parametrize(
    ("file", "loss"),
    [("x.md", "softmax"), ("llama3_h100_202412_torchtitan.md", "softmax"), ("x_2025-06_torchtitan.md", "fused")],
)
def test_torchtitan_compiles_the_loss_since_april_2025(tmp_path: Path, file: str, loss: str) -> None:
    assert one(tmp_path, source=f"pytorch/torchtitan@b5bcd76:benchmarks/{file}").configuration.loss == loss


def test_mindspores_copies_of_a_micro_batch_pass_together(tmp_path: Path) -> None:
    switches = {"recompute": True}
    plain = one(tmp_path, **MINDFORMERS, recompute=switches).configuration
    copied = one(tmp_path, **MINDFORMERS, recompute=switches, micro_batch_interleave_num=2).configuration
    cut = one(tmp_path, **MINDFORMERS, recompute=switches, fine_grain_interleave=2).configuration
    assert [(c.copies, c.overlap_tensor) for c in (plain, copied, cut)] == [(1, False), (2, False), (1, True)]
    assert plain.micro_batches == copied.micro_batches


def test_pure_precision_sums_gradients_in_two_bytes(tmp_path: Path) -> None:
    mosaic = "mosaicml/llm-foundry@8c8dd48:scripts/train/benchmarking/README.md"
    assert one(tmp_path, source=mosaic, note="MP mode PURE").configuration.gradient_bytes == 2
    assert one(tmp_path, source=mosaic, note="MP mode DEFAULT").configuration.gradient_bytes == 4


@pytest.mark.parametrize(
    ("published", "profile"),
    [
        ("H100-SXM-80GB (DGX-H100)", "h100"),
        ("DGX-H100", "h100"),
        ("DGX-GB200", "gb200"),
        ("B200-SXM (DGX-B200)", "b200"),
        ("A100-SXM-80GB", "a100-80"),
        ("Ascend 910B (Atlas 900 A2 PODc)", "ascend-910b"),
        ("Ascend 910B (Atlas 800T A2)", "ascend-910b"),
        ("A100-PCIe-80GB", None),
        ("A100-SXM-40GB", None),
        ("TPU-v4", None),
    ],
)
def test_hardware_names(published: str, profile: str | None) -> None:
    assert hardware_of(published, PROFILES) == profile


def test_cases_compete_when_they_do_the_same_work(tmp_path: Path) -> None:
    first = one(tmp_path)
    other = one(tmp_path, dp=8, tp=1, pp=1)
    assert first.comparable == other.comparable
    assert first.configuration != other.configuration
    assert one(tmp_path, global_batch=32).comparable != first.comparable
    assert one(tmp_path, precision="bf16").comparable != first.comparable
