"""What a configuration or a plan costs, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.report.words import CLOCK_NAMES, MEMORY_NAMES, PART_NAMES, STEP_NAMES, gib_text

__all__ = ["evaluation_text"]


def evaluation_text(d: dict[str, Any]) -> str:
    """`d`: of `evaluated`."""
    from planner.report.rates import rates_text
    from planner.requests.headline import extrapolation

    step = f"  step           {d['step_time_s']:.4g} s"
    if d["step_time_interval_s"] is not None:
        low, high = d["step_time_interval_s"]
        step += f"  (80 % between {low:.4g} and {high:.4g} s)"
    lines = [
        f"{d['strategy']} on {d['devices']} x {d['hardware']}, batch {d['batch']}",
        f"  plan           {d['in_words']}",
        f"  configuration  {d['configuration']}",
        step,
    ]
    done = rates_text(d)
    if done:
        lines.append(f"                 {done}")
    lines += extrapolation(d["extrapolated"], "  extrapolated   ")
    total = d["step_time_s"]
    if "objective_s" in d:  # of a plan: its parts one after the other, where the step lets them overlap
        lines += _parts(d["step_parts_s"], STEP_NAMES, total)
        for number, stage in enumerate(d["stages"]):
            passes = f"{stage['forward_s']:.4g} s forward, {stage['backward_s']:.4g} s backward"
            lines.append(f"  stage {number:<8} {passes}, {gib_text(stage['peak_memory_bytes'])}")
        total = d["objective_s"]
        one = " of a micro-batch" if d["micro_batches"] > 1 else ""
        lines.append(f"  objective      {total:.4g} s{one}, with nothing overlapped")
    lines += _parts(d["breakdown_s"], {**CLOCK_NAMES, **PART_NAMES}, total)
    limit = d["memory_limit_bytes"]
    limit_text = "" if limit is None else f" of {gib_text(limit)}" + ("" if d["fits"] else ": DOES NOT FIT")
    lines.append(f"  memory         {gib_text(d['peak_memory_bytes'])}{limit_text}")
    for name, size in d["memory_bytes"].items():
        if size > 0:
            lines.append(f"    {MEMORY_NAMES.get(name, name):30} {gib_text(size):>14}")
    for kind, traffic in d.get("collectives", {}).items():
        lines.append(f"  {kind.replace('_', '-'):14} {traffic['count']} x, {gib_text(traffic['bytes'])}")
    if "planned" in d:
        p = d["planned"]
        lines.append(
            f"  as planned     {p['step_time_s']:.4g} s, {gib_text(p['peak_memory_bytes'])} on {p['hardware']}"
        )
    return "\n".join(lines)


def _parts(seconds: Mapping[str, float], names: Mapping[str, str], total: float) -> list[str]:
    return [f"    {names.get(name, name):30} {s:10.4g} s  {s / total:6.1%}" for name, s in seconds.items() if s > 0]
