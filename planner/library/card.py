"""A plan in a notebook: what it is, and a picture of where time and memory go."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING, Final

from planner.terminal import plain

if TYPE_CHECKING:
    from planner.library.plan import Plan

__all__ = ["card"]

_WIDTH: Final = 560.0
_HEIGHT: Final = 22
# Okabe and Ito's, told apart by all kinds of colour vision, as in reports.
_COLOURS: Final = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#8A8F98")


def card(plan: Plan) -> str:
    """HTML without scripts; the whole report is `plan.report()`."""
    from planner.report.words import MEMORY_NAMES, PART_NAMES, memory_text, time_text

    cost = plan.document.cost
    limit = "" if plan.memory_limit is None else f" of {memory_text(plan.memory_limit)}"
    rates = []
    if plan.samples_per_s is not None:
        rates.append(f"{plan.samples_per_s:,.4g} samples/s")
    if plan.tokens_per_s is not None:
        rates.append(f"{plan.tokens_per_s:,.0f} tokens/s")
    if plan.mfu is not None:
        rates.append(f"MFU {plan.mfu:.1%}")
    rows = {
        "plan": plan.parallelism,
        "step": f"{time_text(plan.step_time)}, at least {time_text(plan.lower_bound)}: gap {plan.gap:.2%}",
        "rate": ", ".join(rates),
        "memory": f"{memory_text(plan.memory)}{limit} per device",
        "verified": "" if plan.verification == "none" else plan.verification,
        "note": "; ".join((*plan.messages, *(["the search was cancelled"] if plan.cancelled else []))),
    }
    cells = "".join(f"<tr><th>{k}</th><td>{_safe(v)}</td></tr>" for k, v in rows.items() if v)
    batch = "" if plan.batch is None else f", batch {plan.batch:,}"
    mode = plan.document.schedule.mode
    parts = cost.step_parts_s or cost.parts_s
    pictures = _bar("time", {PART_NAMES.get(k, k): s for k, s in parts.items()}, time_text)
    pictures += _bar("memory", {MEMORY_NAMES.get(k, k): float(s) for k, s in cost.memory_bytes.items()}, memory_text)
    title = f"{plan.name}: {mode} on {plan.devices:,} x {plan.hardware}{batch}, {plan.document.schedule.precision}"
    return f'<div class="planner-card"><b>{_safe(title)}</b><table>{cells}</table>{pictures}</div>'


def _bar(what: str, parts: Mapping[str, float], text: object) -> str:
    """Shares of a whole, each with its name and size as it is pointed at, and below it."""
    assert callable(text)
    shown = {name: size for name, size in parts.items() if size > 0}
    whole = sum(shown.values())
    if not whole:
        return ""
    boxes, names, x = [], [], 0.0
    for i, (name, size) in enumerate(sorted(shown.items(), key=lambda p: -p[1])):
        colour, width = _COLOURS[min(i, len(_COLOURS) - 1)], _WIDTH * size / whole
        told = _safe(f"{name} {text(size)}")
        boxes.append(
            f'<rect x="{x:.1f}" width="{width:.1f}" height="{_HEIGHT}" fill="{colour}"><title>{told}</title></rect>'
        )
        if size / whole >= 0.01:
            names.append(f'<span style="color: {colour}">&#9632;</span> {told} ({size / whole:.0%})')
        x += width
    svg = (
        f'<svg role="img" aria-label="{what}" viewBox="0 0 {_WIDTH:.0f} {_HEIGHT}" width="{_WIDTH:.0f}" '
        f'height="{_HEIGHT}">{"".join(boxes)}</svg>'
    )
    return f"<div>{what}<br>{svg}<br><small>{' '.join(names)}</small></div>"


def _safe(text: str) -> str:
    return escape(plain(text))
