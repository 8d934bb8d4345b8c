"""Changed inputs, guided by coverage: `python -m tests.fault.guided --entrance model --seconds 600`.

As `tests.fault.inputs`, with libFuzzer by way of Atheris (`pip install atheris`), which keeps the inputs that reach
code of the planner that none has reached before, and changes these further: models by their structure, all else by
bytes.  What ends otherwise than in a plan or an error with a message is written to `--keep`; libFuzzer itself ends the
run where one takes more than a minute or 4 GiB, or ends the process, and writes that input there, too.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
from pathlib import Path

__all__ = ["main"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entrance", default="model", help="one of `tests.fault.inputs`")
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=300, help="inputs to begin with")
    parser.add_argument("--keep", type=Path, default=Path("guided"), help="folder for inputs that show a fault")
    options = parser.parse_args()
    try:
        import atheris
    except ImportError:
        print("Atheris is not installed: pip install atheris", file=sys.stderr)
        return 2
    with atheris.instrument_imports(include=["planner"]):
        from tests.fault.entrances import ENTRANCES, Case, case_of, warm
        from tests.fault.entrances_models import changed_proto
        from tests.fault.pool import outcome
    warm()
    options.keep.mkdir(parents=True, exist_ok=True)
    keep = options.keep.resolve()
    first = [case_of(options.seed, k, (options.entrance,)) for k in range(options.seeds)]
    folder, corpus, suffix = Path(tempfile.mkdtemp()), Path(tempfile.mkdtemp()), first[0].suffix
    for case in first:
        if case.suffix == suffix:
            (corpus / case.name).write_bytes(case.content)
    known: set[str] = set()
    assert options.entrance in ENTRANCES

    def one(data: bytes) -> None:
        case = Case(options.entrance, data, suffix, len(data), options.seed)
        found = outcome(case, folder)
        if found.end == "fault" and found.where not in known:
            known.add(found.where)
            (keep / f"{options.entrance}-guided-{len(known)}{suffix}").write_bytes(data)
            print(f"fault: {found.where}\n{found.detail}", file=sys.stderr, flush=True)

    def changed(data: bytes, most: int, seed: int) -> bytes:
        return changed_proto(data, random.Random(seed))[:most]

    arguments = [sys.argv[0], *flags(options.seconds, options.seed, keep), str(corpus)]
    atheris.Setup(arguments, one, **({"custom_mutator": changed} if suffix == ".onnx" else {}))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    atheris.Fuzz()
    return 0


def flags(seconds: int, seed: int, keep: Path) -> list[str]:
    """Of libFuzzer."""
    limits = ["-timeout=60", "-rss_limit_mb=4096", "-max_len=262144", f"-max_total_time={seconds}"]
    return [*limits, f"-seed={seed}", f"-artifact_prefix={keep}/", "-print_final_stats=1"]


if __name__ == "__main__":
    raise SystemExit(main())
