"""The answers for several counts of devices beside each other, to choose the size of a cluster by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from planner.report.words import time_text

__all__ = ["sizing"]

_HEAD: Final = ("devices", "step", "speed-up", "samples/s", "MFU", "GiB", "plan")


def sizing(documents: Sequence[Mapping[str, Any]]) -> str:
    """A table of the documents of `--json`; `speed-up`: against the first."""
    first = documents[0]["step_time_s"]
    rows = [_HEAD, *(_row(d, first) for d in documents)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEAD) - 1)]
    return "\n".join(
        "  ".join([*(cell.rjust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]) for row in rows
    )


def _row(d: Mapping[str, Any], first_s: float) -> tuple[str, ...]:
    return (
        f"{d['devices']:,}",
        time_text(d["step_time_s"]),
        f"{first_s / d['step_time_s']:.2f}" if d["step_time_s"] else "",
        "" if d["samples_per_s"] is None else f"{d['samples_per_s']:,.4g}",
        "" if d["mfu"] is None else f"{d['mfu']:.1%}",
        f"{d['peak_memory_bytes'] / 2**30:.1f}",
        d["in_words"],
    )
