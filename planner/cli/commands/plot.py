"""`planner plot KIND PLAN...`: figures for papers and slides, or their data."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from planner.cli.options import add_json_option
from planner.errors import InputError, UsageError
from planner.files import write_whole
from planner.requests.occupied import refuse_inputs_and_models

__all__ = ["configure", "run"]

_KINDS = {
    "scaling": "step time and MFU over the number of devices, with the ideal line",
    "pareto": "step time over memory, and what no other one beats in both",
    "breakdown": "the step of each plan by cause",
    "timeline": "passes of micro-batches by stage, or the streams of one device",
}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "kind", choices=tuple(_KINDS), metavar="KIND", help="; ".join(f"{k}: {v}" for k, v in _KINDS.items())
    )
    parser.add_argument(
        "inputs",
        nargs="+",
        metavar="[LABEL=]PLAN",
        help="plan.json or its folder, what `planner search --json` printed, or an evaluation.json; "
        "those of one LABEL are one series",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="the figure: FILE.svg, .png or .pdf")
    parser.add_argument(
        "--size", choices=("paper", "slide"), default="paper", help="size and fonts for; default: %(default)s"
    )
    add_json_option(parser)


def run(options: argparse.Namespace) -> int:
    from planner.report.plots.draw import FORMATS, drawn
    from planner.requests.plotting import plot_data

    if options.out is None and not options.json:
        raise UsageError("missing --out FILE.svg (or .png, .pdf) for the figure, or --json for its data")
    if options.out is not None and options.out.suffix[1:].lower() not in FORMATS:
        raise UsageError(f"--out {options.out}: expected a name that ends with .{', .'.join(FORMATS)}")
    data = plot_data(options.kind, options.inputs)
    if options.out is not None:
        refuse_inputs_and_models(options.out, *(Path(x) for x in options.inputs))
        try:
            write_whole(options.out, drawn(data, options.out, options.size))
        except OSError as e:
            raise InputError(f"{options.out}: cannot be written ({e.strerror}); give another --out") from e
    if options.json:
        print(json.dumps(data, indent=1))
    else:
        print(f"figure written to {options.out}")
    return 0
