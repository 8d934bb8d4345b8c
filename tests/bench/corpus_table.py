"""Every model of a folder: imported, planned, and verified.  Prints the table of docs/corpus.md.

    python -m tests.bench.corpus_table FOLDER [--devices 8,16] [--batch 64] [--only SUBSTRING] [--no-verify]
                                       [--timeout S] [--json OUT]

Each step is the command that a user would give, in a process of its own.  A dimension without a size is bound by its
position: axis 0 to 8, axis 1 to 32, further axes to 96.  A graph whose batch cannot be changed is planned as it was
exported.  A run with the arguments of one that was stopped goes on behind the rows that stand in OUT.  Exit status 1
where a command ended in a traceback, or a plan was found wrong.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

__all__ = ["main"]

_SIZES: Final = (8, 32, 96)  # of dimensions without one: of the first axis, the second, and those behind
_MESSAGE: Final = 140  # characters of a message that a cell shows


@dataclass(frozen=True, slots=True)
class Ran:
    """One command: its exit status (None where it was stopped), output, messages and CPU seconds."""

    status: int | None
    output: str
    message: str
    cpu_s: float

    @property
    def in_short(self) -> str:
        lines = [line for line in self.message.splitlines() if line.startswith(("planner", "error"))]
        return " ".join(" ".join(lines or [self.message]).split())[:_MESSAGE]


def run(arguments: Sequence[str], timeout: float) -> Ran:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    status: int | None
    try:
        done = subprocess.run(
            [sys.executable, "-m", "planner", *arguments], capture_output=True, text=True, timeout=timeout
        )
        status, output, message = done.returncode, done.stdout, done.stderr
    except subprocess.TimeoutExpired:
        status, output, message = None, "", f"stopped after {timeout:g} s"
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Ran(status, output, message, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def bindings(message: str) -> list[str]:
    """Options for the dimensions that an error message says have no size."""
    return [
        part
        for name, axis in re.findall(r"'([^']+)' \(\S+ axis (\d+)", message)
        for part in ("--bind", f"{name}={_SIZES[min(int(axis), len(_SIZES) - 1)]}")
    ]


def searched(model: Path, devices: int, batch: int, out: Path, timeout: float) -> tuple[Ran, str]:
    """The search, and what had to be done differently for it."""
    command = ["search", str(model), "--devices", str(devices), "--out", str(out), "--json"]
    for extra, remark in ((["--batch", str(batch)], ""), ([], "batch as exported")):
        ran = run([*command, *extra], timeout)
        if ran.status == 3 and "have no size" in ran.message:
            ran = run([*command, *extra, *bindings(ran.message)], timeout)
        if ran.status != 3:
            return ran, remark
    return ran, ""


def planned(model: Path, devices: int, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The row of a model on a number of devices."""
    out = folder / f"{model.stem}-{devices}"
    ran, remark = searched(model, devices, options.batch, out, options.timeout)
    row: dict[str, Any] = {"model": model.stem, "devices": devices, "search": asdict(ran) | {"output": ""}}
    if "Traceback" in ran.message:
        return row | {"problem": f"TRACEBACK: {ran.message.strip().splitlines()[-1][:_MESSAGE]}"}
    if ran.status != 0:
        return row | {"problem": ran.in_short if ran.status is None else f"exit {ran.status}: {ran.in_short}"}
    found = json.loads(ran.output)
    row |= {key: found[key] for key in ("operators", "in_words", "gap", "operators_replicated_for_want_of_a_rule")}
    row["remark"] = remark
    if options.verify:
        proof = run(["verify", str(out / "plan.json"), str(model), "--json"], options.timeout)
        row["verify"] = asdict(proof) | {"output": ""}
        row["verdict"] = json.loads(proof.output) if proof.output else None
    return row


