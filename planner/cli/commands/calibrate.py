"""`planner calibrate --out FILE`: a hardware profile measured on this machine."""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path

from planner.cli.options import add_json_option
from planner.errors import UsageError
from planner.requests.values import positive, profile_of, progress_to

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="profile to write (.toml)")
    parser.add_argument(
        "--base",
        default="cpu",
        metavar="PROFILE",
        help="profile whose values stand where nothing is measured; default: cpu",
    )
    parser.add_argument(
        "--processes", type=positive, default=2, metavar="N", help="number of devices to measure; default: 2"
    )
    parser.add_argument(
        "--threads", type=positive, default=1, metavar="N", help="CPU threads of each process; default: 1"
    )
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="kind of device to measure; default: cpu"
    )
    parser.add_argument("--quick", action="store_true", help="fewer and smaller measurements")
    parser.add_argument(
        "--rows",
        type=Path,
        metavar="ROWS.json",
        help="fit to published step times, or to the profile.json of a run, instead of to this machine",
    )
    add_json_option(parser)


def run(options: argparse.Namespace) -> int:
    profile_of(options.base)  # refuses what is malformed before anything is measured
    if options.out.suffix != ".toml":
        raise UsageError(f"--out {options.out}: profiles are TOML files; give a name that ends in .toml")
    if options.rows is not None:
        return _from_rows(options)
    from planner.runtime.extra import require_torch

    require_torch("planner calibrate")
    from planner.runtime.calibrate import calibrate

    started = time.monotonic()
    found = calibrate(
        options.out.stem,
        base=options.base,
        processes=options.processes,
        threads=options.threads,
        device=options.device,
        quick=options.quick,
        say=progress_to(quiet=False),
    )
    _write(options.out, found.text)
    document = {
        "profile": str(options.out),
        "base": options.base,
        "processes": options.processes,
        "samples": found.samples,
        "values": dict(found.values),
        "errors": {k: asdict(e) for k, e in found.errors.items()},
        "seconds": round(time.monotonic() - started, 1),
    }
    print(json.dumps(document, indent=1) if options.json else _text(document))
    return 0


def _from_rows(options: argparse.Namespace) -> int:
    """The base's efficiencies fitted to measured training steps on that machine, or to the operators of one."""
    from planner.accuracy.profiles import fitted_profile, is_of_run, profile_of_run

    of_run = is_of_run(options.rows)
    if of_run:
        found = profile_of_run(options.rows, options.base, options.out.stem)
    else:
        found = fitted_profile(options.rows, options.base, options.out.stem, progress_to(quiet=False))
    _write(options.out, found.text)
    document = {
        "profile": str(options.out),
        "base": options.base,
        "rows": found.rows,
        "datasets": list(found.datasets),
        "values": dict(found.values),
    }
    what = "operators" if of_run else "steps"
    if options.json:
        print(json.dumps(document, indent=1))
    else:
        print(f"{options.out}: {options.base} fitted to {found.rows} {what} of {', '.join(found.datasets)}")
        print("\n".join(f"  {name:42} {value:.4g}" for name, value in found.values.items()))
    return 0


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as e:
        raise UsageError(f"--out {path}: cannot be written ({e.strerror}); name another file") from e


def _text(d: dict[str, object]) -> str:
    values, errors = d["values"], d["errors"]
    assert isinstance(values, dict)
    assert isinstance(errors, dict)
    lines = [f"{d['profile']}: {d['samples']} measurements in {d['seconds']} s"]
    lines += [f"  {k:44} {v:.4g}" for k, v in values.items()]
    lines.append(f"{'class':20} {'samples':>8} {'error':>8} {'bias':>8}")
    lines += [f"{k:20} {e['samples']:8} {e['mape']:8.1%} {e['bias'] - 1:+8.1%}" for k, e in errors.items()]
    return "\n".join(lines)
