"""`planner checkpoint inspect`: the tensors of a checkpoint and their layouts."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from planner.cli.commands.checkpoint.shared import LAYOUT, add_before, size_text
from planner.cli.options import add_json_option

__all__ = ["add_arguments", "run"]


def add_arguments(p: argparse.ArgumentParser) -> None:
    p.add_argument("source", type=Path, metavar="CHECKPOINT", help="checkpoint to look at: a folder, or a file")
    add_before(p, f"how its ranks hold it: {LAYOUT}")
    add_json_option(p)


def run(options: argparse.Namespace) -> int:
    from planner.checkpoint.layouts import read_layouts
    from planner.checkpoint.source import open_checkpoint

    found = open_checkpoint(options.source, None if options.before is None else read_layouts(options.before))
    rows: list[dict[str, Any]] = []
    for name, held in found.tensors.items():
        said = found.said[name]
        lays = found.layouts
        spread = None
        if lays is not None and said.parameter:
            spread = lays.of_slot(said.parameter) if said.slot else lays.parameters[said.parameter]
        rows.append({
            "name": name, "shape": list(held.shape), "dtype": held.dtype.name, "bytes": held.nbytes,
            "parameter": said.parameter, "slot": said.slot, "pieces": len(held.pieces.distinct()[0]),
            "layout": None if spread is None else f"{spread.layout} on {spread.mesh}",
        })  # fmt: skip
    if options.json:
        values = {k: v for k, v in found.values.items() if isinstance(v, (str, int, float, bool, type(None)))}
        print(json.dumps({"kind": found.kind, "format": found.format, "files": [str(f) for f in found.files],
                          "ranks": list(found.ranks), "tensors": rows, "values": values}, indent=1))  # fmt: skip
        return 0
    total = sum(int(r["bytes"]) for r in rows)
    files = f"{len(found.files)} files"
    print(f"{options.source}: {found.kind}, {found.format}: {len(rows)} tensors, {size_text(total)} in {files}")
    width = min(60, max((len(r["name"]) for r in rows), default=4))
    for r in rows:
        lies = f"  {r['layout']}" if r["layout"] else (f"  {r['pieces']} pieces" if r["pieces"] != 1 else "")
        slot = f"  {r['slot']} of {r['parameter']}" if r["slot"] else ""
        print(f"  {r['name']:<{width}}  {r['dtype']:<9} {list(r['shape'])!s}{lies}{slot}")
    return 0
