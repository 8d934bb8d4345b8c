"""Predicted against measured step time of many layouts of three models, on gloo processes of this host.

Run as `python -m tests.bench.layouts_gloo [--json]` from the repository root.  The speed of a shared host drifts by
tens of per cent within minutes, so each model is calibrated for (`planner calibrate`) just before and just after its
steps, on as many processes, and predicted with both profiles: the geometric mean stands.  `--profile FILE` takes one
profile as it is instead.  A process has one thread.  Plans are made by
`planner.planning` under the pins below, for training in fp32, and executed by `planner.runtime`, forward and backward.
**The optimizer step is left out on both sides**: the runtime computes gradients, and the plan's price of the update is
taken off its objective and its simulated time.

The runtime overlaps nothing, so the additive objective is its prediction; the simulated step time, which lets
collectives of parameters run beside computing, stands next to it.  Layouts take turns, step by step, until each has
`--repeats` steps during which others on the machine were quiet; their median is reported, and the quartiles of all
steps.  Outputs and gradients of every layout are compared with those of one process.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import numpy as np

from planner.builder import build
from planner.cost_models import load_profile
from planner.frontends import load_model
from planner.ir import Graph
from planner.planning import Planned, Request, describe, make_plan, write_plan
from planner.planning.constraints import parse_pin, read_constraints
from planner.pricing import Settings
from planner.requests.values import progress_to
from planner.verify.check import relative_error

__all__ = ["LAYOUTS", "MODELS", "Row", "main", "scores"]

MODELS: Mapping[str, tuple[str, Mapping[str, int]]] = {
    "mlp": ("mlp", {"features": 1024, "hidden": 2048, "layers": 4, "classes": 1000, "batch": 256}),
    "gpt": ("gpt", {"layers": 2, "hidden": 512, "heads": 8, "vocab": 4096, "seq": 128, "batch": 8}),
    "convnet": ("resnet", {"layers": 18, "hidden": 64, "image": 64, "classes": 100, "batch": 16}),
}

Timed = tuple[float, float]

DATA = "rest=data_parallel"
COLUMN_ROW = ("*.c_attn.matmul n=2", "*.attn.c_proj.matmul k=2", "*.c_fc.matmul n=2", "*.mlp.c_proj.matmul k=2")
VOCABULARY = ("transformer.wte.gather v=2", "lm_head.matmul n=2", "type=SoftmaxCrossEntropyLoss c=2")

# Layout → pins, as `planner search --pin` takes them.
LAYOUTS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "mlp": {
        "searched": (),
        "data parallel": (DATA,),
        "data parallel, weights stored in shards": ("rest=zero",),
        "replicated": ("rest=replicated",),
        "columns": ("type=MatMul n=2",),
        "rows": ("type=MatMul k=2",),
        "columns, rows, columns, rows": tuple(f"layers.{i}.matmul {f}=2" for i, f in enumerate("nknk")),
        "rows, columns, rows, columns": tuple(f"layers.{i}.matmul {f}=2" for i, f in enumerate("knkn")),
        "data, data, columns, rows": tuple(f"layers.{i}.matmul {f}=2" for i, f in enumerate("mmnk")),
        "columns, rows, data, data": tuple(f"layers.{i}.matmul {f}=2" for i, f in enumerate("nkmm")),
        "data, then a column": tuple(f"layers.{i}.matmul {f}=2" for i, f in enumerate("mmmn")),
        "data, columns, rows, data": tuple(f"layers.{i}.matmul {f}=2" for i, f in enumerate("mnkm")),
        "one layer replicated": ("layers.1.matmul replicated", "rest=data_parallel"),
        "columns, columns, rows, rows": tuple(f"layers.{i}.matmul {f}=2" for i, f in enumerate("nnkk")),
    },
    "gpt": {
        "searched": (),
        "data parallel": (DATA,),
        "data parallel, weights stored in shards": ("rest=zero",),
        "replicated": ("rest=replicated",),
        "columns and rows": (*COLUMN_ROW, "lm_head.matmul b0=2"),
        "feed-forward in columns and rows": (*COLUMN_ROW[2:], "*.attn.*matmul* b0=2"),
        "attention in columns and rows": (*COLUMN_ROW[:2], "*.mlp.*.matmul b0=2"),
        "columns": ("*.c_*.matmul n=2",),
        "rows": ("*.c_*.matmul k=2",),
        "data parallel, vocabulary": ("*.c_*.matmul b0=2", *VOCABULARY),
        "attention replicated": ("*.attn.*matmul* replicated", "*.mlp.*.matmul b0=2"),
        "feed-forward replicated": ("*.mlp.*.matmul replicated", "*.attn.*matmul* b0=2"),
        "head replicated": ("*.c_*.matmul b0=2", "lm_head.matmul replicated"),
        "columns, then rows": ("*.c_attn.matmul n=2", "*.c_fc.matmul n=2", "*.c_proj.matmul n=2", "lm_head.matmul k=2"),
        "rows and columns": ("*.c_attn.matmul k=2", "*.c_fc.matmul k=2", "*.c_proj.matmul n=2"),
        "first layer data, second columns and rows": (
            "transformer.h.0.*.c_*.matmul b0=2",
            *(p.replace("*.", "transformer.h.1.*.", 1).replace(".*.attn", ".attn").replace(".*.mlp", ".mlp")
              for p in COLUMN_ROW),
        ),
        "data parallel, head in rows": ("*.c_*.matmul b0=2", "lm_head.matmul k=2"),
    },
    "convnet": {
        "searched": (),
        "data parallel": (DATA,),
        "data parallel, weights stored in shards": ("rest=zero",),
        "replicated": ("rest=replicated",),
        "channels out": ("type=Conv o=2",),
        "channels out, in": ("layer*.conv1.conv o=2", "layer*.conv2.conv i=2"),
        "channels in": ("layer*.conv? i=2",),
        "data, last stage channels out": ("conv1.conv n=2", "layer[123]*.conv?.conv n=2", "layer4*.conv?.conv o=2"),
        "data, last stage channels out, in": (
            "layer[123]*.conv?.conv n=2", "layer4*.conv1.conv o=2", "layer4*.conv2.conv i=2",
        ),
        "data, two stages channels out, in": (
            "layer[12]*.conv?.conv n=2", "layer[34]*.conv1.conv o=2", "layer[34]*.conv2.conv i=2",
        ),
        "channels out, in, then data": ("layer1*.conv1.conv o=2", "layer1*.conv2.conv i=2", "layer[234]*.conv? n=2"),
        "first stage replicated": ("layer1*.conv?.conv replicated", DATA),
        "last stage replicated": ("layer4*.conv?.conv replicated", "layer[123]*.conv?.conv n=2"),
    },
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """A layout: seconds a step predicted (additive objective, simulated time) and measured (median, quartiles), and the
    largest relative error of outputs and gradients against one process."""

    model: str
    layout: str
    objective_s: float
    simulated_s: float
    measured_s: float
    low_s: float
    high_s: float
    error: float


def plan_layout(graph: Graph, pins: Sequence[str], devices: int, profile: str) -> Planned:
    """The best plan that holds the pins."""
    constraints = reduce(add, map(parse_pin, pins)) if pins else None
    settings = Settings(training=True, precision="fp32")
    request = Request(devices, load_profile(profile), settings, constraints=constraints, time_limit=20)
    return make_plan(graph, request)


def predicted(planned: Planned) -> tuple[float, float]:
    """Additive objective and simulated step time in seconds, without the optimizer's update."""
    update = planned.parts.optimizer * planned.priced.machine.unit_s
    return planned.objective_s - update, planned.step_time_s - update


