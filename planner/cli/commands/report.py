"""`planner report PLAN`: what a plan says, in the terminal, as a page, as JSON, or as a trace of its step."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from planner.errors import InputError, UsageError
from planner.requests.occupied import refuse_inputs_and_models
from planner.requests.values import plan_file

__all__ = ["configure", "run"]

# What a page may be called is free, but for names that promise another format.
_INSTEAD = {
    **dict.fromkeys((".pdf", ".png", ".svg"), "for a figure use `planner plot`; a browser prints the page as PDF"),
    ".json": "for JSON use --json",
    **dict.fromkeys((".md", ".txt", ".csv"), "without --out the report is printed as text"),
}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("plan", type=plan_file, metavar="PLAN", help="the plan: plan.json, or its folder")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the report as one HTML file")
    parser.add_argument(
        "--trace", type=Path, metavar="FILE", help="write the simulated step for chrome://tracing or Perfetto"
    )
    parser.add_argument("--tensor", metavar="NAME", help="show which part of this tensor every rank holds")
    parser.add_argument("--json", action="store_true", help="print the report as one JSON document on standard output")


def run(options: argparse.Namespace) -> int:
    from planner.files import write_whole
    from planner.planning.plan_file import read_plan
    from planner.report.document import document_of
    from planner.report.terminal import report_text, tensor_text
    from planner.report.trace import trace_document
    from planner.report.view import view
    from planner.requests.headline import words
    from planner.requests.record_file import record_beside

    if options.out is not None and (instead := _INSTEAD.get(options.out.suffix.lower())):
        raise UsageError(f"--out {options.out}: the report is written as an HTML page, FILE.html; {instead}")
    plan = read_plan(options.plan)
    record = record_beside(options.plan, plan)
    files: list[tuple[Path, str]] = []
    if options.out is not None:
        from planner.report.pages import report_html

        files.append((options.out, report_html(plan, record, words(plan))))
    if options.trace is not None:
        files.append((options.trace, json.dumps(trace_document(plan), separators=(",", ":")) + "\n"))
    for path, text in files:
        refuse_inputs_and_models(path, options.plan)
        try:
            write_whole(path, text.encode("utf-8", "replace"))
        except OSError as e:
            raise InputError(f"report {path}: cannot be written ({e}); give another place") from e
    if options.tensor is not None and not options.json:
        print(tensor_text(plan, options.tensor))
    elif options.json:
        print(json.dumps(document_of(view(plan), record), indent=1))
    elif files:
        for path, text in files:
            print(f"{path}: {len(text.encode('utf-8', 'replace')):,} bytes")
    else:
        print(report_text(view(plan), record, words(plan).removesuffix(" (--details)")))
    return 0
