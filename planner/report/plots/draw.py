"""Figures by matplotlib, without a screen.  Colours are those of Okabe and Ito, which all kinds of colour vision tell
apart, with markers, dashes and hatches that say the same in print."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from textwrap import wrap
from typing import Any, Final

from planner.errors import InputError

__all__ = ["FORMATS", "SIZES", "drawn"]

FORMATS: Final = ("svg", "png", "pdf")
# Inches, and points of text: a column of a paper, and a slide of 13.3 x 7.5.
SIZES: Final[Mapping[str, tuple[float, float, int]]] = {"paper": (3.5, 2.5, 8), "slide": (10.0, 5.6, 16)}
_COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X")
_DASHES: Final = ("-", "--", "-.", (0, (3, 1, 1, 1, 1, 1)), (0, (5, 1)), (0, (1, 1)), "-")
_CAUSES: Final = {
    "compute": ("#0072B2", ""),
    "recompute": ("#56B4E9", "//"),
    "collectives": ("#D55E00", "\\\\"),
    "unhidden": ("#D55E00", "\\\\"),
    "together": ("#D55E00", "\\\\"),
    "host": ("#F0E442", ".."),
    "offload": ("#CC79A7", "++"),
    "bubble": ("#CCCCCC", ""),
    "optimizer": ("#009E73", "xx"),
    "outside": ("#777777", ""),
}
_PHASES: Final = {
    "forward": "#56B4E9",
    "backward": "#0072B2",
    "recompute": "#CC79A7",
    "weight gradients": "#009E73",
    "once a step": "#E69F00",
}


def drawn(data: Mapping[str, Any], out: Path, size: str = "paper") -> bytes:
    """The figure in the format that the name of `out` ends with; the same data are the same bytes as SVG and PDF.

    InputError where matplotlib is not installed."""
    try:
        import matplotlib as mpl
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as e:
        raise InputError(
            "matplotlib draws figures and is not installed: install the extra (pip install '.[plot]' in the "
            "repository), or take the data with --json"
        ) from e
    import io

    width, height, points = SIZES[size]
    style = {
        "font.size": points,
        "legend.fontsize": points - 1,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.linewidth": points / 12,
        "lines.linewidth": points / 6,
        "lines.markersize": points / 1.6,
        "hatch.linewidth": points / 20,
        "svg.hashsalt": "planner",
        "pdf.fonttype": 42,  # text stays text
        "svg.fonttype": "none",
        "text.parse_math": False,  # a name with $ is no formula
    }
    kind = out.suffix[1:].lower()
    with mpl.rc_context(style):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        _DRAW[data["kind"]](figure, data)
        buffer = io.BytesIO()
        about = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
        figure.savefig(buffer, format=kind, dpi=300 if size == "paper" else 150, metadata=about)
    return buffer.getvalue()


def _scaling(figure: Any, data: Mapping[str, Any]) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    utilised = any(p["mfu"] is not None for s in data["series"] for p in s["points"])
    axes = figure.subplots(1, 2 if utilised else 1, squeeze=False)[0]
    ideal = data["ideal"]
    axes[0].plot(
        [p["devices"] for p in ideal], [p["step_time_s"] for p in ideal], color="#999999", linestyle=":", label="ideal"
    )
    for k, s in enumerate(data["series"]):
        look = {"color": _COLOURS[k % 7], "marker": _MARKERS[k % 7], "linestyle": _DASHES[k % 7]}
        look["label"] = _label(s["name"])
        counts = [p["devices"] for p in s["points"]]
        axes[0].plot(counts, [p["step_time_s"] for p in s["points"]], **look)
        known = [(p["devices"], 100 * p["mfu"]) for p in s["points"] if p["mfu"] is not None]
        if known:
            axes[1].plot([n for n, _ in known], [m for _, m in known], **look)
    for axis, label in zip(axes, ("step (s)", "MFU (%)"), strict=False):
        axis.set_xscale("log", base=2)
        counts = [p["devices"] for p in ideal]
        axis.set_xticks(counts, [f"{n:,}" for n in counts])
        axis.minorticks_off()
        axis.set_xlabel("devices")
        axis.set_ylabel(label)
    axes[0].set_yscale("log")
    axes[0].yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes[0].yaxis.set_major_formatter("{x:g}")
    axes[0].yaxis.set_minor_formatter(NullFormatter())
    axes[0].legend(frameon=False)
    if utilised:
        axes[1].set_ylim(0, 1.1 * axes[1].get_ylim()[1])


def _pareto(figure: Any, data: Mapping[str, Any]) -> None:
    axis = figure.subplots()
    names = list(dict.fromkeys(p["series"] for p in data["points"]))
    for k, devices in enumerate(dict.fromkeys(p["devices"] for p in data["points"])):
        best = [p for p in data["points"] if p["best"] and p["devices"] == devices]
        axis.step(
            [p["peak_memory_bytes"] / 2**30 for p in best],
            [p["step_time_s"] for p in best],
            where="post",
            color="#999999",
            linestyle=":",
            label=None if k else "no other is better in both",
        )
    for k, name in enumerate(names):
        rows = [p for p in data["points"] if p["series"] == name]
        axis.plot(
            [p["peak_memory_bytes"] / 2**30 for p in rows],
            [p["step_time_s"] for p in rows],
            linestyle="none",
            color=_COLOURS[k % 7],
            marker=_MARKERS[k % 7],
            label=_label(name),
        )
    axis.set_xlabel("memory per device (GiB)")
    axis.set_ylabel("step (s)")
    axis.set_ylim(bottom=0)
    axis.legend(frameon=False)


def _breakdown(figure: Any, data: Mapping[str, Any]) -> None:
    axis = figure.subplots()
    plans = data["plans"]
    left = [0.0] * len(plans)
    rows = list(range(len(plans)))
    for cause, name in data["causes"].items():
        colour, hatch = _CAUSES[cause]
        seconds = [p["causes_s"].get(cause, 0.0) for p in plans]
        # Edges are the colour of the hatch; as lines they would hide what is thin.
        axis.barh(rows, seconds, left=left, color=colour, hatch=hatch, edgecolor="white", linewidth=0, label=name)
        left = [x + s for x, s in zip(left, seconds, strict=True)]
    for row, p in zip(rows, plans, strict=True):
        axis.text(p["step_time_s"], row, f" {p['step_time_s']:.4g} s", va="center")
    axis.set_yticks(rows, [_wrapped(p["name"]) for p in plans])
    axis.invert_yaxis()
    axis.margins(x=0.15)
    axis.set_xlabel("step (s)")
    figure.legend(loc="outside upper center", ncols=2, frameon=False)


def _timeline(figure: Any, data: Mapping[str, Any]) -> None:
    axis = figure.subplots()
    shown: dict[str, Any] = {}
    for k, row in enumerate(data["rows"]):
        for phase, colour in _PHASES.items():
            spans = [(b["begin_s"], b["end_s"] - b["begin_s"]) for b in row["bars"] if b["phase"] == phase]
            if spans:
                found = axis.broken_barh(
                    spans, (k - 0.4, 0.8), facecolor=colour, edgecolor="white", linewidth=0.2 if len(spans) < 500 else 0
                )
                shown.setdefault(phase, found)
    axis.set_yticks(range(len(data["rows"])), [r["name"] for r in data["rows"]])
    axis.invert_yaxis()
    axis.set_xlabel("time (s)")
    figure.legend(shown.values(), shown.keys(), loc="outside upper center", ncols=len(shown), frameon=False)


def _label(name: str) -> str:
    """As a legend shows it, which leaves out what begins with an underscore."""
    return f"\u200b{name}" if name.startswith("_") else name


def _wrapped(name: str, width: int = 28, lines: int = 3) -> str:
    return "\n".join(wrap(name, width, max_lines=lines, placeholder=" …"))


_DRAW: Final = {"scaling": _scaling, "pareto": _pareto, "breakdown": _breakdown, "timeline": _timeline}
