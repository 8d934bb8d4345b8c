"""`planner checkpoint plan`: who sends what to whom between running devices."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from planner.cli.commands.checkpoint.shared import add_after, add_before, size_text, some
from planner.cli.options import add_json_option
from planner.errors import UsageError
from planner.requests.values import ranks

__all__ = ["add_arguments", "run"]


def add_arguments(p: argparse.ArgumentParser) -> None:
    add_before(p, "plan that the devices run now", required=True)
    add_after(p, "plan that the devices are to run", required=True)
    p.add_argument(
        "--optimizer",
        choices=("adam", "momentum", "sgd"),
        default="adam",
        help="optimizer whose state moves with the parameters; default: adam",
    )
    p.add_argument(
        "--dtype",
        default="fp32",
        metavar="TYPE",
        help="number format of parameters, while the optimizer's state is in fp32; default: fp32",
    )
    p.add_argument("--lost", type=ranks, default=(), metavar="R,R,…", help="ranks of --from that are lost")
    p.add_argument("--out", type=Path, metavar="FILE", help="write all messages there, as JSON")
    add_json_option(p)


def run(options: argparse.Namespace) -> int:
    from planner.checkpoint.layouts import read_layouts
    from planner.checkpoint.moving import transfer_plan
    from planner.files import write_whole
    from planner.stored.elements import element_type

    try:
        itemsize = element_type(options.dtype).itemsize
    except ValueError as e:
        raise UsageError(f"--dtype: {e}") from e
    before, after = read_layouts(options.before), read_layouts(options.after)
    outside = [r for r in options.lost if r >= before.ranks]
    if outside:
        raise UsageError(f"--lost {outside[0]}: {before.said} is for ranks 0 to {before.ranks - 1}")
    found = transfer_plan(before, after, optimizer=options.optimizer, itemsize=itemsize, lost=options.lost)
    document = found.document()
    if options.out is not None:
        try:
            write_whole(options.out, json.dumps(document).encode())
        except OSError as e:
            raise UsageError(f"--out {options.out}: cannot be written: {e.strerror}") from e
    if options.json:
        print(json.dumps(document, indent=1))
        return 0
    moved, state = found.schedule.moved_bytes, found.state_bytes
    of_state = f" ({moved / state:.2f} of parameters and state)" if state else ""
    kept = f"{size_text(found.schedule.kept_bytes)} stay in place"
    print(f"{size_text(moved)} move between {found.devices} devices{of_state}; {kept}")
    print(f"a device sends at most {size_text(document['most_sent_bytes'])}, receives at most "
          f"{size_text(document['most_received_bytes'])}")  # fmt: skip
    elsewhere = [f"rank {r} on device {d}" for r, d in enumerate(document["placement"]) if r != d]
    if elsewhere:
        print(f"ranks of {after.said} that are not on the device of their number: {some(elsewhere)}")
    fresh = [d for d in document["placement"] if d >= before.ranks]
    if fresh:
        print(f"devices that hold nothing yet: {some(fresh)}")
    if found.lost:
        print(f"some parts are lost, to be read from a checkpoint: {some(found.lost)}")
    return 0
