"""What the planner predicts for the training steps that `steps` measured, beside what was measured.

Run as `python -m tests.bench.gpu.predict STEPS.jsonl [--hardware h100] [--json FILE] [--parts]` from the repository
root; it needs no GPU and no PyTorch.  Every row becomes a graph that `planner build` makes in the same sizes, and a
`Configuration`; the profile is taken as it is.  What plain PyTorch does is said in `configuration_of`, once for all
rows; what a configuration cannot say is said there, too.

One line per row: measured and predicted time and peak memory, and predicted over measured.  Then, per model: the mean
absolute percentage error (MAPE) of time and memory, their bias (geometric mean of predicted over measured, less one),
rank correlation of times, and the regret of taking the configuration predicted to be the fastest among those that do
the same work.  Rows that ran out of memory are listed with the memory that is predicted for them.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from planner.accuracy.metrics import Figures, PredictedCase, figures_of
from planner.accuracy.models import Model
from planner.accuracy.rows import Case
from planner.builder import build
from planner.clock import Configuration, Prediction, predict, seconds_in_sequence
from planner.cost_models import HardwareProfile, load_profile
from planner.errors import PlannerError
from planner.evaluate import layout_of, program_of_configuration, traced_as
from planner.frontends import import_bytes
from planner.ir import Graph
from planner.trace import Workload

__all__ = ["Compared", "configuration_of", "main", "model_of", "predicted"]

GIB = 2.0**30
_DECODERS = ("gpt", "llama", "moe")
# Portable kernels (FlashAttention 2, PyTorch's own) against the vendor's.
_ATTENTION = {"unfused": "unfused", "flash": "fused", "efficient": "fused", "cudnn": "native"}
_PRECISION: Mapping[str, Mapping[str, Any]] = {
    # Autocast: weights and their gradients stay in single precision, and are cast for every product.  Norms and the
    # stream between blocks are in single precision, too: that a configuration cannot say.
    "amp": {"precision": "bf16", "parameter_bytes": 4, "gradient_bytes": 4},
    # All of it in bf16, the optimizer's state as well, and no copy of the weights in single precision: the last two a
    # configuration cannot say.
    "bf16": {"precision": "bf16", "parameter_bytes": 2, "gradient_bytes": 2},
    "tf32": {"precision": "fp32", "matrix_type": "tf32", "gradient_bytes": 4},
}


@dataclass(frozen=True, slots=True)
class Compared:
    """A measured row and its prediction, None where the evaluator refuses the configuration: `reason` says why."""

    row: Mapping[str, Any]
    outcome: PredictedCase | None
    prediction: Prediction | None
    reason: str = ""

    @property
    def name(self) -> str:
        return str(self.row["name"])


def configuration_of(config: Mapping[str, Any]) -> Configuration:
    """A row's `config` as the planner says it; eager PyTorch makes every operator a kernel of its own, and its
    cross-entropy is a kernel for log-softmax among others."""
    compiled = bool(config["compiled"])
    changes: dict[str, Any] = {
        "micro_batch": config["micro_batch"],
        "micro_batches": config["accumulation"],
        "recompute": config["recompute"],
        "attention": _ATTENTION[config["attention"]],
        "optimizer": "momentum" if config["optimizer"].startswith("sgd") else "adam",
        "fuse": compiled,
        "loss": "fused" if compiled else "softmax",
        **_PRECISION[config["precision"]],
    }
    return Configuration(**changes)


def model_of(row: Mapping[str, Any]) -> Model:
    """What `planner build` is told, batch and attention aside."""
    sizes = {k: v for k, v in row["sizes"].items() if k != "layers" or row["architecture"] != "resnet"}
    if row["architecture"] == "resnet":
        sizes["layers"] = 50
    if row["architecture"] == "llama":
        sizes["tied"] = True
    if row["architecture"] == "moe":
        sizes["dispatch"] = "sorted"
    return Model(row["architecture"], tuple(sorted(sizes.items())))


@lru_cache(maxsize=64)
def _graph(model: Model, attention: str, batch: int) -> Graph:
    sizes: dict[str, int | bool | str | None] = {**dict(model.sizes), "batch": batch}
    if model.architecture in _DECODERS:
        sizes["attention"] = attention
    return import_bytes(build(model.architecture, sizes).SerializeToString(), name=model.architecture)


def predicted(row: Mapping[str, Any], profile: HardwareProfile) -> Compared:
    config = row["config"]
    try:
        c, model = configuration_of(config), model_of(row)
        attention = "unfused" if c.attention == "unfused" else "fused"
        workload = _workload(model, attention, layout_of(c), c.fuse, c.attention != "unfused", profile)
        found = predict(workload, c, profile)
        objective = seconds_in_sequence(workload, c, profile)
    except (PlannerError, KeyError) as e:
        return Compared(row, None, None, f"{type(e).__name__}: {e}")
    case = Case(
        row=str(row["name"]),
        dataset=str(config["model"]),
        group=str(row["name"]),
        model=model,
        seq=int(row["sizes"].get("seq", 1)),
        configuration=c,
        hardware=profile.name,
        framework="PyTorch",
        step_s=float(row.get("median_s", math.nan)),
        allocated_bytes=row.get("peak_allocated"),
        reserved_bytes=row.get("peak_reserved"),
    )
    outcome = PredictedCase(
        case,
        found.step_time_s,
        found.time_low_s,
        found.time_high_s,
        found.allocated_bytes,
        found.reserved_bytes,
        objective,
    )
    return Compared(row, outcome, found)


@lru_cache(maxsize=64)
def _workload(
    model: Model, attention: str, layout: Configuration, fuse: bool, joined: bool, profile: HardwareProfile
) -> Workload:
    graph = _graph(model, attention, layout.micro_batch)
    traced = layout.with_(fuse=fuse, attention="fused" if joined else "unfused")
    return traced_as(traced, program_of_configuration(graph, layout, profile))


def read(files: Iterable[Path]) -> list[dict[str, Any]]:
    """Rows of configurations, the last of each name."""
    found: dict[str, dict[str, Any]] = {}
    for file in files:
        for line in file.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            if "config" in row:
                found[row["name"]] = row
    return list(found.values())


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+", metavar="STEPS.jsonl")
    parser.add_argument("--hardware", default="h100", help="profile, or a file of one; default: h100")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every prediction, with its parts")
    parser.add_argument("--parts", action="store_true", help="print where predicted seconds and bytes go")
    options = parser.parse_args(arguments)
    profile = load_profile(options.hardware)
    rows = [predicted(row, profile) for row in read(options.files)]
    print(f"profile {profile.name}, {profile.digest}: as it is, nothing fitted to these rows\n")
    _print_rows(rows, options.parts)
    measured = [r.outcome for r in rows if r.outcome is not None and "median_s" in r.row]
    _print_figures("model", measured, lambda o: o.case.dataset)
    _print_figures("mode", measured, lambda o: "compiled" if o.case.configuration.fuse else "eager")
    if options.json is not None:
        options.json.write_text(json.dumps([_document(r) for r in rows], indent=1), encoding="utf-8")


def _print_rows(rows: Sequence[Compared], parts: bool) -> None:
    print("| row | measured ms | predicted | ratio | in interval | measured GiB | predicted | ratio |")
    print("|---|---|---|---|---|---|---|---|")
    for r in rows:
        if r.outcome is None:
            print(f"| {r.name} | not predicted: {r.reason[:120]} |")
            continue
        o, memory = r.outcome, r.outcome.allocated_bytes / GIB
        if "median_s" not in r.row:
            print(f"| {r.name} | {r.row.get('error', '')[:60]} | {1e3 * o.step_s:.1f} | | | | {memory:.1f} | |")
            continue
        inside = "yes" if o.low_s <= o.case.step_s <= o.high_s else "no"
        line = (
            f"| {r.name} | {1e3 * o.case.step_s:.1f} | {1e3 * o.step_s:.1f} | {o.step_s / o.case.step_s:.2f} | {inside}"
        )
        held = r.row.get("peak_allocated")
        line += (
            f" | {held / GIB:.2f} | {memory:.2f} | {o.allocated_bytes / held:.2f} |"
            if held
            else f" | | {memory:.2f} | |"
        )
        print(line)
        if parts and r.prediction is not None:
            print("  " + _parts(r))
    print()


def _parts(r: Compared) -> str:
    assert r.prediction is not None
    seconds = ", ".join(f"{k} {1e3 * v:.1f}" for k, v in r.prediction.breakdown.items() if v)
    held = ", ".join(f"{k} {v / GIB:.2f}" for k, v in r.prediction.memory.items() if v)
    found = ", ".join(
        f"{k} {1e3 * r.row[f'{k}_s']:.1f}" for k in ("forward", "backward", "update", "host") if f"{k}_s" in r.row
    )
    return f"measured ms: {found}; predicted ms: {seconds}; GiB: {held}"


def _print_figures(what: str, outcomes: Sequence[PredictedCase], key: Callable[[PredictedCase], str]) -> None:
    groups: dict[str, list[PredictedCase]] = defaultdict(list)
    for o in outcomes:
        groups[key(o)].append(o)
    print(
        f"| {what} | rows | time MAPE | largest | bias | in 80 % | Spearman | regret (groups) | memory MAPE | largest |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name, members in sorted(groups.items()):
        print(f"| {name} | {_line(figures_of(members))} |")
    if outcomes:
        print(f"| all | {_line(figures_of(outcomes))} |\n")


def _line(f: Figures) -> str:
    bias = None if f.time_bias is None else math.exp(f.time_bias) - 1
    rank = "" if f.spearman is None else f"{f.spearman:.3f}"
    regret = "" if f.top1_regret is None else f"{100 * f.top1_regret:.1f} % ({f.regret_groups})"
    numbers = [f.time_mape, f.time_max, bias, f.coverage]
    said = [_percent(n) for n in numbers] + [rank, regret, _percent(f.memory_mape), _percent(f.memory_max)]
    return " | ".join([str(f.rows), *said])


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f} %"


def _document(r: Compared) -> dict[str, Any]:
    out: dict[str, Any] = {"name": r.name, "config": r.row["config"], "reason": r.reason}
    out["measured"] = {k: v for k, v in r.row.items() if k not in ("config", "name", "times_s", "sizes")}
    if r.outcome is not None and r.prediction is not None:
        p = r.prediction
        out["predicted"] = {
            "step_s": p.step_time_s, "low_s": p.time_low_s, "high_s": p.time_high_s, "flops": p.flops,
            "objective_s": r.outcome.objective_s, "parts_s": dict(p.breakdown), "memory": dict(p.memory),
            "allocated_bytes": p.allocated_bytes, "reserved_bytes": p.reserved_bytes,
            "configuration": r.outcome.case.configuration.text(),
        }  # fmt: skip
    return out


if __name__ == "__main__":
    main()
