"""The stated cost of an alternative against a fresh search with it pinned, to the last digit.

    python -m tests.bench.explain_fresh [--count 30] [--seed 0] [--models gpt2_small,...]

Plans GPT-2 small and ResNet-50 for 16 devices, the tiny MoE and Llama models for 8, explains `--count` operators spread
over them, and runs every command that the explanations print, as it is printed, in a process of its own and without
the cache.  Prints a line per alternative; the exit status is 1 where any figure differs.
"""

from __future__ import annotations

import argparse
import json
import random
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from planner.explain.document import AlternativeDocument
from planner.planning import read_plan
from planner.requests.explanation import explanation

GRAPHS = Path(__file__).parents[2] / "sample_graphs"
CASES = {"gpt2_small": 16, "resnet50": 16, "moe_tiny": 8, "llama_tiny": 8}
AGREE = ("objective_s", "gap", "step_time_s", "peak_memory_bytes", "mesh", "status")


def run(command: list[str]) -> dict[str, Any]:
    done = subprocess.run([sys.executable, "-m", *command], check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def operators(plan: Path, count: int, seed: int) -> list[str]:
    """Spread over the kinds of operators that cost time, one of each kind first."""
    document = read_plan(plan)
    names = [n for n, op in document.operators.items() if op.runs]
    random.Random(seed).shuffle(names)
    kinds: dict[str, list[str]] = {}
    for name in names:
        kinds.setdefault(document.operators[name].type, []).append(name)
    turns = [name for turn in range(len(names)) for own in kinds.values() for name in own[turn : turn + 1]]
    return turns[:count]


def parts_agree(out: Path, a: AlternativeDocument, parts: dict[str, float]) -> bool:
    """As integers of the price resolution."""
    cost = read_plan(out / "plan.json").cost
    unit = cost.price_resolution_s
    return all(
        round(cost.parts_s[p] / unit) + round(a.parts_difference_s[p] / unit) == round(s / unit)
        for p, s in parts.items()
    )


def compare(folder: Path, models: list[str], count: int, seed: int, most: int) -> tuple[int, int, int]:
    """Operators, alternatives, and how many differ from a fresh search."""
    explained = alternatives = wrong = 0
    share = [count // len(CASES) + (k < count % len(CASES)) for k in range(len(CASES))]
    for (model, devices), some in zip(CASES.items(), share, strict=True):
        if model not in models:
            continue
        out = folder / model
        search = ["planner", "search", str(GRAPHS / f"{model}.onnx"), "--devices", str(devices), "--no-cache"]
        run([*search, "--out", str(out), "--json"])
        for name in operators(out / "plan.json", some, seed):
            found = explanation(out / "plan.json", name, most=most)
            explained += 1
            for a in found.alternatives:
                alternatives += 1
                fresh = run(
                    [*shlex.split(a.command), "--no-cache", "--force", "--out", str(folder / "fresh"), "--json"]
                )
                stated = a.model_dump()
                same = all(stated[key] == fresh[key] for key in AGREE) and parts_agree(out, a, fresh["parts_s"])
                wrong += not same
                print(
                    f"{'same' if same else 'WRONG'} {model} {a.pin}: {a.objective_s!r} {fresh['objective_s']!r}",
                    flush=True,
                )
    return explained, alternatives, wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=30, help="operators")
    parser.add_argument("--alternatives", type=int, default=3, help="of each")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--models", default=",".join(CASES), help="of these models alone")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        models = options.models.split(",")
        explained, alternatives, wrong = compare(
            Path(folder), models, options.count, options.seed, options.alternatives
        )
    print(f"{explained} operators, {alternatives} alternatives, {wrong} differ from a fresh search")
    return 1 if wrong or not alternatives else 0


if __name__ == "__main__":
    raise SystemExit(main())
