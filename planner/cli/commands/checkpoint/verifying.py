"""`planner checkpoint verify`: a checkpoint against its checksums, its source, or its replicas."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from planner.cli.commands.checkpoint.shared import add_after, add_before
from planner.cli.options import add_json_option
from planner.errors import UsageError

__all__ = ["add_arguments", "run"]


def add_arguments(p: argparse.ArgumentParser) -> None:
    p.add_argument("source", type=Path, metavar="CHECKPOINT", help="checkpoint to look at: a folder, or a file")
    p.add_argument(
        "--against", type=Path, metavar="SRC", help="the checkpoint that it was made of: compare every element"
    )
    add_before(p, "how SRC's ranks hold it")
    add_after(p, "how CHECKPOINT's ranks hold it")
    p.add_argument(
        "--replicas", action="store_true", help="compare the replicas that several ranks of CHECKPOINT hold under --to"
    )
    add_json_option(p)


def run(options: argparse.Namespace) -> int:
    from planner.checkpoint.comparing import compared, unlike, unsound
    from planner.checkpoint.layouts import read_layouts

    layouts = [None if p is None else read_layouts(p) for p in (options.before, options.after)]
    if options.replicas:
        after = layouts[1] or layouts[0]
        if after is None or options.against is not None:
            raise UsageError("--replicas: give --to, how the ranks hold CHECKPOINT, and no --against")
        found, checked = unlike(options.source, after)
    elif options.against is None:
        found, checked = unsound(options.source)
    else:
        found, checked = compared(options.against, options.source, *layouts)
    if options.json:
        print(json.dumps({"ok": not found, "faults": found, "checked": checked}, indent=1))
    else:
        for line in found[:50]:
            print(line)
        if len(found) > 50:
            print(f"and {len(found) - 50} more")
        against = "its checksums" if options.against is None else str(options.against)
        against = "their copies on other ranks" if options.replicas else against
        print(f"{'FAILED' if found else 'ok'}: {options.source}: {checked} tensors compared with {against}")
    return 1 if found else 0
