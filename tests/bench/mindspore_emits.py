"""How many plans of known configurations MindSpore's files can say: seven graphs by fourteen configurations.

Run as `python -m tests.bench.mindspore_emits [--target any|mindspore] [--json]` from the repository root.  Every plan
is made as `planner search --strategy CONFIGURATION --target TARGET --hardware ascend-910b` makes it, and emitted as
`planner emit --target mindspore` does; with `--target any` the plan is made for no framework in particular.  A plan is
counted where its files are written; the rest are listed with the reason, and so is what no plan can be made of.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import planner
from planner.errors import PlannerError

__all__ = ["CONFIGURATIONS", "GRAPHS", "Row", "main", "row"]

SAMPLES = Path(__file__).parents[2] / "sample_graphs"
DEVICES, BATCH = 8, 64
GRAPHS = ("mlp", "gpt_tiny", "llama_tiny", "bert_tiny", "vit_tiny", "moe_tiny", "resnet18_tiny")
CONFIGURATIONS = (
    "ddp",
    "zero1",
    "zero2",
    "zero3",
    "fsdp",
    "megatron:zero=0",
    "megatron:tp=2,zero=0",
    "megatron:tp=2",
    "megatron:tp=2,zero=3",
    "megatron:tp=4",
    "megatron:pp=2,zero=0",
    "megatron:pp=2",
    "megatron:tp=2,pp=2,zero=0",
    "megatron:tp=2,pp=2",
)


@dataclass(frozen=True, slots=True)
class Row:
    """`refused`: why there are no files; `lost`: what the files do not say that is no general remark."""

    graph: str
    configuration: str
    planned: bool
    emitted: bool
    refused: str = ""
    lost: tuple[str, ...] = ()


def row(graph: str, configuration: str, target: str) -> Row:
    try:
        plan = planner.search(
            str(SAMPLES / f"{graph}.onnx"), devices=DEVICES, batch=BATCH, hardware="ascend-910b", target=target,
            strategy=configuration, cache=False,
        )  # fmt: skip
    except PlannerError as e:
        return Row(graph, configuration, False, False, str(e))
    try:
        found = planner.emit(plan, "mindspore")
    except PlannerError as e:
        return Row(graph, configuration, True, False, str(e))
    told = tuple(line for line in found.lost if "optimizer parallel" in line or "MindSpore keeps the part" in line)
    return Row(graph, configuration, True, True, "", told)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="mindspore", choices=("any", "mindspore"))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    started, rows = time.monotonic(), []
    for graph in GRAPHS:
        for configuration in CONFIGURATIONS:
            rows.append(row(graph, configuration, options.target))
            print(".", end="", flush=True, file=sys.stderr)
    print(file=sys.stderr)
    if options.json:
        print(json.dumps([asdict(r) for r in rows], indent=1))
        return 0
    for r in rows:
        for line in r.lost:
            print(f"{r.graph:14} {r.configuration:26} but: {line}")
    for r in rows:
        if not r.emitted:
            print(f"{r.graph:14} {r.configuration:26} {'refused' if r.planned else 'no plan'}: {r.refused}")
    emitted, planned = sum(r.emitted for r in rows), sum(r.planned for r in rows)
    print(f"{emitted} of {len(rows)} emit ({planned} plans made), in {time.monotonic() - started:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
