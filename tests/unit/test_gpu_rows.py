"""Training steps measured on one GPU, as rows of `tests.bench.gpu.steps`, are what the planner predicts."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from planner.builder import ARCHITECTURES
from planner.cost_models import load_profile
from tests.bench.gpu.configurations import CONFIGURATIONS, MODELS, MORE, Config, tiny
from tests.bench.gpu.fit import unsaid
from tests.bench.gpu.held import CAUSES, changes
from tests.bench.gpu.predict import configuration_of, main, model_of, predicted
from tests.bench.gpu.where import CLASSES, class_of, predicted_classes

SMALL = Config("gpt2", 2)


def row(config: Config, **measured: Any) -> dict[str, Any]:
    small, sizes = tiny(config)
    found = {"config": asdict(small), "architecture": MODELS[config.model][0], "sizes": sizes, "name": config.name}
    return {**found, **measured}


def test_names_tell_configurations_apart() -> None:
    every = (*CONFIGURATIONS, *MORE)
    assert len({c.name for c in every}) == len(every)


@pytest.mark.parametrize("config", [*CONFIGURATIONS, *MORE], ids=lambda c: c.name)
def test_every_configuration_can_be_said(config: Config) -> None:
    found = configuration_of(asdict(config))
    assert (found.micro_batch, found.micro_batches) == (config.micro_batch, config.accumulation)
    assert found.fuse == config.compiled
    sizes: Any = dict(model_of(row(config)).sizes)
    ARCHITECTURES[MODELS[config.model][0]].sizes(**sizes)


@pytest.mark.parametrize("model", MODELS)
def test_every_model_is_predicted(model: str) -> None:
    profile = load_profile("h100")
    for recompute in ("none", "full"):
        found = predicted(row(Config(model, 2, recompute=recompute), median_s=0.02), profile)
        assert found.outcome is not None, found.reason
        assert 0 < found.outcome.low_s < found.outcome.step_s < found.outcome.high_s
        assert found.outcome.allocated_bytes > 0


def test_a_table_of_rows_and_figures_by_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows: list[dict[str, Any]] = [
        {"machine": {}},
        row(SMALL, median_s=0.015, peak_allocated=1 << 20, forward_s=0.004),
        row(replace(SMALL, accumulation=2), median_s=0.016, peak_allocated=1 << 20),
        row(replace(SMALL, compiled=True), median_s=0.014),
        row(replace(SMALL, attention="unfused"), error="out of memory"),
    ]
    file, out = tmp_path / "steps.jsonl", tmp_path / "predicted.json"
    file.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    main([str(file), "--json", str(out), "--parts"])
    said = capsys.readouterr().out
    assert "| gpt2 mb2 x2 | 16.0 |" in said
    assert "| gpt2 mb2 unfused | out of memory |" in said
    assert "| gpt2 | 3 |" in said
    assert "measured ms: forward 4.0" in said
    found = json.loads(out.read_text(encoding="utf-8"))
    assert [r["name"] for r in found] == ["gpt2 mb2", "gpt2 mb2 x2", "gpt2 mb2 compiled", "gpt2 mb2 unfused"]
    assert all(r["predicted"]["step_s"] > 0 for r in found)


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        ("nvjet_sm90_tst_192x128_64x5_1x2_h_bz_coopB_NNT", "products"),
        ("void cutlass::Kernel2<cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128_tn_align1>", "products"),
        ("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128>>", "attention"),
        ("void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, float, float>", "softmax and loss"),
        ("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float>", "norms"),
        ("void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda>", "casts and copies"),
        ("void at::native::reduce_kernel<128, 4, at::native::ReduceOp<c10::BFloat16>>", "sums"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>", "elementwise"),
        ("void at::native::multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata>", "update"),
    ],
)
def test_kernels_are_told_apart_by_their_names(kernel: str, expected: str) -> None:
    assert class_of(kernel) == expected
    assert expected in CLASSES


def test_seconds_by_class_are_those_of_the_step_without_its_host() -> None:
    profile = load_profile("h200")
    measured = row(replace(SMALL, accumulation=3), median_s=0.02)
    found, prediction = predicted_classes(measured, profile), predicted(measured, profile).prediction
    assert prediction is not None
    parts = prediction.breakdown
    assert sum(found.values()) == pytest.approx(parts["compute"] + parts["update"], rel=1e-9)


def test_causes_of_memory_are_those_of_the_configuration() -> None:
    def of(**c: Any) -> dict[str, float]:
        measured = row(replace(SMALL, **c), median_s=0.02, weights=1000)
        prediction = predicted(measured, load_profile("h200")).prediction
        assert prediction is not None
        return dict(zip(CAUSES, changes(measured, prediction), strict=True))

    gradients, alone, copies, scores, norms, softmax = of(attention="unfused").values()
    assert gradients < 0
    assert (alone, copies) == (0, 2000)
    assert scores < 0
    assert norms > 0
    assert softmax > 0
    plain = of(precision="bf16", accumulation=2)
    assert [name for name, size in plain.items() if size] == [CAUSES[1], CAUSES[3]]


def test_rows_that_no_configuration_says_are_known_by_their_words() -> None:
    said = [c for c in (*CONFIGURATIONS, *MORE) if not unsaid(row(c))]
    assert {c.precision for c in said} == {"amp", "tf32"}
    assert not any(c.attention == "unfused" or c.model == "moe" for c in said)
