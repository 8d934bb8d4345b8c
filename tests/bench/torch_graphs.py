"""Which operators of real graphs PyTorch would run on the host: every graph of a folder, planned for two devices.

    python -m tests.bench.torch_graphs FOLDER [NAME ...]

Each is searched, and its program tried operator by operator on tensors without values, as `planner run` does before it
starts anything.  Exit status 1 where a file cannot be planned.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from pathlib import Path

from planner.cost_models import load_profile
from planner.errors import PlannerError
from planner.frontends import load_model
from planner.planning import Request, describe, make_plan
from planner.planning.programs import program_of
from planner.pricing import Settings
from planner.runtime.hosted import hosted


def tried(path: Path) -> str:
    """What of the graph would run on the host, in words."""
    graph = load_model(path)
    training = graph.loss is not None
    request = Request(2, load_profile("cpu"), Settings(training=training, precision="fp32"), time_limit=60)
    found = hosted(program_of(describe(make_plan(graph, request), bind={}, batch=None), graph))
    kinds = Counter(h.type for h in found)
    on_host = ", ".join(f"{n} x {kind}" for kind, n in sorted(kinds.items())) or "none"
    return f"{len(graph.ops):6,} operators, on the host: {on_host}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    o = parser.parse_args()
    failed = 0
    files = [o.folder / f"{n}.onnx" for n in o.names] or sorted(o.folder.glob("*.onnx"))
    for path in files:
        begin = time.process_time()
        try:
            said = tried(path)
        except PlannerError as error:
            failed, said = failed + 1, f"not planned: {error}"
        print(f"{path.stem:50} {said} ({time.process_time() - begin:.1f} CPU s)", flush=True)
    print(f"{len(files) - failed} of {len(files)} planned")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
