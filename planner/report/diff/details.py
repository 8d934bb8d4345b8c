"""Every figure of a Diff for a terminal: tables of both plans, and groups of equal changes, largest effect first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from planner.report.diff.groups import Group, moved
from planner.report.diff.ledger import Bill, total
from planner.report.diff.model import Diff
from planner.report.diff.reasons import remainder_reason, same_reason
from planner.report.diff.settings import Setting
from planner.report.diff.tables import collectives, memory, places, totals
from planner.report.diff.traits import Word
from planner.report.diff.words import PART_NAMES, aligned, percent, printable, signed, some
from planner.report.words import memory_text as size
from planner.report.words import time_text as seconds

__all__ = ["details", "found_lines"]

_WIDTH = 130
_PAIRS = 4
_ROWS = 10  # of settings and the like
_LAYOUTS = ("operands", "results", "gradients")
_TRAITS = {"parameters": "stored", "inner": "inside"}
_TITLES = {
    "objective_s": "objective",
    "objective_lower_bound_s": "lower bound",
    "gap": "gap",
    "step_time_s": "simulated step",
    "peak_memory_bytes": "memory a device",
}


def details(d: Diff, most: int = 10) -> str:
    """`most`: groups shown.  Of a pipeline the objective and its parts are those of one micro-batch."""
    lines = [f"note: {n}" for n in d.notes if n not in d.warnings]
    lines += [*_totals(d), *_settings("different settings", d.settings), *_settings("other facts", d.others)]
    lines += ["", *_parts(d), *_memory(d), *_collectives(d), *_places(d), "", *_changes(d, most)]
    return "\n".join([*lines, *found_lines(d)])


def found_lines(d: Diff) -> list[str]:
    """How the plans were found and proved, where that is not the same."""
    return _settings("different results", d.found)


def _totals(d: Diff) -> list[str]:
    first, second = totals(d.a), totals(d.b)
    rows = []
    for k, title in _TITLES.items():
        x, y = first[k], second[k]
        if k == "gap":
            cells, change, relative = (f"{x:.4%}", f"{y:.4%}"), signed(f"{100 * (y - x):.4g} points"), ""
        elif k == "peak_memory_bytes":
            cells, change = (f"{x} ({size(x)})", f"{y} ({size(y)})"), signed(size(y - x))
            relative = percent(x, y)
        else:
            cells = (f"{x!r} s", f"{y!r} s")
            change, relative = f"{y - x:+.12g} s", percent(x, y)
        rows.append((title, *cells, change, relative))
    return aligned(("", "A", "B", "B - A", ""), rows)


def _parts(d: Diff) -> list[str]:
    rows = []
    for p, (x, y) in d.parts.items():
        if x or y:
            cells = (seconds(d.seconds(x)), seconds(d.seconds(y)), signed(seconds(d.seconds(y - x))))
            rows.append((PART_NAMES.get(p, printable(p)), *cells, percent(x, y)))
    return aligned(("objective by part", "A", "B", "B - A", ""), rows)


def _memory(d: Diff) -> list[str]:
    first, second = memory(d.a), memory(d.b)
    rows = []
    for k in {**first, **second}:
        x, y = first.get(k), second.get(k)
        cells = [size(n) if n is not None else "not stated" for n in (x, y)]
        name = printable(k.replace("_", " "))
        if x is None or y is None:
            rows.append((name, *cells, "", ""))
        elif x or y:
            rows.append((name, *cells, signed(size(y - x)), percent(x, y)))
    return ["", *aligned(("memory by kind", "A", "B", "B - A", ""), rows)] if rows else []


def _collectives(d: Diff) -> list[str]:
    rows = []
    for k, (x, y) in collectives(d).items():
        cells = (f"{x.count} x, {size(x.bytes)}", f"{y.count} x, {size(y.bytes)}")
        rows.append((printable(k), *cells, signed(size(y.bytes - x.bytes)), percent(x.bytes, y.bytes)))
    return ["", *aligned(("collectives", "A", "B", "B - A", ""), rows)] if rows else []


def _places(d: Diff) -> list[str]:
    found = places(d)
    if len(found) < 2:
        return []
    rows = []
    for p in found:
        title = f"{p.blocks} x block of {p.size} operators" if p.blocks else f"outside, {p.size} operators"
        x, y = p.a.units, p.b.units
        cells = [seconds(d.seconds(n)) for n in (x, y)]
        rows.append((title, *cells, signed(seconds(d.seconds(y - x))), percent(x, y)))
    return ["", *aligned(("objective by place", "A", "B", "B - A", ""), rows)]


def _changes(d: Diff, most: int) -> list[str]:
    count = sum(len(g.operators) for g in d.groups)
    held = sum(1 for g in d.groups if any(c.trait == "parameters" for c in g.changes) for _ in g.parameters)
    lines = [
        f"changes: {count} of {len(d.matching.pairs)} operators in {len(d.groups)} groups, {held} parameters stored "
        "otherwise; B - A of the objective"
    ]
    away = moved(d.groups)
    shown = [g for i, g in enumerate(d.groups) if i not in away]
    for g in shown[:most]:
        lines += _group(d, g)
    rest = shown[most:]
    if rest:
        change = total(g.delta for g in rest)
        lines.append(f"{_delta(d, change)}  {len(rest)} more groups, {sum(len(g.operators) for g in rest)} operators")
    pairs = [(d.groups[i], d.groups[j]) for i, j in away.items() if d.groups[i].delta.units < 0]
    if pairs:
        lines.append(f"{'0 s':>12}  {len(pairs)} pairs of groups that cancel: the same on another operator")
    for g, h in pairs[:_PAIRS]:
        size_of = seconds(d.seconds(h.delta.units))
        where = [f"{printable(x.type)}  {printable(x.place, 44)}" for x in (g, h)]
        lines.append(f"{'':14}{len(g.operators)} x {size_of} of {where[0]} -> {where[1]}")
    if d.same:
        change = total(s.b - s.a for s in d.same)
        operators = sum(len(s.operators) for s in d.same)
        types = [f"{printable(s.type)} {signed(seconds(d.seconds((s.b - s.a).units)))}" for s in d.same[:4]]
        lines.append(f"{_delta(d, change)}  {operators} operators that do the same, {same_reason(d)}")
        lines.append(f"{'':14}{', '.join(types)}{', …' if len(d.same) > 4 else ''}")
    for title, names, bill in (
        ("A", d.matching.only_a, Bill() - d.only_a),
        ("B", d.matching.only_b, d.only_b),
    ):
        if names:
            lines.append(f"{_delta(d, bill)}  {len(names)} operators in {title} alone: {some(names)}")
    if any(d.loose[0].values()) or any(d.loose[1].values()):
        lines.append(f"{_delta(d, d.loose[1] - d.loose[0])}  of tensors that no operator makes or reads")
    if d.remainder_units or d.remainder:
        lines.append(f"{_units(d, d.remainder_units)}  {remainder_reason(d)}")
    lines.append(f"{_units(d, d.objective_units)}  in all")
    return lines


def _group(d: Diff, g: Group) -> list[str]:
    pad = " " * 14
    lines = [f"{_delta(d, g.delta)}  {len(g.operators)} x {printable(g.type)}  {printable(g.place, 80)}"]
    strategy = any(c.trait == "strategy" for c in g.changes)
    for c in g.changes:
        if strategy and c.trait in _LAYOUTS:
            continue
        gone, come = Counter(c.before), Counter(c.after)
        if c.trait in _LAYOUTS:
            before, after = ("  ".join(w.text for w in x) for x in (c.before, c.after))
        else:
            before, after = (_joined(x - y) for x, y in ((gone, come), (come, gone)))
            if before == after:  # what differs is in the details
                before, after = ("; ".join(map(str, x - y)) for x, y in ((gone, come), (come, gone)))
        title = "" if c.trait == "strategy" else f"{_TRAITS.get(c.trait, c.trait)} "
        line = f"{pad}{title}{before} -> {after}"
        if len(line) <= _WIDTH:
            lines.append(line)
        else:
            lines += [printable(f"{pad}{title}{before}", _WIDTH), printable(f"{pad}-> {after}", _WIDTH)]
    effects = []
    if g.delta.bytes_moved:
        effects.append(f"{signed(size(g.delta.bytes_moved))} moved")
    if g.delta.parameter_bytes:
        effects.append(f"{signed(size(g.delta.parameter_bytes))} of parameters a device")
    parts = [(p, getattr(g.delta, p)) for p in PART_NAMES]
    parts = sorted(((p, n) for p, n in parts if n), key=lambda x: -abs(x[1]))
    if len(parts) > 1:
        effects += [f"{PART_NAMES[p]} {signed(seconds(d.seconds(n)))}" for p, n in parts[:3]]
    return lines + ([pad + "; ".join(effects)] if effects else [])


def _joined(words: Counter[Word]) -> str:
    """Equal words counted; what they are of is the detail that is left out."""
    counts = Counter[str]()
    for word, n in words.items():
        counts[word.text] += n
    return "; ".join(f"{n} x {t}" if n > 1 else t for t, n in counts.items()) or "none"


def _delta(d: Diff, bill: Bill) -> str:
    return _units(d, bill.units)


def _units(d: Diff, units: int) -> str:
    return f"{signed(seconds(d.seconds(units))):>12}"


def _settings(title: str, rows: Sequence[Setting]) -> list[str]:
    if not rows:
        return []
    lines = [f"  {printable(r.what)}: {printable(r.a) or 'none'} -> {printable(r.b) or 'none'}" for r in rows[:_ROWS]]
    return ["", title, *lines, *([f"  and {len(rows) - _ROWS} more"] if len(rows) > _ROWS else [])]
