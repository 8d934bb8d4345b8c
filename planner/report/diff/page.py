"""Two plans as one HTML page, side by side."""

from __future__ import annotations

from collections.abc import Sequence

from planner.planning import PlanDocument
from planner.report.diff.document import document
from planner.report.diff.model import Diff, diff
from planner.report.diff.reasons import remainder_reason, same_reason
from planner.report.diff.summary import Clock, pins_text, summary
from planner.report.diff.text import Names, headline, in_words, text
from planner.report.diff.verdict import other_work
from planner.report.figures import figures
from planner.report.html import page
from planner.report.html.data import page_data
from planner.report.tree import Tree, alike
from planner.report.view import View, view

__all__ = ["diff_html", "page_of", "views"]


def diff_html(a: PlanDocument, b: PlanDocument) -> str:
    """The difference as a page that needs nothing else."""
    return page_of(diff(a, b))


def page_of(
    d: Diff,
    names: Names | None = None,
    *,
    words: Names = ("", ""),
    clocks: tuple[Clock, Clock] = (None, None),
) -> str:
    """`names`: what the plans are called, besides A and B; `words`, `clocks` as of `text`."""
    first, second = views(d)
    diff_data = document(d, clocks) | {"same_reason": same_reason(d), "remainder_reason": remainder_reason(d)}
    diff_data["warnings"] = list(d.warnings)
    diff_data["other_work"] = other_work(d, summary(d, clocks))
    diff_data["settings"] = _settings(d)
    diff_data["heads"] = {k: [headline(p), in_words(p, w)] for k, p, w in zip("ab", (d.a, d.b), words, strict=True)}
    if names is not None:
        diff_data["names"] = {"a": names[0], "b": names[1]}
    data = {
        "a": page_data(first),
        "b": page_data(second),
        "diff": diff_data,
        "partner": _partners(d, first.tree, second.tree),
    }
    title = (
        f"{d.a.model.name}: two plans" if d.a.model.name == d.b.model.name else f"{d.a.model.name}, {d.b.model.name}"
    )
    return page("diff", title, data, text(d, names or ("A", "B"), words=words, clocks=clocks))


def _settings(d: Diff) -> list[dict[str, str]]:
    """As in the document, but for pins, of which a configuration has one for every operator: they are counted."""
    rows = [{"what": s.what, "a": s.a, "b": s.b} for s in d.settings if s.what != "pin"]
    texts = [pins_text(p) for p in (d.a, d.b)]
    return [*rows, {"what": "pins", "a": texts[0], "b": texts[1]}] if len(rows) < len(d.settings) else rows


def views(d: Diff) -> tuple[View, View]:
    """Blocks stand together where they are alike in both plans, so that both pictures have the same boxes."""
    equal = [dict(zip(p.operators, alike(p, figures(p)), strict=True)) for p in (d.a, d.b)]
    pairs = d.matching.pairs
    return (
        view(d.a, {here: equal[1][there] for here, there in pairs}),
        view(d.b, {there: equal[0][here] for here, there in pairs}),
    )


def _partners(d: Diff, a: Tree, b: Tree) -> Sequence[int]:
    """Node of A → of B with the operators that correspond to its own; -1 for none."""
    partner = dict(d.matching.pairs)
    there = {i: b.number[partner[n]] for i, n in enumerate(a.operators) if n in partner}
    groups: dict[tuple[int, ...], list[int]] = {}
    for j, node in enumerate(b.nodes):
        if node.children:
            groups.setdefault(node.operators, []).append(j)
    out = []
    for i, node in enumerate(a.nodes):
        if node.kind == "operator":
            out.append(there.get(i, -1))
        elif node.kind == "input":
            out.append(b.number.get(node.title, -1))
        else:
            found = groups.get(tuple(sorted(there.get(k, -1) for k in node.operators)), [])
            same = [j for j in found if b.nodes[j].kind == node.kind]
            out.append((same or found or [-1])[0])
    out[a.root] = b.root
    return out
