"""Where a step's seconds go, by class of kernel: as the profiler saw them, beside what is predicted.

Run as `python -m tests.bench.gpu.where BREAKDOWN.jsonl [--hardware h200]` from the repository root; needs no GPU.
Kernels are told apart by their names (PyTorch 2.11, CUDA 13).  What autocast adds (casts) and the loss's kernels are
predicted as traffic of the pass they belong to, and stand here with their own class.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from planner.clock.passes import LOSS_BYTES, _kernel_prices
from planner.cost_models import HardwareProfile, load_profile
from planner.evaluate import layout_of
from tests.bench.gpu.predict import _workload, configuration_of, model_of, predicted

__all__ = ["CLASSES", "class_of", "main", "measured_classes", "predicted_classes"]

CLASSES = (
    "products", "convolutions", "attention", "softmax and loss", "norms", "elementwise", "casts and copies", "sums",
    "lookups", "update", "other",
)  # fmt: skip
_BY_NAME: tuple[tuple[str, str], ...] = (
    ("update", r"multi_tensor_apply|adam|FusedOptimizer"),
    ("attention", r"flash|fmha|sdpa|attention|mha_"),
    ("convolutions", r"conv|cudnn|wgrad|dgrad|fprop|im2col|winograd|nchwToNhwc|nhwcToNchw|implicit"),
    ("products", r"gemm|nvjet|cutlass|splitK|cublas|grouped"),
    ("softmax and loss", r"softmax|SoftMax|nll_loss|NLL|cross_entropy"),
    (
        "norms",
        r"layer_norm|rms_norm|RMSNorm|GammaBeta|batch_norm|bn_|batchnorm|BatchNorm|cuComputePartGrad|cuComputeGrad",
    ),
    ("casts and copies", r"copy_kernel|direct_copy|_to_copy|CatArray|Memcpy|transpose|clone"),
    ("lookups", r"embedding|indexSelect|index_|gather|scatter|sort|radix|Radix|topk|TopK|bincount|histogram|scan|Scan"),
    ("sums", r"reduce_kernel|ReduceOp|sum"),
    ("elementwise", r"elementwise|triton_|pool|FillFunctor|Memset|fill|arange|triu"),
)


def class_of(kernel: str) -> str:
    return next((name for name, words in _BY_NAME if re.search(words, kernel)), "other")


def measured_classes(kernels: Sequence[Sequence[Any]]) -> Counter[str]:
    """Seconds by class of a row's kernels: name, count, microseconds."""
    found: Counter[str] = Counter()
    for name, _, micro in kernels:
        found[class_of(str(name))] += float(micro) * 1e-6
    return found


_KINDS: Mapping[str, str] = {
    "product": "products", "convolution": "convolutions", "attention": "attention", "attention_backward": "attention",
    "gather": "lookups", "elementwise": "elementwise", "normalization": "norms", "reduction": "sums",
    "pooling": "elementwise", "layout": "casts and copies", "copy": "casts and copies",
}  # fmt: skip


def predicted_classes(row: Mapping[str, Any], profile: HardwareProfile) -> Counter[str]:
    """Seconds by class, without what the host adds."""
    c, model = configuration_of(row["config"]), model_of(row)
    attention = "unfused" if c.attention == "unfused" else "fused"
    workload = _workload(model, attention, layout_of(c), c.fuse, c.attention != "unfused", profile)
    prices = _kernel_prices(workload, c, profile, c.matrix)
    device = profile.device
    assert device is not None
    rate = device.memory_bandwidth_bytes_per_s * device.memory_efficiency
    found: Counter[str] = Counter()
    for u, repeated in zip(workload.units, workload.repeated, strict=True):
        again = u.forward if c.recompute == "full" and repeated else u.core if c.recompute == "selective" else {}
        for kernels in (u.forward, u.backward, again):
            for k, n in kernels.items():
                found[_KINDS[k.kind]] += prices[k] * n * c.micro_batches
        if c.weight_bytes > c.activation_bytes:
            moved = 2 * u.weights * (c.weight_bytes + c.activation_bytes)
            found["casts and copies"] += moved / rate * c.micro_batches
        scored = LOSS_BYTES[c.loss] * u.score_bytes / c.activation_bytes
        found["softmax and loss"] += scored / rate * c.micro_batches
    p = predicted(row, profile).prediction
    assert p is not None
    found["update"] = p.breakdown["update"]
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, metavar="BREAKDOWN.jsonl")
    parser.add_argument("--hardware", default="h200", help="profile, or a file of one; default: h200")
    options = parser.parse_args(arguments)
    profile = load_profile(options.hardware)
    rows = [json.loads(line) for line in options.file.read_text(encoding="utf-8").splitlines()]
    print(f"ms of kernels, measured / predicted with {profile.name}\n")
    print(f"| row | all | {' | '.join(CLASSES)} |\n|---|{'---|' * (len(CLASSES) + 1)}")
    for row in rows:
        if "kernels" not in row:
            continue
        here, there = measured_classes(row["kernels"]), predicted_classes(row, profile)
        cells = [f"{1e3 * here[c]:.1f} / {1e3 * there[c]:.1f}" if here[c] + there[c] > 1e-5 else "" for c in CLASSES]
        whole = f"{1e3 * sum(here.values()):.1f} / {1e3 * sum(there.values()):.1f}"
        print(f"| {row['name']} | {whole} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
