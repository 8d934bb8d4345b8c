"""`planner checkpoint ranks`: whose files are needed."""

from __future__ import annotations

import argparse
import json

from planner.cli.commands.checkpoint.shared import LAYOUT, add_after, add_before, add_rank, some
from planner.cli.options import add_json_option
from planner.errors import UsageError

__all__ = ["add_arguments", "run"]


def add_arguments(p: argparse.ArgumentParser) -> None:
    add_before(p, LAYOUT, required=True)
    add_after(p, LAYOUT, required=True)
    add_rank(p, "name the files for this rank of --to alone")
    add_json_option(p)


def run(options: argparse.Namespace) -> int:
    from planner.checkpoint.layouts import read_layouts
    from planner.checkpoint.needs import ranks_needed

    before, after = read_layouts(options.before), read_layouts(options.after)
    chosen = options.rank or list(range(after.ranks))
    if max(chosen) >= after.ranks:
        raise UsageError(f"--rank {max(chosen)}: {after.said} is for ranks 0 to {after.ranks - 1}")
    found = {r: ranks_needed(before, after, [r]) for r in chosen}
    together = ranks_needed(before, after, chosen)
    if options.json:
        print(json.dumps({"ranks": {str(r): list(v) for r, v in found.items()}, "together": list(together)}, indent=1))
        return 0
    for r, needed in found.items():
        print(f"rank {r}: needs the files of {some(needed)}")
    if len(found) > 1:
        print(f"all together: {len(together)} of {before.ranks} ranks: {some(together)}")
    return 0
