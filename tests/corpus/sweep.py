"""What `planner verify` says of the plans of real graphs: graphs x device counts x seeds.

    python -m tests.corpus.sweep --models DIR --devices 8,4,6,12,16 --seeds 3 --json out.json [--only PATTERN]

Each graph is planned once per device count (training where it has a loss) and the plan verified with every seed.  The
document is checked with each; the import with the first plan of a graph alone, since it depends on no plan.  First
comes one seed on the first device count, then the other counts, then further seeds.  What took least time before comes
first, then what has the smallest file.  What the JSON file holds already is not done again, unless its verdict is named
by `--again`; plans are kept in a folder beside it.

Static batches are carried to twelve samples where they can be; symbolic dimensions are bound as in the tests of the
import.  Where no plan fits into the memory of a device, one is made as if it were larger: what is asked here is whether
plans are right.  Every plan and every verdict is made in a process of its own, which native code may kill.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import resource
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx

from planner.cost_models import load_profile
from planner.errors import InfeasibleError, InputError, PlannerError
from planner.frontends import import_bytes
from planner.frontends.file.sandbox import Limits, run_limited
from planner.ir import Graph
from planner.planning import Request, describe, make_plan, read_plan, write_plan
from planner.pricing import Settings
from planner.verify.verification import verify
from tests.corpus.sizes import sizes

__all__ = ["loaded", "main"]

BATCH = 12
LIMITS = Limits(memory_bytes=14 << 30, cpu_seconds=3600, wall_seconds=4 * 3600.0)
LARGE = 1 << 50  # bytes of a device on which everything fits

Row = dict[str, Any]


@dataclass
class Sweep:
    """Verdicts found so far, by graph, device count and seed."""

    file: Path
    rows: dict[tuple[str, int, int], Row] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.file.exists():
            for row in json.loads(self.file.read_text(encoding="utf-8")):
                self.rows[row["graph"], row["devices"], row["seed"]] = row

    @property
    def plans(self) -> Path:
        return self.file.with_suffix(".plans")

    def add(self, row: Row) -> None:
        self.rows[row["graph"], row["devices"], row["seed"]] = row
        draft = self.file.with_suffix(".tmp")
        draft.write_text(json.dumps(list(self.rows.values()), indent=1), encoding="utf-8")
        draft.replace(self.file)

    def order(self, path: Path) -> tuple[float, int]:
        """By what a graph took before, or else by the size of its file."""
        took = [r["seconds"] for r in self.rows.values() if r["graph"] == path.stem and r["verdict"] != "no plan"]
        return max(took, default=float("inf")), path.stat().st_size

    def imported(self, graph: str) -> bool:
        """Whether the import of the graph was compared with the file already, or could not be."""
        return any(r["graph"] == graph and r["import"] is not None for r in self.rows.values())

    def verdict(self, path: Path, devices: int, seed: int) -> Row:
        """Of one graph, planned before or now."""
        row: Row = {"graph": path.stem, "devices": devices, "seed": seed, "verdict": "no plan", "import": None}
        at = self.plans / f"{path.stem}-{devices}.json"
        if not at.exists():
            self.plans.mkdir(exist_ok=True)
            row["planning_seconds"], why = _seconds(lambda: _plan(path, devices, at))
            if why is not None:
                return row | {"seconds": 0.0, "failures": [], "unproved": [str(why)]}
        with_import = not self.imported(path.stem)
        row["seconds"], found = _seconds(lambda: _verify(path, at, seed, with_import))
        if isinstance(found, str):
            return row | {"verdict": "died", "failures": [], "unproved": [found]}
        return row | found


def _seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    """CPU seconds of `work` in a child process, and its result or the words of its error."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    try:
        found = run_limited(work, limits=LIMITS, what="the sweep")
    except PlannerError as e:
        found = f"{type(e).__name__}: {e}"
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 2), found


def loaded(path: Path) -> tuple[Graph, dict[str, int], int | None]:
    """The graph, and the sizes and the batch that it is read with."""
    data = path.read_bytes()
    bind = sizes(onnx.ModelProto.FromString(data), path.stem)
    if not bind:
        with suppress(InputError):
            return import_bytes(data, name=path.stem, batch=BATCH), {}, BATCH
    return import_bytes(data, name=path.stem, bind=bind), bind, None


def _plan(path: Path, devices: int, at: Path) -> None:
    graph, bind, batch = loaded(path)
    request = Request(devices, load_profile("a100-80"), Settings(graph.loss is not None))
    try:
        planned = make_plan(graph, request)
    except InfeasibleError:
        planned = make_plan(graph, Request(devices, request.profile, request.settings, memory_limit=LARGE))
    write_plan(describe(planned, bind=bind, batch=batch), at)


def _verify(path: Path, at: Path, seed: int, with_import: bool) -> Row:
    plan = read_plan(at)
    graph = import_bytes(path.read_bytes(), name=path.stem, bind=plan.model.bind, batch=plan.model.batch)
    found = verify(plan, graph, path if with_import else None, seed=seed)
    executed, imported = found.execution, found.imported
    return {
        "verdict": found.verdict,
        "mesh": [a.size for a in plan.mesh.axes],
        "batch": plan.model.batch,
        "checked": list(found.checked),
        "executed": found.sibling or "whole",
        "error": 0.0 if executed is None else executed.max_error,
        "worst": "" if executed is None else executed.worst,
        "failures": list(found.failures),
        "unproved": list(found.unproved),
        "import": None if imported is None else {"ok": imported.ok, "reason": imported.reason},
    }


def _line(row: Row) -> str:
    first = next(iter((*row["failures"], *row["unproved"])), "")
    compared = {None: "", True: ", import ok", False: ", import wrong"}
    imported = "" if row["import"] is None else compared[row["import"]["ok"]] or ", import not compared"
    mesh = "x".join(map(str, row.get("mesh", [])))
    return (
        f"{row['verdict']:10} {row['graph']} on {row['devices']} ({mesh}), seed {row['seed']}: "
        f"{row['seconds']:.1f} CPU-s and {row.get('planning_seconds', 0.0):.1f} for the plan, "
        f"error {row.get('error', 0.0):.2g}{imported}{': ' if first else ''}{first[:300]}"
    )


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True, help="folder of ONNX files")
    parser.add_argument("--devices", default="8,4,6,12,16", help="with commas")
    parser.add_argument("--seeds", type=int, default=3, help="how many")
    parser.add_argument("--json", type=Path, required=True, help="where the verdicts go; what is there is kept")
    parser.add_argument("--only", default="*", help="names or patterns of graphs, with commas")
    parser.add_argument("--again", default="", help="verdicts to be found again, with commas")
    asked = parser.parse_args(arguments)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sweep = Sweep(asked.json)
    again = asked.again.split(",")
    files = [p for p in asked.models.glob("*.onnx") if any(fnmatch.fnmatch(p.stem, o) for o in asked.only.split(","))]
    for seed in range(asked.seeds):
        for devices in map(int, asked.devices.split(",")):
            for path in sorted(files, key=sweep.order):
                known = sweep.rows.get((path.stem, devices, seed))
                if known is not None and known["verdict"] not in again:
                    continue
                sweep.rows.pop((path.stem, devices, seed), None)  # with what it says of the import
                row = sweep.verdict(path, devices, seed)
                sweep.add(row)
                print(_line(row), flush=True)
    counts = Counter(r["verdict"] for r in sweep.rows.values())
    print(", ".join(f"{n} {verdict}" for verdict, n in counts.most_common()))
    return 1 if counts["failed"] or counts["died"] else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
