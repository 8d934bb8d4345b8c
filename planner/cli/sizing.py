"""The answers for several counts of devices beside each other, to choose the size of a cluster by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from planner.report.words import time_text

__all__ = ["sizing"]

_HEAD: Final = ("devices", "step", "speed-up", "efficiency", "samples/s", "MFU", "GiB", "plan")


def sizing(documents: Sequence[Mapping[str, Any]]) -> str:
    """A table of the documents of `--json`; `speed-up`: against the first; `efficiency`: as a share of what so many
    times the devices could give at most."""
    rows = [_HEAD, *(_row(d, documents[0]) for d in documents)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEAD) - 1)]
    return "\n".join(
        "  ".join([*(cell.rjust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]) for row in rows
    )


def _row(d: Mapping[str, Any], first: Mapping[str, Any]) -> tuple[str, ...]:
    faster = first["step_time_s"] / d["step_time_s"] if d["step_time_s"] else None
    return (
        f"{d['devices']:,}",
        time_text(d["step_time_s"]),
        "" if faster is None else f"{faster:.2f}",
        "" if faster is None else f"{faster * first['devices'] / d['devices']:.0%}",
        "" if d["samples_per_s"] is None else f"{d['samples_per_s']:,.4g}",
        "" if d["mfu"] is None else f"{d['mfu']:.1%}",
        f"{d['peak_memory_bytes'] / 2**30:.1f}",
        d["in_words"],
    )
