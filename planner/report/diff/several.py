"""Several plans beside one baseline, as a table: the step by cause, memory and what a device sends."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planner.planning.document import PlanDocument
from planner.report.causes import CAUSE_NAMES, comparable, picoseconds, step_causes
from planner.report.diff.batch import samples
from planner.report.diff.markdown import escaped
from planner.report.diff.model import Diff
from planner.report.diff.text import headline, in_words
from planner.report.diff.words import aligned, decimals_of, percent, printable
from planner.report.html import page
from planner.report.rounded import columns, scale
from planner.report.wire import sent_bytes

__all__ = ["Column", "several", "several_document", "several_html", "several_markdown"]

SCHEMA = "planner.diffs/1"


@dataclass(frozen=True, slots=True)
class Column:
    """A plan of the table: what it is called, in words, and the parts of its step by the clock, where it does not say
    them itself."""

    plan: PlanDocument
    name: str
    words: str = ""
    clock: Mapping[str, float] | None = None


def several(plans: Sequence[Column], identical: Sequence[bool] = ()) -> str:
    """The first is the baseline; `identical`: whether each of the others is identical to it."""
    lines = [headline(plans[0].plan)]
    width = max(len(printable(c.name)) for c in plans)
    for letter, c in _lettered(plans):
        about = headline(c.plan)
        own = "" if about == lines[0] else f"{about}, "
        lines.append(printable(f"{letter}  {printable(c.name):{width}}  {own}{in_words(c.plan, c.words)}", 200))
    head, rows = _rows(plans, identical)
    table = aligned([*head, ""], [[*r, ""] for r in rows])
    return "\n".join([*lines, "", *table])


def several_markdown(plans: Sequence[Column], identical: Sequence[bool] = ()) -> str:
    lines = []
    for letter, c in _lettered(plans):
        lines.append(
            f"- **{letter}** {escaped(c.name)}: {escaped(headline(c.plan))}, **{escaped(in_words(c.plan, c.words))}**"
        )
    head, rows = _rows(plans, identical)
    lines += ["", f"| {' | '.join(map(escaped, head))} |", "|---|" + "---:|" * (len(head) - 1)]
    return "\n".join([*lines, *(f"| {' | '.join(map(escaped, r))} |" for r in rows)])


def several_html(plans: Sequence[Column], identical: Sequence[bool] = ()) -> str:
    """The same as a page that needs nothing else."""
    causes = comparable(step_causes(c.plan, c.clock) for c in plans)
    (unit, *_), rows = _rows(plans, identical)
    by_name = {r[0]: r[1:] for r in rows}
    names = {CAUSE_NAMES[c]: c for c in causes[0]}
    about = headline(plans[0].plan)
    relative = rows[[r[0] for r in rows].index("against base") + 1][1:]
    listed = []
    for k, column in enumerate(plans):
        own = headline(column.plan)
        listed.append(
            {
                "name": column.name,
                "words": in_words(column.plan, column.words),
                "about": "" if own == about else own,
                "causes": [
                    {
                        "key": c,
                        "label": name,
                        "text": by_name.get(name, ["0"] * len(plans))[k],
                        "seconds": causes[k][c] / 1e12,
                    }
                    for name, c in names.items()
                ],
                "step": by_name["step"][k],
                "delta": by_name["against base"][k],
                "relative": relative[k],
                "rate": by_name.get("samples/s", [""] * len(plans))[k],
                "memory": by_name["memory per device (GiB)"][k],
                "sent": by_name["sent per device (GiB)"][k],
            }
        )
    model = plans[0].plan.model.name
    data = {
        "headline": about,
        "unit": unit.removeprefix("step by cause (").removesuffix(")"),
        "rates": "samples/s" in by_name,
        "plans": listed,
    }
    return page("several", f"{model}: {len(plans)} plans", data, several(plans, identical))


def several_document(plans: Sequence[Column], diffs: Sequence[Diff]) -> dict[str, Any]:
    """Figures of every plan, and how it differs from the first; `diffs`: of the others, in their order."""
    causes = comparable(step_causes(c.plan, c.clock) for c in plans)
    base = picoseconds(plans[0].plan.cost.step_time_s)
    out = []
    for k, (column, parts) in enumerate(zip(plans, causes, strict=True)):
        p = column.plan
        out.append(
            {
                "plan": column.name,
                "words": column.words,
                "step_time_s": p.cost.step_time_s,
                "delta_s": (picoseconds(p.cost.step_time_s) - base) / 1e12,
                "causes_s": {c: n / 1e12 for c, n in parts.items()},
                "peak_memory_bytes": p.cost.peak_memory_bytes,
                "sent_bytes": sent_bytes(p),
                "identical": True if k == 0 else diffs[k - 1].identical,
            }
        )
    return {"schema": SCHEMA, "plans": out}


def _lettered(plans: Sequence[Column]) -> list[tuple[str, Column]]:
    return [("base" if k == 0 else f"{k:<4}", c) for k, c in enumerate(plans)]


def _rows(plans: Sequence[Column], identical: Sequence[bool]) -> tuple[list[str], list[list[str]]]:
    """Heads and rows of texts; causes add up to the step in every column as printed."""
    causes = comparable(step_causes(c.plan, c.clock) for c in plans)
    steps = [sum(c.values()) for c in causes]
    s = scale(max(steps), min((abs(x - steps[0]) for x in steps if x != steps[0]), default=0))
    printed_causes = columns([[*c.values()] for c in causes], s.quantum)
    counts = [dict(zip(c, n, strict=True)) for c, n in zip(causes, printed_causes, strict=True)]
    printed = [sum(c.values()) for c in counts]
    head = [f"step by cause ({s.unit})", *("base" if k == 0 else str(k) for k in range(len(plans)))]
    rows = [[CAUSE_NAMES[c], *(s.text(x[c]) for x in counts)] for c in counts[0] if any(x[c] for x in counts)]
    rows.append(["step", *map(s.text, printed)])
    rows.append(["against base", "", *(s.text(x - printed[0], sign=True) for x in printed[1:])])
    same = ["identical" if x else "equal" for x in identical] or ["equal"] * len(printed[1:])
    rows.append(["", "", *(percent(printed[0], x) or word for x, word in zip(printed[1:], same, strict=True))])
    rates = [_rate(c.plan) for c in plans]
    if any(rates):
        rows.append(["samples/s", *rates])
    rows.append(["memory per device (GiB)", *(f"{c.plan.cost.peak_memory_bytes / 2**30:.2f}" for c in plans)])
    rows.append(["sent per device (GiB)", *(f"{sum(sent_bytes(c.plan).values()) / 2**30:.2f}" for c in plans)])
    return head, rows


def _rate(p: PlanDocument) -> str:
    count = samples(p)
    if not count or p.cost.step_time_s <= 0:
        return ""
    rate = count / p.cost.step_time_s
    return f"{rate:,.{max(1, decimals_of(rate))}f}" if math.isfinite(rate) else ""
