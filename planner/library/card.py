"""A plan in a notebook: what it is, and a picture of where time and memory go."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html import escape
from typing import Final

from planner.terminal import plain

__all__ = ["card"]

_WIDTH: Final = 560.0
_HEIGHT: Final = 22
# Okabe and Ito's, told apart by all kinds of colour vision, as in reports.
_COLOURS: Final = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#8A8F98")


def card(title: str, rows: Mapping[str, str], time_s: Mapping[str, float], memory_bytes: Mapping[str, float]) -> str:
    """HTML without scripts; rows without a text are left out."""
    from planner.report.words import memory_text, time_text

    cells = "".join(f"<tr><th>{name}</th><td>{_safe(text)}</td></tr>" for name, text in rows.items() if text)
    pictures = _bar("time", time_s, time_text) + _bar("memory", memory_bytes, memory_text)
    return f'<div class="planner-card"><b>{_safe(title)}</b><table>{cells}</table>{pictures}</div>'


def _bar(what: str, parts: Mapping[str, float], text: Callable[[float], str]) -> str:
    """Shares of a whole, each with its name and size as it is pointed at, and below it."""
    shown = {name: size for name, size in parts.items() if size > 0}
    whole = sum(shown.values())
    if not whole:
        return ""
    boxes, names, x = [], [], 0.0
    for i, (name, size) in enumerate(sorted(shown.items(), key=lambda p: -p[1])):
        colour, width = _COLOURS[min(i, len(_COLOURS) - 1)], _WIDTH * size / whole
        label = _safe(f"{name} {text(size)}")
        boxes.append(
            f'<rect x="{x:.1f}" width="{width:.1f}" height="{_HEIGHT}" fill="{colour}"><title>{label}</title></rect>'
        )
        if size / whole >= 0.01:
            names.append(f'<span style="color: {colour}">&#9632;</span> {label} ({size / whole:.0%})')
        x += width
    svg = (
        f'<svg role="img" aria-label="{what}" viewBox="0 0 {_WIDTH:.0f} {_HEIGHT}" width="{_WIDTH:.0f}" '
        f'height="{_HEIGHT}">{"".join(boxes)}</svg>'
    )
    return f"<div>{what}<br>{svg}<br><small>{' '.join(names)}</small></div>"


def _safe(text: str) -> str:
    return escape(plain(text))
