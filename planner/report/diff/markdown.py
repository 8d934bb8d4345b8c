"""The difference of two plans as Markdown, for the comment below a pull request.

Names of models are text there: what Markdown or HTML would obey is escaped.  GitHub looks for people (`@name`),
references (`#12`, `GH-12`) and pictures (`:name:`) in what was rendered, where nothing is left of an escape: an empty
comment parts these, which nobody sees.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from planner.report.diff.details import details
from planner.report.diff.model import Diff
from planner.report.diff.summary import Clock, Row, Summary, summary
from planner.report.diff.text import Names, headline, in_words, role_text
from planner.report.diff.verdict import other_work
from planner.report.diff.words import printable

__all__ = ["markdown"]

_OBEYED = re.compile(r"([\\`*_{}\[\]<>()#+\-.!|~@&:$])")
_CALLING = re.compile(r"([@#:]|(?<=gh)-)(?=\w)", re.IGNORECASE)
_PARTED = "\0"  # is in no printable text
_CELLS = ("A", "B", "B - A")
_GROUPS = 10


def markdown(
    d: Diff, names: Names = ("A", "B"), *, words: Names = ("", ""), clocks: tuple[Clock, Clock] = (None, None)
) -> str:
    """Arguments as of `text`."""
    lines = []
    for k, p, name, word in zip("AB", (d.a, d.b), names, words, strict=True):
        lines.append(f"- **{k}** {escaped(name)}: {escaped(headline(p))}, **{escaped(in_words(p, word))}**")
    if d.identical:
        return "\n".join([*lines, "", "The plans are identical."])
    s = summary(d, clocks)
    lines += ["", f"**{_verdict(d, s)}**", ""]
    lines += [f"> {escaped(n)}\n" for n in d.warnings]
    lines += [*_table("", [*s.totals]), ""]
    causes = [*s.causes, *([s.alike] if s.alike else [])]
    lines += [*_table(f"step by cause ({s.unit})", causes, s.step), ""]
    if s.changes:
        lines += [f"| {s.unit} of a step | changes, before anything is hidden |", "|---:|---|"]
        for c in s.changes:
            count = f"{c.operators:,} × " if c.operators else ""
            roles = f"{role_text(c.roles)}: " if c.roles else ""
            lines.append(f"| {escaped(c.delta)} | {escaped(f'{count}{roles}{c.text}')} |")
        lines += [f"| **{escaped(s.step.delta)}** | **step** |", ""]
    lines += [f"- {escaped(x)}" for x in s.settings]
    lines += ["", "<details><summary>All figures</summary>", ""]
    lines += [f"    {line}" for line in details(d, _GROUPS).splitlines()]
    return "\n".join([*lines, "", "</details>"])


def escaped(text: str) -> str:
    """As Markdown that shows the text itself, and that GitHub takes for nothing else."""
    parted = _CALLING.sub(rf"\1{_PARTED}", printable(text, 400))
    return _OBEYED.sub(r"\\\1", parted).replace(_PARTED, "<!-- -->")


def _verdict(d: Diff, s: Summary) -> str:
    other = other_work(d, s)
    if other:
        return f"{escaped(other)}."
    if not s.step.amount:
        return "A step takes as long as before."
    faster = "slower" if s.step.amount > 0 else "faster"
    relative = f" ({escaped(s.step.relative)})" if s.step.relative else ""
    return f"A step is {escaped(s.step.delta.lstrip('+-'))} {s.unit} {faster}{relative}."


def _table(title: str, rows: Sequence[Row], total: Row | None = None) -> list[str]:
    lines = [f"| {escaped(title)} | {' | '.join(_CELLS)} | |", "|---|---:|---:|---:|---:|"]
    lines += [f"| {escaped(r.name)} | {' | '.join(map(escaped, (r.a, r.b, r.delta, r.relative)))} |" for r in rows]
    if total is not None:
        cells = (total.name, total.a, total.b, total.delta, total.relative)
        lines.append("| " + " | ".join(f"**{escaped(c)}**" if c else "" for c in cells) + " |")
    return lines
