"""A profile fitted to the training steps of one GPU, and its error on models that were left out of the fit.

Run as `python -m tests.bench.gpu.fit STEPS.jsonl… [--base h200] [--without MODEL,…] [--out FILE.toml]` from the
repository root; it needs no GPU.  The constants are those of `planner calibrate --rows` that one device can tell of,
and the efficiency of convolutions; the objective is that of `planner.accuracy.fit`.  Rows whose configuration the
planner cannot say (`unsaid`) are not fitted to, and stand apart in the tables.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from planner.accuracy.fit import BY_TYPE, Term, Values, adjusted, fitted_values, spread_of
from planner.accuracy.metrics import PredictedCase
from planner.accuracy.rows import Case
from planner.clock import predict, seconds_in_sequence
from planner.cost_models import HardwareProfile, load_profile
from planner.cost_models.calibrate.document import base_document, calibrated_text
from planner.evaluate import layout_of
from tests.bench.gpu.predict import _line, _workload, predicted, read

__all__ = ["TERMS", "cases_of", "fitted", "held_out", "main", "outcome", "unsaid"]

# Medians and spreads of products and memory are those of single kernels measured on the H200 of docs/gpu.md; the others
# are as wide as `planner.accuracy.fit` has them.  Nothing passes outside the model in these steps.
TERMS = (
    Term(f"{BY_TYPE}.bf16", 0.72, 0.07, 1.0),
    Term(f"{BY_TYPE}.tf32", 0.72, 0.07, 1.0),
    Term("device.convolution_efficiency", 0.5, 0.3, 1.0),
    Term("device.memory_efficiency", 0.75, 0.1, 1.0),
    Term("device.attention_efficiency", 0.3, 0.35, 1.0),
    Term("device.attention_backward_efficiency", 0.25, 0.35, 1.0),
    Term("device.native_attention_efficiency", 0.5, 0.3, 1.0),
    Term("device.native_attention_backward_efficiency", 0.4, 0.3, 1.0),
    Term("device.product_ramp_s", 2.5e-6, 1.0),
    Term("host.dispatch_interval_s", 2e-5, 0.3),
    Term("host.step_overhead_s", 3e-4, 0.3, 0.02),
)


def unsaid(row: Mapping[str, Any]) -> str:
    """What of a row no configuration says, in a word; empty where it says all that time depends on."""
    c = row["config"]
    if c["attention"] == "unfused" and c["precision"] == "amp":
        return "softmax in single precision"
    if c["experts"] == "loop" and row["architecture"] == "moe":
        return "experts one after the other"
    if c["precision"] == "tf32" and row["architecture"] == "gpt":
        return "attention in TF32"
    if c["precision"] == "bf16":
        return "weights and optimizer in bf16 alone"
    if c["optimizer"].endswith("foreach"):
        return "an update of many kernels"
    return ""


def cases_of(rows: Sequence[Mapping[str, Any]], base: HardwareProfile) -> list[tuple[Mapping[str, Any], Case]]:
    """Rows that were measured and can be predicted, with their cases."""
    found = []
    for row in rows:
        compared = predicted(row, base) if "median_s" in row else None
        if compared is not None and compared.outcome is not None:
            found.append((row, compared.outcome.case))
    return found


def _prediction(base: HardwareProfile, case: Case, values: Values) -> Any:
    c = case.configuration
    attention = "unfused" if c.attention == "unfused" else "fused"
    workload = _workload(case.model, attention, layout_of(c), c.fuse, c.attention != "unfused", base)
    device = {k: v for k, v in values.items() if k != "device.convolution_efficiency"}
    profile = adjusted(base, device)
    if "device.convolution_efficiency" in values and profile.device is not None:
        share = values["device.convolution_efficiency"]
        profile = replace(profile, device=replace(profile.device, convolution_efficiency=share))
    return workload, c, profile


def _seconds(base: HardwareProfile, case: Case, values: Values) -> float:
    return predict(*_prediction(base, case, values)).step_time_s


def outcome(base: HardwareProfile, case: Case, values: Values) -> PredictedCase:
    asked = _prediction(base, case, values)
    p = predict(*asked)
    low_high = p.time_low_s, p.time_high_s
    return PredictedCase(
        case, p.step_time_s, *low_high, p.allocated_bytes, p.reserved_bytes, seconds_in_sequence(*asked)
    )


def fitted(cases: Sequence[Case], base: HardwareProfile, terms: Sequence[Term] = TERMS) -> dict[str, float]:
    found = fitted_values(cases, terms, partial(_seconds, base))
    spread = spread_of(cases, partial(_seconds, base, values=found), len(terms))
    return {**found, "prediction.spread": spread}


def held_out(cases: Sequence[Case], base: HardwareProfile, say: Callable[[str], None]) -> list[PredictedCase]:
    """Outcomes of every case with the profile fitted to the other models."""
    out = []
    for model in sorted({c.dataset for c in cases}):
        values = fitted([c for c in cases if c.dataset != model], base)
        say(f"without {model}: " + ", ".join(f"{k.rpartition('.')[2]} {v:.3g}" for k, v in values.items()))
        out += [outcome(base, c, values) for c in cases if c.dataset == model]
    return out


_MEASURED: Mapping[str, tuple[float | int, str]] = {
    "device.memory_bytes": (150_109_880_320, "measured: as PyTorch 2.11 reports it, docs/gpu.md"),
    "host.link_bytes_per_s": (5.53e10, "measured: 256 MiB of pinned memory, either way, docs/gpu.md"),
    f"{BY_TYPE}.tf32": (
        0.72,
        "measured: products of 4096 and 8192 in TF32, 0.70 of the peak for seconds on end to 0.83, docs/gpu.md",
    ),
}


def _profile_text(base: str, name: str, values: Values, rows: int) -> str:
    rounded = {key: float(f"{value:.3g}") for key, value in values.items()}
    rounded["device.matmul_efficiency"] = rounded[f"{BY_TYPE}.bf16"]
    source = f"fitted: {rows} training steps measured on one H200 (PyTorch 2.11, CUDA 13), docs/gpu.md"
    rounded |= {key: value for key, (value, _) in _MEASURED.items()}
    notes = {key: note for key, (_, note) in _MEASURED.items()}
    said = "One NVIDIA H200 SXM 141 GB by itself, as measured with PyTorch's autocast; servers and links as of h200"
    return calibrated_text(base_document(base), rounded, name=name, description=said, source=source, notes=notes)


def _table(title: str, outcomes: Sequence[PredictedCase]) -> None:
    from planner.accuracy.metrics import figures_of

    print(f"\n| {title} | rows | time MAPE | largest | bias | in 80 % | Spearman | regret (groups) | memory MAPE |"
          " largest |\n|---|---|---|---|---|---|---|---|---|---|")  # fmt: skip
    for model in sorted({o.case.dataset for o in outcomes}):
        print(f"| {model} | {_line(figures_of([o for o in outcomes if o.case.dataset == model]))} |")
    if outcomes:
        print(f"| all | {_line(figures_of(outcomes))} |", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+", metavar="STEPS.jsonl")
    parser.add_argument("--base", default="h200", help="profile that gives what is not fitted; default: h200")
    parser.add_argument("--without", default="", help="models that are predicted and never fitted to")
    parser.add_argument("--out", type=Path, metavar="FILE", help="profile to write; its name is the file's")
    parser.add_argument("--no-cross", action="store_true", help="do not leave out one model after the other")
    options = parser.parse_args(arguments)
    base = load_profile(options.base)
    known = cases_of(read(options.files), base)
    new = set(filter(None, options.without.split(",")))
    said = [c for r, c in known if not unsaid(r) and c.dataset not in new]
    others = [c for r, c in known if unsaid(r) and c.dataset not in new]
    _table(f"said, {base.name} as it is", [outcome(base, c, {}) for c in said])
    values = fitted(said, base)
    for key, value in values.items():
        print(f"{key} = {value:.4g}")
    if options.out is not None:
        options.out.write_text(_profile_text(options.base, options.out.stem, values, len(said)), encoding="utf-8")
    _table("said, fitted to all of these", [outcome(base, c, values) for c in said])
    _table("not said, with that fit", [outcome(base, c, values) for c in others])
    if not options.no_cross:
        _table("said, each model left out of the fit", held_out(said, base, lambda line: print(line, flush=True)))
    if new:
        more = [c for r, c in known if not unsaid(r) and c.dataset in new]
        _table(f"said, of other models, {base.name} as it is", [outcome(base, c, {}) for c in more])
        _table("said, of other models, with that fit", [outcome(base, c, values) for c in more])


if __name__ == "__main__":
    main()
