"""The difference of two plans for a terminal, in one screen; every group of changes is in `details`."""

from __future__ import annotations

from collections.abc import Sequence

from planner.planning.document import PlanDocument
from planner.report.diff.batch import samples
from planner.report.diff.details import found_lines
from planner.report.diff.model import Diff
from planner.report.diff.summary import MOST_RULES, Clock, Row, Summary, summary
from planner.report.diff.words import aligned, printable

__all__ = ["Names", "headline", "in_words", "role_text", "text"]

Names = tuple[str, str]
_WIDTH = 118
_SCREEN = 40  # lines
_LONG = 310  # characters of one entry
_BAR = 24
_SETTINGS = 4
_SETTING = "different settings  "
_NOTES = 4
_ROLES = 5


def text(
    d: Diff, names: Names = ("A", "B"), *, words: Names = ("", ""), clocks: tuple[Clock, Clock] = (None, None)
) -> str:
    """`names`: what the plans are called; `words`: each plan in degrees of parallelism; `clocks`: of `summary`."""
    lines = _heads(d, names, words)
    if d.identical:
        return "\n".join([*lines, "identical", *found_lines(d)])
    for most in range(MOST_RULES, -1, -1):
        s = summary(d, clocks, most)
        body = [*_totals(d, s), *_changes(d, s), *_settings(s)]
        if len(lines) + len(body) <= _SCREEN:
            break
    else:
        body = [*_totals(d, s, short=True), *_changes(d, s), *_settings(s, short=True)]
    if len(lines) + len(body) > _SCREEN:
        lines = _heads(d, names, words, short=True)
    return "\n".join([*lines, *body])


def _totals(d: Diff, s: Summary, *, short: bool = False) -> list[str]:
    notes = [line for n in d.warnings[:_NOTES] for line in _folded("note: ", n, short=short)]
    return [*notes, "", *aligned(("", "A", "B", "B - A", ""), [_cells(r) for r in s.totals]), "", *_causes(s)]


def _settings(s: Summary, *, short: bool = False) -> list[str]:
    if not s.settings:
        return []
    lines = ["", *(line for x in s.settings[:_SETTINGS] for line in _folded(_SETTING, x, short=short))]
    more = len(s.settings) - _SETTINGS
    return [*lines, f"{' ' * len(_SETTING)}and {more} more (--details)"] if more > 0 else lines


def headline(p: PlanDocument) -> str:
    """What the plan is of."""
    s, count = p.schedule, samples(p)
    batch = "" if count is None else f", batch {count:,}"
    return (
        f"{printable(p.model.name)}: {s.mode}, {s.precision}{batch}, {p.cluster.devices:,} x "
        f"{printable(p.cluster.hardware)}"
    )


def in_words(p: PlanDocument, words: str) -> str:
    """How the plan divides the work: `words`, or its mesh and stages."""
    stages = f"{p.schedule.stages} stages, " if p.schedule.stages > 1 else ""
    return printable(words or f"{stages}mesh {p.mesh}", 160)


def _heads(d: Diff, names: Names, words: Names, *, short: bool = False) -> list[str]:
    """What both are of once, where it is the same; `short`: in a line each."""
    about = headline(d.a), headline(d.b)
    width = max(len(printable(n)) for n in names)
    lines = [about[0]] if about[0] == about[1] else []
    for k, p, name, word, of in zip("AB", (d.a, d.b), names, words, about, strict=True):
        own = "" if lines and lines[0] == of else f"{of}, "
        lines += _folded(f"{k}  {printable(name):{width}}  ", f"{own}{in_words(p, word)}", short=short)
    return lines


def _cells(r: Row) -> tuple[str, ...]:
    return r.name, r.a, r.b, r.delta, r.relative


def _causes(s: Summary) -> list[str]:
    """The step by cause as a table that adds up, the largest difference first, with bars."""
    most = max((abs(r.amount) for r in s.causes), default=0)
    rows = [(*_cells(r)[:4], _bar(r.amount, most)) for r in s.causes]
    head = (f"step by cause ({s.unit})", "A", "B", "B - A", "")
    return aligned(head, [*rows, *([_cells(s.alike)] if s.alike else []), _cells(s.step)])


def _bar(amount: int, most: int) -> str:
    length = round(_BAR * abs(amount) / most) if most else 0
    return f"{'-' if amount < 0 else '+'}{'█' * max(1, length)}"


def _changes(d: Diff, s: Summary) -> list[str]:
    if not s.changes:
        return []
    changed = len({p for g in d.groups for p in g.operators})
    of = f"{changed:,} of {len(d.matching.pairs):,} operators"
    head = f"changes ({s.unit} of a step, before anything is hidden): {of}"
    width = max(len(c.delta) for c in s.changes)
    lines = ["", head]
    for c in s.changes:
        count = f"{c.operators:,} x " if c.operators else ""
        roles = f"{role_text(c.roles)}: " if c.roles else ""
        lines += _folded(f"  {c.delta:>{width}}  ", f"{count}{roles}{c.text}")
    return [*lines, f"  {s.step.delta:>{width}}  step"]


def role_text(roles: Sequence[tuple[str, int]], most: int = _ROLES) -> str:
    names = ", ".join(printable(r, 40) for r, _ in roles[:most])
    return names + (f" and {len(roles) - most} more" if len(roles) > most else "")


def _folded(head: str, body: str, *, short: bool = False) -> list[str]:
    """In as many lines as it needs, broken between words; `short`: as much as one line holds."""
    if short:
        return [head + printable(body, max(1, _WIDTH - len(head)))]
    lines, line = [], head
    for word in printable(body, _LONG).split(" "):
        if len(line) + len(word) + 1 > _WIDTH and line.strip():
            lines.append(line)
            line = " " * len(head)
        line += word if line.endswith(" ") or not line else f" {word}"
    return [*lines, line]
