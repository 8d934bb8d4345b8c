"""What peak memory holds that a configuration does not say, cause by cause.

Run as `python -m tests.bench.gpu.held STEPS.jsonl [--hardware h200]` from the repository root; needs no GPU.  Each
cause is added to the predicted peak in turn, in bytes that follow from the row's sizes; nothing is fitted.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

from planner.clock import Prediction
from planner.cost_models import load_profile
from tests.bench.gpu.predict import predicted, read

__all__ = ["CAUSES", "changes", "main"]

CAUSES = (
    "gradients of weights are made in the backward pass, behind the peak",
    "bf16 alone: no master copy, and the optimizer's state in bf16",
    "autocast: copies of the weights in bf16, until the backward pass is over",
    "scores in the activations' type are freed once they are cast",
    "autocast: what norms read is in single precision",
    "autocast: an unfused softmax keeps single precision beside bf16",
)


def changes(row: Mapping[str, Any], found: Prediction) -> list[float]:
    """Bytes that each cause adds to the predicted peak."""
    c, s, held = row["config"], row["sizes"], found.memory
    amp, samples = c["precision"] == "amp", c["micro_batch"]
    width = 4 if c["precision"] == "tf32" else 2
    positions = s["seq"] if "seq" in s else (s["image"] // s["patch"]) ** 2 + 1 if "patch" in s else 0
    norms = s["layers"] * (1 if c["recompute"] == "full" else 2) if positions else 0
    unfused = c["attention"] == "unfused" and c["recompute"] == "none" and positions
    return [
        -float(held["gradients"]) if c["accumulation"] == 1 else 0.0,
        -held["optimizer"] * 2 / 3 if c["precision"] == "bf16" else 0.0,
        2.0 * row["weights"] * amp,
        -float(width * samples * positions * s["vocab"]) if "vocab" in s and not c["compiled"] else 0.0,
        2.0 * samples * positions * s.get("hidden", 0) * norms * amp,
        4.0 * samples * s["heads"] * positions**2 * s["layers"] * amp if unfused else 0.0,
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, metavar="STEPS.jsonl")
    parser.add_argument("--hardware", default="h200", help="profile, or a file of one; default: h200")
    options = parser.parse_args(arguments)
    profile = load_profile(options.hardware)
    errors: list[list[float]] = [[] for _ in range(len(CAUSES) + 1)]
    for row in read([options.file]):
        found = predicted(row, profile).prediction
        if found is None or not row.get("peak_allocated"):
            continue
        size, measured = float(found.allocated_bytes), row["peak_allocated"]
        ratios = [size / measured]
        for change in changes(row, found):
            size += change
            ratios.append(size / measured)
        for errors_so_far, ratio in zip(errors, ratios, strict=True):
            errors_so_far.append(abs(ratio - 1))
        print(f"| {row['name']} | {measured / 2**30:.2f} | {' | '.join(f'{r:.2f}' for r in ratios)} |")
    print("\n| added in turn | mean error | median | largest |\n|---|---|---|---|")
    for cause, found_errors in zip(("as predicted", *CAUSES), errors, strict=True):
        figures = (mean(found_errors), median(found_errors), max(found_errors))
        print(f"| {cause} | {' | '.join(f'{100 * e:.1f} %' for e in figures)} |")


if __name__ == "__main__":
    main()
