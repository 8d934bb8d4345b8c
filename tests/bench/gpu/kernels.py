"""What single operators take on one GPU: products, attention, small operators, the optimizer, launches and copies.

Run as `python -m tests.bench.gpu.kernels --out FILE.jsonl [--seconds N] [--only GROUP,…] [--device cpu --tiny]` from
the repository root.  Every line of the file is one measurement: `group`, `name`, its sizes, the floating-point
operations (`flops`) and the least bytes it must move (`bytes`), and the times of `timing.Timer`: the median of the
device's own time, and what the host took to hand the call over.  Operands are random and take turns among sets that
together lie beyond the second-level cache.  What a version of PyTorch or a device lacks is a line with `error`.  Plain
PyTorch: nothing of the planner is imported.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from tests.bench.gpu import small
from tests.bench.gpu.aligned import alignment_cases
from tests.bench.gpu.mixed import core_cases, mixed_cases
from tests.bench.gpu.products import product_cases
from tests.bench.gpu.scores import attention_cases
from tests.bench.gpu.timing import Lines, Timer, copies_for, describe, nvidia_smi
from tests.bench.gpu.work import Place, Work

__all__ = ["GROUPS", "main"]

Cases = Callable[[Place], Iterator[Work]]
GROUPS: dict[str, Cases] = {
    "launches": small.launch_cases,
    "products": product_cases,
    "attention": attention_cases,
    "elementwise": small.elementwise_cases,
    "normalizations": small.normalization_cases,
    "losses": small.loss_cases,
    "lookups": small.lookup_cases,
    "optimizers": small.optimizer_cases,
    "convolutions": small.convolution_cases,
    "copies": small.copy_cases,
    "products of other types": lambda place: product_cases(place, others=True),
    "compiled": small.compiled_cases,
    "aligned products": alignment_cases,
    "mixed types": mixed_cases,
    "cores of attention": core_cases,
}


@dataclass
class Session:
    """Where measurements go, and until when they may begin."""

    timer: Timer
    lines: Lines
    end: float
    failed: dict[str, int] = field(default_factory=dict)

    def run(self, group: str, work: Work) -> None:
        row: dict[str, Any] = {
            "group": group,
            "name": work.name,
            **work.facts,
            "flops": work.flops,
            "bytes": work.bytes,
        }
        try:
            count = work.copies or copies_for(work.held)
            calls = [work.make(i) for i in range(count)]
            row |= {"copies": count, **self.timer.measure(calls, most=work.most)}
            if work.repeats > 1:
                row |= {k: row[k] / work.repeats for k in ("median_s", "min_s", "max_s", "host_s")}
            if work.flops:
                row["tflops"] = work.flops / row["median_s"] * 1e-12
            if work.bytes:
                row["gbps"] = work.bytes / row["median_s"] * 1e-9
        # What a version of PyTorch or a device lacks becomes a row that says so: the others are still measured.
        except (RuntimeError, NotImplementedError, TypeError, AttributeError, ValueError) as e:
            row["error"] = f"{type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''}"[:240]
            self.failed[group] = self.failed.get(group, 0) + 1
        self.lines.put(row)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="file of JSON lines that is added to")
    parser.add_argument("--seconds", type=float, default=60.0, help="no group's measurement begins after so long")
    parser.add_argument("--only", default="", help=f"groups, separated by commas, of {', '.join(GROUPS)}")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="sizes for a trial without a GPU")
    parser.add_argument("--quiet", action="store_true", help="print one line per group instead of every measurement")
    options = parser.parse_args()
    device = torch.device(options.device)
    begin = time.monotonic()
    timer = Timer(device, 0.005 if options.tiny else 0.06)
    session = Session(timer, Lines(options.out, quiet=options.quiet), begin + options.seconds)
    session.lines.put({"group": "machine", **describe(device), "state": nvidia_smi()})
    place = Place(device, options.tiny)
    torch.manual_seed(0)
    for group in [g for g in GROUPS if not options.only or g in options.only.split(",")]:
        left_out = done = 0
        for work in GROUPS[group](place):
            if time.monotonic() > session.end:
                left_out += 1
                continue
            session.run(group, work)
            done += 1
        _free(device)
        print(f"{group}: {done} measured, {session.failed.get(group, 0)} failed, {left_out} left out,"
              f" {time.monotonic() - begin:.1f} s", flush=True)  # fmt: skip
    session.lines.put({"group": "machine", "state": nvidia_smi(), "seconds": time.monotonic() - begin})
    session.lines.close()


def _free(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