def scores(rows: Sequence[Row], key: str = "objective_s") -> dict[str, float]:
    """MAPE, Spearman's rank correlation (equal values share their mean rank), and regret: what the layout predicted to
    be the fastest takes over the fastest."""
    p = np.array([getattr(r, key) for r in rows])
    m = np.array([r.measured_s for r in rows])
    ranks = [np.array([(v < x).sum() + ((v == x).sum() - 1) / 2 for x in v]) for v in (np.round(p, 6), m)]
    return {
        "mape": float(np.abs(p / m - 1).mean()),
        "spearman": float(np.corrcoef(ranks[0], ranks[1])[0, 1]),
        "regret": float(m[p.argmin()] / m.min() - 1),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", help="profile written by planner calibrate; default: calibrate around each model")
    parser.add_argument("--models", nargs="+", choices=sorted(MODELS), default=list(MODELS))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--patience", type=float, default=120, help="seconds a model waits for a quiet machine, in all")
    parser.add_argument("--explain", action="store_true", help="also price and measure by kind of instruction")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    say = progress_to(quiet=False)
    rows = []
    for name in options.models:
        rows += run_model(name, options, say)
        if not options.json:
            print(text({name: [r for r in rows if r.model == name]}), flush=True)
    found = {n: [r for r in rows if r.model == n] for n in options.models}
    document = {
        "profile": "calibrated around each model" if options.profile is None else load_profile(options.profile).name,
        "processes": options.processes,
        "optimizer": "left out on both sides",
        "rows": [asdict(r) for r in rows],
        "models": {n: {k: scores(rs, k) for k in ("objective_s", "simulated_s")} for n, rs in found.items()},
        "mape": float(np.mean([abs(r.objective_s / r.measured_s - 1) for r in rows])),
    }
    if options.json:
        print(json.dumps(document, indent=1))
    else:
        print(f"all: MAPE {document['mape']:.1%}")
    return 0


def run_model(name: str, options: argparse.Namespace, say: Any) -> list[Row]:
    from planner.runtime.quiet import CLEAN, steady, wait_until_quiet
    from planner.runtime.session import Session
    from planner.runtime.workers import Workers

    kind, sizes = MODELS[name]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.onnx"
        path.write_bytes(build(kind, dict(sizes)).SerializeToString())
        graph = load_model(path)
        profile = options.profile or calibrated(Path(folder) / "before.toml", options.processes, say)
        whole = describe(plan_layout(graph, (), 1, profile), bind={}, batch=None)
        with Workers(1) as one:
            truth = Session(one, path, whole).results()
        plans = {}
        for layout, pins in LAYOUTS[name].items():
            plans[layout] = plan_layout(graph, pins, options.processes, profile)
            say(f"{name}: {layout}: planned, {plans[layout].solution.status}")
        with Workers(options.processes) as workers:
            sessions = {x: Session(workers, path, describe(p, bind={}, batch=None)) for x, p in plans.items()}
            errors = {x: _error(s.results(), truth) for x, s in sessions.items()}
            for s in sessions.values():
                s.step(2)
            times: dict[str, list[Timed]] = {x: [] for x in sessions}
            shuffle = random.Random(0).shuffle
            patience = options.patience
            for _ in range(4 * options.repeats):
                order = [x for x in sessions if not _enough(times[x], options.repeats)]
                shuffle(order)
                for x in order:
                    patience = wait_until_quiet(patience)
                    (seconds,) = sessions[x].step()
                    times[x].append((seconds, workers.disturbance))
            if options.explain:
                for x, s in sessions.items():
                    explain(f"{name}: {x}", plans[x], [s.instruction_seconds() for _ in range(5)])
        predictions = {x: predicted(p) for x, p in plans.items()}
        if options.profile is None:
            after = calibrated(Path(folder) / "after.toml", options.processes, say)
            predictions = {x: _mean(predictions[x], repriced(graph, p, after, folder)) for x, p in plans.items()}
    out = []
    for x in plans:
        low, high = np.quantile([s for s, _ in times[x]], [0.25, 0.75])
        out.append(Row(name, x, *predictions[x], steady(times[x]), float(low), float(high), errors[x]))
        undisturbed = sum(d <= CLEAN for _, d in times[x])
        say(f"{name}: {x}: {len(times[x])} steps, {undisturbed} undisturbed")
    return out


def calibrated(path: Path, processes: int, say: Any) -> str:
    """A profile of this host as it is now."""
    from planner.runtime.calibrate import calibrate

    path.write_text(calibrate(path.stem, base="cpu", processes=processes, say=say).text, encoding="utf-8")
    return str(path)


def repriced(graph: Graph, planned: Planned, profile: str, folder: str) -> tuple[float, float]:
    """What `predicted` says of the same plan on another profile."""
    file = Path(folder) / "plan.json"
    write_plan(describe(planned, bind={}, batch=None), file)
    settings = Settings(training=True, precision="fp32")
    request = Request(planned.mesh.devices, load_profile(profile), settings, constraints=read_constraints(file))
    return predicted(make_plan(graph, request))


def _mean(a: tuple[float, float], b: tuple[float, float]) -> tuple[float, float]:
    return float(np.sqrt(a[0] * b[0])), float(np.sqrt(a[1] * b[1]))


def _enough(timed: Sequence[Timed], repeats: int) -> bool:
    from planner.runtime.quiet import CLEAN

    return sum(d <= CLEAN for _, d in timed) >= repeats


def _error(found: Any, truth: Any) -> float:
    """Largest error relative to the largest value of each tensor; scales count as a thousandth of the median at least
    (a gradient that is zero in exact arithmetic is pure rounding)."""
    worst = 0.0
    for mine, theirs in ((found.outputs, truth.outputs), (found.gradients, truth.gradients)):
        floor = 1e-3 * float(np.median([np.abs(v).max() for v in theirs.values()]))
        worst = max([worst, *(relative_error(mine[n], v, floor) for n, v in theirs.items())])
    return worst


def explain(title: str, planned: Planned, runs: Sequence[Sequence[float]]) -> None:
    """Predicted and measured seconds by kind of instruction, on standard error."""
    from planner.clock import redistribution_cost
    from planner.lowering import Redistribute, Run

    unit, priced = planned.priced.machine.unit_s, planned.priced
    measured = np.median(np.asarray(runs), axis=0)
    table: dict[str, list[float]] = {}
    for i, seconds in zip(planned.program.instructions, measured, strict=True):
        key, price = "other", 0.0
        if isinstance(i, Run) and i.op in priced.op_nodes:
            op, work = priced.graph.op(i.op), priced.tables[i.op].work
            s = planned.solution.choice[priced.op_nodes[i.op]]
            parts = (work.backward, work.inner_backward) if i.backward else (work.forward, work.inner_forward)
            key, price = f"{op.type} {'backward' if i.backward else 'forward'}", float(sum(p[s] for p in parts)) * unit
        elif isinstance(i, Redistribute):
            key = "+".join(str(s.kind) for s in i.steps) or "nothing"
            price = redistribution_cost(priced, i) * unit
        entry = table.setdefault(key, [0, 0.0, 0.0])
        entry[0] += 1
        entry[1] += price
        entry[2] += float(seconds)
    print(f"{title}: predicted {sum(predicted(planned)[:1]) * 1e3:.1f} ms, "
          f"instructions {measured.sum() * 1e3:.1f} ms", file=sys.stderr)  # fmt: skip
    for key, (count, price, seconds) in sorted(table.items(), key=lambda e: -e[1][2])[:14]:
        print(f"    {key:44} {count:4.0f}  {price * 1e3:8.2f}  {seconds * 1e3:8.2f} ms", file=sys.stderr)


def text(found: Mapping[str, Sequence[Row]]) -> str:
    """A table per model, in milliseconds."""
    lines = []
    for model, rows in found.items():
        lines.append(f"{model:42} {'additive':>9} {'simulated':>9} {'measured':>9}  {'quartiles':>15} {'error':>8}")
        for r in sorted(rows, key=lambda r: r.measured_s):
            ms = [1e3 * v for v in (r.objective_s, r.simulated_s, r.measured_s, r.low_s, r.high_s)]
            quartiles = f"{ms[3]:.1f}-{ms[4]:.1f}"
            lines.append(f"  {r.layout:40} {ms[0]:9.1f} {ms[1]:9.1f} {ms[2]:9.1f}  {quartiles:>15} {r.error:8.1e}")
        for key, label in (("objective_s", "additive"), ("simulated_s", "simulated")):
            s = scores(rows, key)
            figures = f"MAPE {s['mape']:.1%}  Spearman {s['spearman']:.3f}  regret {s['regret']:.1%}"
            lines.append(f"  {label}: {figures}")
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