def plan_cell(row: Mapping[str, Any]) -> str:
    if "problem" in row:
        return str(row["problem"])
    words = str(row["in_words"]).split("; ")[0].removesuffix(" (--details)")
    return "; ".join(part for part in (words, f"gap {row['gap']:.2%}", row["remark"]) if part)


def proof_cell(row: Mapping[str, Any]) -> str:
    if "verify" not in row:
        return "-"
    verdict, seconds = row["verdict"], row["verify"]["cpu_s"]
    if verdict is None:
        return f"{' '.join(row['verify']['message'].split())[-_MESSAGE:]} ({seconds:.0f} s)"
    passes = " and ".join(verdict["checked"]) or "nothing"
    error = f", error {verdict['max_error']:.1e}" if verdict["values"] else ""
    reasons = "" if verdict["verdict"] == "ok" else f": {'; '.join((*verdict['failures'], *verdict['unproved']))}"
    return f"{verdict['verdict']}, {verdict['scope']}, {passes}{error} ({seconds:.0f} s){reasons[:_MESSAGE]}"


def table(rows: Sequence[Mapping[str, Any]], devices: Sequence[int]) -> str:
    heads = [f"{n} devices | CPU s | verified" for n in devices]
    lines = [f"| model | operators | {' | '.join(heads)} |", "|---|---" + "|---|---|---" * len(devices) + "|"]
    by_model: dict[str, dict[int, Mapping[str, Any]]] = {}
    for row in rows:
        by_model.setdefault(row["model"], {})[row["devices"]] = row
    for model, found in by_model.items():
        operators = next((str(row["operators"]) for row in found.values() if "operators" in row), "-")
        cells = [model, operators]
        for n in devices:
            if n in found:
                cells += [plan_cell(found[n]), f"{found[n]['search']['cpu_s']:.1f}", proof_cell(found[n])]
            else:
                cells += ["-"] * 3
        lines.append("| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |")
    return "\n".join(lines)


def summary(rows: Sequence[Mapping[str, Any]], devices: Sequence[int]) -> str:
    parts = []
    for n in devices:
        own = [row for row in rows if row["devices"] == n]
        plans = [row for row in own if "problem" not in row]
        proved = sum(1 for row in plans if (row.get("verdict") or {}).get("ok"))
        exact = sum(1 for row in plans if row["gap"] < 5e-5)
        parts.append(f"{n} devices: {len(plans)} of {len(own)} planned ({exact} with gap 0), {proved} verified")
    whole = sorted({t for row in rows for t in row.get("operators_replicated_for_want_of_a_rule", ())})
    return "; ".join(parts) + f"; replicated for want of a rule: {', '.join(whole) or 'none'}"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--devices", default="8,16", help="numbers of devices, with commas")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--only", default="", help="models whose name holds this")
    parser.add_argument("--timeout", type=float, default=600, help="seconds after which a command is stopped")
    parser.add_argument("--no-verify", dest="verify", action="store_false")
    parser.add_argument("--json", type=Path, help="what is written, and what a run that was stopped left")
    options = parser.parse_args(arguments)
    devices = [int(n) for n in options.devices.split(",")]
    rows: list[dict[str, Any]] = []
    if options.json is not None and options.json.exists():
        rows = json.loads(options.json.read_text(encoding="utf-8"))
    done = {(row["model"], row["devices"]) for row in rows}
    with tempfile.TemporaryDirectory() as folder:
        for model in sorted(options.folder.glob("*.onnx")):
            for n in devices:
                if options.only not in model.stem or (model.stem, n) in done:
                    continue
                rows.append(planned(model, n, options, Path(folder)))
                print(f"{model.stem} {n}: {plan_cell(rows[-1])}: {proof_cell(rows[-1])}", file=sys.stderr, flush=True)
                if options.json is not None:
                    options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    print(table(rows, devices))
    print(summary(rows, devices))
    wrong = [
        row
        for row in rows
        if row.get("problem", "").startswith("TRACEBACK") or (row.get("verdict") or {}).get("verdict") == "failed"
    ]
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
