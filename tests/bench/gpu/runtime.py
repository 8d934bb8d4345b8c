"""The planner's own runtime on one GPU: right where the CPU is right, and how fast.

Run as `python -m tests.bench.gpu.runtime --out FOLDER [--seconds N] [--quick] [--device cpu --tiny]` from the
repository root.  Three parts, each of which goes on where the one before failed; a line of `FOLDER/runtime.jsonl` for
each finding:

- `operator`: every operator that `planner calibrate` measures, in small sizes, in this process: results and gradients
  on the device against those on the CPU, and whether it fell back to the host.
- `calibration`: `planner calibrate --device cuda --processes 1 --base h100`, whose profile is `FOLDER/calibrated.toml`.
- `model`: plans for one device of small models, executed by `planner.runtime.session.Session` on a process, with gloo
  on the CPU and NCCL on the device: outputs and gradients compared, operators that fall back to the host, seconds of
  steps, and seconds by type of operator (waited for one by one, so that they are more than a step takes).

All in single precision, without TF32.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from planner.builder import build
from planner.cost_models import load_profile
from planner.frontends import load_model
from planner.lowering import Run
from planner.planning import PlanDocument, Request, describe, make_plan
from planner.pricing import Settings
from planner.runtime.measure.cases import Case, operator_cases
from planner.runtime.measure.operators import alone
from planner.runtime.rank import Rank
from planner.runtime.session import Results, Session
from planner.runtime.workers import Context, Workers, device_of
from planner.verify.check import FORWARD_TOLERANCE, GRADIENT_TOLERANCE, relative_error
from planner.verify.data import random_tensors
from tests.bench.gpu.timing import Lines
from tests.bench.gpu.timing import describe as machine_of

__all__ = ["main"]

Array = Any
_SCALE = 256  # width of the products that are compared
# Name → architecture, sizes, and whether it is compared with the CPU.
MODELS: dict[str, tuple[str, dict[str, Any], bool]] = {
    "mlp": ("mlp", {"features": 256, "hidden": 512, "layers": 3, "classes": 10, "batch": 32}, True),
    "gpt": ("gpt", {"layers": 2, "hidden": 128, "heads": 4, "vocab": 512, "seq": 64, "batch": 4}, True),
    "gpt with one attention": (
        "gpt",
        {"layers": 2, "hidden": 128, "heads": 4, "vocab": 512, "seq": 64, "batch": 4, "attention": "fused"},
        True,
    ),
    "llama": (
        "llama",
        {"layers": 2, "hidden": 128, "heads": 4, "kv_heads": 2, "ffn": 256, "vocab": 512, "seq": 64, "batch": 4},
        True,
    ),
    "convnet": ("resnet", {"layers": 18, "hidden": 16, "image": 64, "classes": 16, "batch": 4}, True),
    "vit": (
        "vit",
        {"layers": 2, "hidden": 128, "heads": 4, "image": 64, "patch": 16, "classes": 16, "batch": 4},
        True,
    ),
    "moe": (
        "moe",
        {
            "layers": 2, "hidden": 64, "heads": 4, "kv_heads": 4, "ffn": 128, "experts": 4, "vocab": 256, "seq": 32,
            "batch": 4, "dispatch": "sorted",
        },
        True,
    ),
    "gpt2 of six layers": ("gpt", {"layers": 6, "hidden": 768, "heads": 12, "seq": 512, "batch": 8}, False),
    "wide mlp": ("mlp", {"features": 2048, "hidden": 4096, "layers": 4, "classes": 1000, "batch": 2048}, False),
    "resnet50": ("resnet", {"layers": 50, "batch": 32}, False),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for runtime.jsonl and calibrated.toml")
    parser.add_argument("--seconds", type=float, default=120.0, help="no operator or model begins after so long")
    parser.add_argument("--quick", action="store_true", help="the quick calibration, and the small models alone")
    parser.add_argument("--only", default="", help="parts, separated by commas: operators, calibration, models")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="few and small measurements, for a trial without a GPU")
    options = parser.parse_args()
    begin = time.monotonic()
    end = begin + options.seconds
    lines = Lines(options.out / "runtime.jsonl", quiet=True)
    lines.put({"part": "machine", **machine_of(torch.device(options.device))})
    parts: dict[str, Callable[[], None]] = {
        "operators": lambda: _operators(options.device, lines, end, few=options.tiny),
        "calibration": lambda: _calibration(options, lines),
        "models": lambda: _models(options.device, lines, end, small=options.quick or options.tiny),
    }
    for name, part in parts.items():
        if options.only and name not in options.only.split(","):
            continue
        try:
            part()
        except Exception:  # the parts are findings of their own
            lines.put({"part": name, "error": traceback.format_exc()[-2000:]})
            print(f"{name}: failed\n{traceback.format_exc()[-2000:]}", flush=True)
        print(f"{name}: done at {time.monotonic() - begin:.1f} s", flush=True)
    lines.close()


# Operators


def _operators(device: str, lines: Lines, end: float, *, few: bool) -> None:
    where = device_of(device, 0)
    cases = [c for c in operator_cases(_SCALE, quick=True) if few is False or c.type not in ("Conv", "MatMul")]
    failed = 0
    for case in cases:
        if time.monotonic() > end:
            print("operators: some left out, the time is over", flush=True)
            break
        row: dict[str, Any] = {"part": "operator", "name": case.label}
        try:
            row |= _compared(case, where)
        except Exception as e:
            row["error"] = f"{type(e).__name__}: {str(e)[-600:]}"
        bad = "error" in row or not row["passed"] or row["fallback"]
        failed += bad
        lines.put(row)
        if bad:
            print(f"operator {case.label}: {row}", flush=True)
    print(f"{len(cases)} operators, {failed} with a fault", flush=True)


def _compared(case: Case, where: torch.device) -> dict[str, Any]:
    graph = case.graph()
    values = random_tensors(graph, 0)
    rng = np.random.default_rng(0)
    for i, below in case.integers.items():
        values[graph.ops[0].inputs[i]] = rng.integers(0, below, size=case.operands[i])
    program = alone(graph)
    found = []
    for place in (torch.device("cpu"), where):
        rank = Rank(program, values, Context(0, 1, place))
        rank.step()
        outputs = {n: v.cpu().numpy() for (n, _), v in rank.values.items() if n in graph.outputs}
        gradients = {n: v.cpu().numpy() for (n, _), v in rank.gradients.items()}
        found.append((outputs, gradients, sorted(rank.fallbacks)))
    (outputs, gradients, _), (there, back, fallbacks) = found
    errors = {"outputs": _worst(there, outputs), "gradients": _worst(back, gradients)}
    passed = errors["outputs"] < FORWARD_TOLERANCE and errors["gradients"] < GRADIENT_TOLERANCE
    backward = any(isinstance(i, Run) and i.backward for i in program.instructions)
    return {"errors": errors, "passed": passed, "fallback": bool(fallbacks), "backward": backward}


def _worst(found: Mapping[str, Array], truth: Mapping[str, Array], floor: float = 0.0) -> float:
    """Largest relative error; infinite where something is missing or not finite."""
    if found.keys() != truth.keys():
        return float("inf")
    errors = [float(relative_error(found[n], v, floor)) for n, v in truth.items()]
    return max((e if np.isfinite(e) else float("inf") for e in errors), default=0.0)


# Models


def _models(device: str, lines: Lines, end: float, *, small: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        truth: dict[str, Results] = {}
        made: dict[str, tuple[Path, PlanDocument]] = {}
        for name, (architecture, sizes, compared) in MODELS.items():
            if compared or not small:
                file = Path(folder) / f"{name}.onnx"
                file.write_bytes(build(architecture, sizes).SerializeToString())
                made[name] = file, _plan(file)
        with Workers(1, device="cpu", threads=1 if device == "cpu" else 8) as host:
            for name, (file, plan) in made.items():
                if MODELS[name][2]:
                    session = Session(host, file, plan)
                    truth[name] = session.results()
                    session.close()
        # One process for all, and another behind a fault.
        workers: Workers | None = None
        for name, (file, plan) in made.items():
            if time.monotonic() > end:
                print(f"model {name}: left out, the time is over", flush=True)
                continue
            row: dict[str, Any] = {"part": "model", "name": name}
            row |= {"architecture": MODELS[name][0], "sizes": MODELS[name][1]}
            try:
                workers = Workers(1, device=device, threads=1).__enter__() if workers is None else workers
                row |= _executed(workers, file, plan, truth.get(name))
            except Exception as e:
                row["error"] = f"{type(e).__name__}: {str(e)[-1500:]}"
                if workers is not None:
                    workers.__exit__()
                workers = None
            lines.put(row)
            shown = {k: v for k, v in row.items() if k not in ("by_type", "sizes", "part", "architecture")}
            print(f"model {json.dumps(shown)[:600]}", flush=True)
        if workers is not None:
            workers.__exit__()


def _plan(file: Path) -> PlanDocument:
    request = Request(1, load_profile("h100"), Settings(training=True, precision="fp32"))
    return describe(make_plan(load_model(file), request), bind={}, batch=None)


def _executed(workers: Workers, file: Path, plan: PlanDocument, truth: Results | None) -> dict[str, Any]:
    session = Session(workers, file, plan)
    seconds = session.step(8)
    row: dict[str, Any] = {"first_s": seconds[0], "median_s": median(seconds[2:]), "steps_s": seconds}
    if truth is not None:
        found = session.results()
        row["fallbacks"] = sorted(found.fallbacks)
        floor = 1e-3 * float(np.median([np.abs(g).max() for g in truth.gradients.values()]))
        errors = {
            "outputs": _worst(found.outputs, truth.outputs),
            "gradients": _worst(found.gradients, truth.gradients, floor),
        }
        row["errors"] = errors
        row["passed"] = errors["outputs"] < FORWARD_TOLERANCE and errors["gradients"] < GRADIENT_TOLERANCE
    session.instruction_seconds()
    program = _program(file, plan)
    types: dict[str, list[float]] = defaultdict(list)
    for i, s in zip(program.instructions, session.instruction_seconds(), strict=True):
        if isinstance(i, Run):
            types[f"{program.graph.op(i.op).type}{' backward' if i.backward else ''}"].append(s)
    row["by_type"] = {k: {"count": len(v), "seconds": sum(v)} for k, v in sorted(types.items())}
    row["peak_allocated"] = workers.call(_peak)[0]
    session.close()
    return row


def _program(file: Path, plan: PlanDocument) -> Any:
    from planner.planning.programs import program_of

    return program_of(plan, load_model(file))


def _peak(context: Context) -> int:
    """The most that was allocated since this was asked before."""
    if context.device.type != "cuda":
        return 0
    found = int(torch.cuda.max_memory_allocated())
    torch.cuda.reset_peak_memory_stats()
    return found


# Calibration


def _calibration(options: argparse.Namespace, lines: Lines) -> None:
    words = ["calibrate", "--device", options.device, "--processes", "1", "--json"]
    words += ["--base", "h100" if options.device == "cuda" else "cpu", "--out", str(options.out / "calibrated.toml")]
    words += ["--quick"] if options.quick or options.tiny else []
    code = "import sys; from planner.cli.main import main; sys.exit(main(sys.argv[1:]))"
    begin = time.monotonic()
    found = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    row: dict[str, Any] = {"part": "calibration", "command": words, "status": found.returncode}
    row["seconds"] = time.monotonic() - begin
    if found.returncode == 0:
        row["result"] = json.loads(found.stdout)
    else:
        row["error"] = (found.stdout + found.stderr)[-3000:]
    lines.put(row)
    print(f"calibration: {json.dumps(row)[:3000]}", flush=True)


if __name__ == "__main__":
    main()
