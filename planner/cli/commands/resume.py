"""`planner resume --plan PLAN --lost R,R`: a plan for the devices that are left, and where its state comes from."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.cli.options import add_json_option
from planner.errors import InputError, UsageError
from planner.requests.values import cache_size, plan_file, ranks

if TYPE_CHECKING:
    from planner.requests.resuming import Resumed

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--plan", type=plan_file, required=True, metavar="PLAN", help="plan that the training has run")
    parser.add_argument("--lost", type=ranks, required=True, metavar="R,R,…", help="ranks of that plan that are lost")
    parser.add_argument(
        "--model", type=Path, metavar="MODEL", help="the model that was planned; default: the one beside the plan"
    )
    parser.add_argument(
        "--hardware", metavar="FILE", help="hardware profile, where that of the plan is none of the packaged ones"
    )
    parser.add_argument(
        "--checkpoint", type=Path, metavar="FOLDER",
        help="checkpoints of `planner run --save`, from which comes what no device holds any more",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for plan.json and transfer.json")
    parser.add_argument("--no-cache", action="store_true", help="search anew, and cache nothing")
    add_json_option(parser)


def run(options: argparse.Namespace) -> int:
    from planner.cache import Store, default_folder
    from planner.files import write_whole
    from planner.planning import read_plan
    from planner.requests.plan_model import keep_model, model_of_plan
    from planner.requests.resuming import resumed

    began = time.perf_counter()
    plan = read_plan(options.plan)
    model = model_of_plan(options.plan, options.model, "--model")
    if options.out.resolve() == options.plan.parent.resolve():
        raise UsageError(f"--out {options.out}: the plan that was run lies there; give another place")
    saved = None if options.checkpoint is None else _newest(options.checkpoint)
    store = None if options.no_cache else Store(default_folder(), cache_size(), note=lambda _: None)
    found = resumed(plan, model, options.lost, hardware=options.hardware, store=store)
    seconds = time.perf_counter() - began
    try:
        write_whole(options.out / "plan.json", found.answer.plans[0].encode())
        write_whole(options.out / "transfer.json", json.dumps(found.transfer.document()).encode())
    except OSError as e:
        raise InputError(f"--out {options.out}: cannot be written: {e.strerror}") from e
    note = keep_model(found.answer.model, options.out, model) if found.answer.model else None
    document = _document(found, options, saved, seconds)
    if options.json:
        print(json.dumps(document, indent=1))
        return 0
    for line in _text(found, document, options, model, note):
        print(line)
    return 0


def _newest(folder: Path) -> Path:
    """The newest whole checkpoint in a folder, or the folder itself."""
    if (folder / ".metadata").is_file():
        return folder
    inside = sorted(folder.glob("step-*")) if folder.is_dir() else []
    whole = [f for f in inside if (f / ".metadata").is_file()]
    if not whole:
        raise InputError(f"--checkpoint {folder}: expected checkpoints of planner run --save in it, found none")
    return whole[-1]


def _document(found: Resumed, options: argparse.Namespace, saved: Path | None, seconds: float) -> dict[str, Any]:
    moved = found.transfer.document()
    return {
        "plan": str(options.out / "plan.json"),
        "transfer": str(options.out / "transfer.json"),
        "devices": found.devices,
        "step_time_s": found.plan.cost.step_time_s,
        "parallelism": found.answer.documents[0].get("parallelism"),
        "moved_bytes": moved["moved_bytes"],
        "kept_bytes": moved["kept_bytes"],
        "placement": moved["placement"],
        "lost": list(moved["lost"]),
        "checkpoint": None if saved is None else str(saved),
        "refused": {str(n): why for n, why in found.refused.items()},
        "seconds": seconds,
    }


def _text(
    found: Resumed, document: dict[str, Any], options: argparse.Namespace, model: Path, note: str | None
) -> list[str]:
    lines = [f"{found.devices} devices: a step of {found.plan.cost.step_time_s * 1e3:.4g} ms (predicted); planned in "
             f"{document['seconds']:.1f} s"]  # fmt: skip
    lines += [f"{n} devices: no plan: {why}" for n, why in found.refused.items()]
    lines.append(f"{options.out / 'plan.json'}")
    lost = list(document["lost"])
    if lost:
        more = f" and {len(lost) - 5} more" if len(lost) > 5 else ""
        lines.append(f"no device holds all of {', '.join(lost[:5])}{more} any more")
        where = document["checkpoint"]
        lines.append(
            f"go on from a checkpoint: planner run {options.out} {model} --load {where or 'CHECKPOINT'}"
            + ("" if where else "; say with --checkpoint where they are")
        )
    else:
        lines.append(
            f"all state is on the devices that are left: {document['moved_bytes']:,} bytes move "
            f"({options.out / 'transfer.json'}), {document['kept_bytes']:,} stay"
        )
    return lines + ([note] if note else [])
