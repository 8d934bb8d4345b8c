"""Every model of a folder: imported, planned, verified where its size allows.  Prints a Markdown table.

    python tests/bench/corpus_table.py FOLDER --devices 8 [--batch B] [--no-verify] [--only SUBSTRING]

Each step is the command a user would give, in a process of its own.  Symbolic dimensions are bound by position:
axis 0 to 8, axis 1 to 32, further axes to 96.  A graph whose batch cannot be bound anew is planned as exported.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import subprocess
import sys
import tempfile
from pathlib import Path


def command(arguments: list[str], timeout: float) -> tuple[int, str, str, float]:
    """Exit status, output, messages and CPU seconds of one `planner` command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "planner", *arguments], capture_output=True, text=True, timeout=timeout
        )
        status, out, err = done.returncode, done.stdout, done.stderr
    except subprocess.TimeoutExpired:
        status, out, err = -1, "", f"stopped after {timeout:g} s"
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return status, out, err, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def bindings(message: str) -> list[str]:
    """Options for the dimensions that an error message says are unbound."""
    sizes = (8, 32, 96, 96)
    return [
        part
        for name, axis in re.findall(r"'([^']+)' \(\S+ axis (\d+)", message)
        for part in ("--bind", f"{name}={sizes[min(int(axis), 3)]}")
    ]


def row(model: Path, options: argparse.Namespace, folder: Path) -> list[str]:
    base = [str(model), "--devices", str(options.devices), "--out", str(folder / model.stem), "--json"]
    extra = ["--batch", str(options.batch)] if options.batch else []
    status, out, err, cpu = command(["search", *base, *extra], options.timeout)
    if status == 3 and "have no size" in err:
        extra += bindings(err)
        status, out, err, cpu = command(["search", *base, *extra], options.timeout)
    remark = ""
    if status == 3 and options.batch:
        remark = f" (as exported: --batch says: {' '.join(err.split())[:140]})"
        status, out, err, cpu = command(["search", *base, *extra[2:]], options.timeout)
        if status == 3 and "have no size" in err:
            status, out, err, cpu = command(["search", *base, *bindings(err)], options.timeout)
    if "Traceback" in err:
        return [model.stem, "-", "TRACEBACK", "-", "-", err.strip().splitlines()[-1][:120]]
    if status != 0:
        return [model.stem, "-", f"exit {status}", f"{cpu:.1f}", "-", " ".join(err.split())[:160]]
    found = json.loads(out)
    replicated = ", ".join(found["operators_replicated_for_want_of_a_rule"]) or "-"
    outcome = f"{found['mesh']}, batch {found['batch']}, gap {found['gap']:.2%}{remark}"
    verified = "-"
    if options.verify:
        plan = str(folder / model.stem / "plan.json")
        status, out, err, seconds = command(["verify", plan, str(model), "--json"], options.timeout)
        if out:
            v = json.loads(out)
            verdict = "ok" if v["ok"] else "FAILED"
            verified = f"{verdict} {v['scope']} {'+'.join(v['checked'])} {v['max_error']:.1e} ({seconds:.0f} s)"
        else:
            verified = " ".join(err.split())[-140:]
    return [model.stem, str(found["operators"]), outcome, f"{cpu:.1f}", replicated, verified]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--only", default="")
    parser.add_argument("--timeout", type=float, default=900)
    parser.add_argument("--no-verify", dest="verify", action="store_false")
    options = parser.parse_args()
    print("| model | operators | plan | CPU s | replicated for want of a rule | verified |")
    print("|---|---|---|---|---|---|")
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        for model in sorted(options.folder.glob("*.onnx")):
            if options.only in model.stem:
                cells = row(model, options, Path(folder))
                bad += cells[2] == "TRACEBACK"
                print("| " + " | ".join(c.replace("|", "/") for c in cells) + " |", flush=True)
    return min(bad, 1)


if __name__ == "__main__":
    raise SystemExit(main())
