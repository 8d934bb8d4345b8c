"""Whether a listed plan is faster by the clock than the one that wins, on every graph of a folder and several machines.

python -m tests.corpus.finalists --models DIR [--hardware a100-80,h100] [--devices 8] [--only 'gpt*']
"""

from __future__ import annotations

import argparse
import fnmatch
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from planner.cost_models import HardwareProfile, load_profile
from planner.errors import PlannerError
from planner.planning import Request, make_plan
from planner.pricing import Settings
from tests.corpus.sweep import loaded

__all__ = ["faster_than_the_winner"]

MACHINES = "a100-80,h100,v100,b200,ascend-910b"
LARGE = 1 << 60


def faster_than_the_winner(path: Path, machine: HardwareProfile, devices: int, count: int) -> tuple[int, list[str]]:
    """How many plans were listed, and those whose step is shorter than the winner's, or than the bound."""
    graph, _, _ = loaded(path)
    request = Request(devices, machine, Settings(graph.loss is not None), top_k=count, memory_limit=LARGE)
    best = make_plan(graph, request)
    wrong = [
        f"{p.mesh}: {p.step_time_s:.6g} s against {best.step_time_s:.6g} s of {best.mesh}"
        for p in best.others
        if p.step_time_s < best.step_time_s
    ]
    wrong += [
        f"{p.mesh}: {p.step_time_s:.6g} s, below the bound {best.step_bound_s:.6g} s"
        for p in (best, *best.others)
        if p.step_time_s < best.step_bound_s
    ]
    return 1 + len(best.others), wrong


def _cases(asked: argparse.Namespace) -> Iterator[tuple[Path, str]]:
    files = [p for p in asked.models.glob("*.onnx") if any(fnmatch.fnmatch(p.stem, o) for o in asked.only.split(","))]
    for path in sorted(files, key=lambda p: p.stat().st_size):
        for machine in asked.hardware.split(","):
            yield path, machine


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True, help="folder of ONNX files")
    parser.add_argument("--hardware", default=MACHINES, help="with commas")
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--top-k", type=int, default=5)
    parser.add_argument("--only", default="*", help="names or patterns of graphs, with commas")
    parser.add_argument("--most-operators", type=int, default=10**6, help="graphs of more are left out, by name")
    asked = parser.parse_args(arguments)
    cases = plans = failed = 0
    for path, machine in _cases(asked):
        begun = time.process_time()
        try:
            if len(loaded(path)[0].ops) > asked.most_operators:
                print(f"left out   {path.stem}: more than {asked.most_operators} operators", flush=True)
                continue
            count, wrong = faster_than_the_winner(path, load_profile(machine), asked.devices, asked.top_k)
        except PlannerError as e:
            print(f"no plan    {path.stem} on {machine}: {str(e)[:200]}", flush=True)
            continue
        cases, plans, failed = cases + 1, plans + count, failed + bool(wrong)
        took = f"{count} plans, {time.process_time() - begun:.1f} CPU-s"
        print(f"{'failed' if wrong else 'ok':10} {path.stem} on {machine}: {took} {'; '.join(wrong)}", flush=True)
    print(f"{cases} searches, {plans} plans, {failed} with a plan faster than the winner or than the bound")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
