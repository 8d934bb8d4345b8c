"""Which operators of real graphs PyTorch would run on the host: every graph of a folder, planned for two devices.

    python -m tests.bench.torch_graphs FOLDER [NAME ...] [--bind DIMENSION=SIZE ...] [--time-limit S]

Each is searched with no limit of memory, its symbolic dimensions bound to small sizes (or to those of `--bind`, where a
graph wants sizes that fit each other), and its program tried operator by operator on tensors without values, as
`planner run` does before it starts anything.  Exit status 1 where a file cannot be planned.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from planner.cost_models import load_profile
from planner.errors import InputError, PlannerError
from planner.frontends import load_model
from planner.ir import Graph
from planner.planning import Request, describe, make_plan
from planner.planning.programs import program_of
from planner.pricing import Settings
from planner.requests.values import bindings
from planner.runtime.hosted import hosted
from tests.bench.corpus_table import bindings as sizes_of

ROOM = 1 << 40  # bytes of a device


def loaded(path: Path, given: Mapping[str, int]) -> Graph:
    try:
        return load_model(path)
    except InputError as error:
        if "have no size" not in str(error):
            raise
        sizes = bindings(sizes_of(str(error))[1::2])
        return load_model(path, bind={name: given.get(name, size) for name, size in sizes.items()})


def tried(path: Path, given: Mapping[str, int], time_limit: float) -> str:
    """What of the graph would run on the host, in words."""
    graph = loaded(path, given)
    settings = Settings(training=graph.loss is not None, precision="fp32")
    request = Request(2, load_profile("cpu"), settings, memory_limit=ROOM, time_limit=time_limit)
    found = hosted(program_of(describe(make_plan(graph, request), bind={}, batch=None), graph))
    kinds = Counter(h.type for h in found)
    on_host = ", ".join(f"{n} x {kind}" for kind, n in sorted(kinds.items())) or "none"
    return f"{len(graph.ops):6,} operators, on the host: {on_host}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--bind", action="append", default=[], metavar="DIMENSION=SIZE")
    parser.add_argument("--time-limit", type=float, default=300, metavar="S", help="of one search")
    o = parser.parse_args()
    failed, given = 0, bindings(o.bind)
    files = [o.folder / f"{n}.onnx" for n in o.names] or sorted(o.folder.glob("*.onnx"))
    for path in files:
        begin = time.process_time()
        try:
            said = tried(path, given, o.time_limit)
        except PlannerError as error:
            failed, said = failed + 1, f"not planned: {error}"
        print(f"{path.stem:50} {said} ({time.process_time() - begin:.1f} CPU s)", flush=True)
    print(f"{len(files) - failed} of {len(files)} planned")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
