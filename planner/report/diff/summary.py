"""The difference of two plans in one screen: totals, the step by cause, changes by rule.

All times are seconds of a step in one unit, and every column adds up as it is printed (`planner.report.rounded`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from planner.planning.document import PlanDocument
from planner.report.causes import CAUSE_NAMES, comparable, step_causes
from planner.report.diff.batch import samples
from planner.report.diff.ledger import Bill, total
from planner.report.diff.model import Diff
from planner.report.diff.reasons import same_reason
from planner.report.diff.rules import Rule, rules
from planner.report.diff.words import decimals_of, percent
from planner.report.diff.work import Work
from planner.report.rounded import Scale, columns, rounded, scale
from planner.report.wire import sent_bytes
from planner.report.words import memory_text

__all__ = ["MOST_RULES", "Change", "Row", "Summary", "made_otherwise", "pins_text", "summary"]

MOST_RULES = 6  # that stand alone; the others together
_UNITS = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))
Clock = Mapping[str, float] | None


@dataclass(frozen=True, slots=True)
class Row:
    """A figure of both plans as it is printed.  `way`: whether B has more (1), as much (0) or less (-1) of it; `key`:
    the cause; `amount`: the printed difference in last digits."""

    key: str
    name: str
    a: str
    b: str
    delta: str
    way: int
    relative: str = ""
    amount: int = 0


@dataclass(frozen=True, slots=True)
class Change:
    """What a rule, or what is no rule, adds to the difference of the step: `delta` as printed, `text` in words,
    `roles` of modules that it holds for, `groups`: numbers of the groups of equal changes that it consists of."""

    delta: str
    amount: int
    text: str
    operators: int = 0
    roles: tuple[tuple[str, int], ...] = ()
    changes: tuple[tuple[str, str, str], ...] = ()
    groups: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Summary:
    """`causes` that differ, and those that are `alike`, as one row of what they take together (None: there are none);
    `step`: what they add up to.  `changes` add up to
    the printed difference of the step."""

    unit: str
    totals: tuple[Row, ...]
    causes: tuple[Row, ...]
    alike: Row | None
    step: Row
    changes: tuple[Change, ...]
    settings: tuple[str, ...]


def summary(d: Diff, clocks: tuple[Clock, Clock] = (None, None), most: int = MOST_RULES) -> Summary:
    """`clocks`: parts of the step by the clock, of plans that do not say them; `most`: rules that stand alone."""
    first, second = comparable(step_causes(p, c) for p, c in zip((d.a, d.b), clocks, strict=True))
    whole = sum(first.values()), sum(second.values())
    largest = max((abs(second[c] - first[c]) for c in first), default=0)
    s = scale(max(whole), abs(whole[1] - whole[0]) or largest)
    here, there = columns([[*first.values()], [*second.values()]], s.quantum)
    found = [_row(s, c, CAUSE_NAMES[c], x, y) for c, x, y in zip(first, here, there, strict=True)]
    rows = sorted(found, key=lambda r: -abs(r.amount))
    same = [r for r in rows if not r.amount and r.a.strip("0.")]
    kept = sum(x for r, x in zip(found, here, strict=True) if not r.amount)
    alike = _row(s, "alike", f"alike: {', '.join(r.name for r in same)}", kept, kept) if same else None
    step = _row(s, "step", "step", sum(here), sum(there))
    return Summary(
        s.unit,
        tuple(_totals(d, step, s)),
        tuple(r for r in rows if r.amount),
        alike,
        step,
        tuple(_changes(d, s, step.amount, whole[1] - whole[0], most)),
        tuple(made_otherwise(d)),
    )


def _row(s: Scale, key: str, name: str, a: int, b: int) -> Row:
    return Row(key, name, s.text(a), s.text(b), s.text(b - a, sign=True), (b > a) - (b < a), percent(a, b), b - a)


def _totals(d: Diff, step: Row, s: Scale) -> list[Row]:
    a, b, delta = (f"{t} {s.unit}" for t in (step.a, step.b, step.delta))
    rows = [Row("step", "step", a, b, delta, step.way, step.relative)]
    first, second = samples(d.a), samples(d.b)
    if first and second and min(d.a.cost.step_time_s, d.b.cost.step_time_s) > 0:
        x, y = first / d.a.cost.step_time_s, second / d.b.cost.step_time_s
        if math.isfinite(x) and math.isfinite(y):
            rows.append(_rate(x, y))
    held = d.a.cost.peak_memory_bytes, d.b.cost.peak_memory_bytes
    rows.append(_bytes("memory", "memory per device", *held))
    sent = sum(sent_bytes(d.a).values()), sum(sent_bytes(d.b).values())
    if any(sent):
        rows.append(_bytes("sent", "sent per device", *sent))
    return rows


def _rate(x: float, y: float) -> Row:
    """Samples a second, with as many decimals on both sides; fewer of them is what costs."""
    decimals = decimals_of(max(x, y))
    a, b = round(x, decimals), round(y, decimals)
    texts = f"{a:,.{decimals}f}", f"{b:,.{decimals}f}", f"{b - a:+,.{decimals}f}"
    return Row("samples", "samples/s", *texts, (x > y) - (x < y), percent(x, y))


def _bytes(key: str, name: str, x: int, y: int) -> Row:
    """In one unit with as many decimals on both sides, so that they subtract as printed."""
    unit, size = next(((u, n) for u, n in _UNITS if max(x, y) >= n), ("B", 1))
    decimals = 2 if size > 1 else 0
    a, b = (round(n * 10**decimals / size) for n in (x, y))
    first, second, more = (
        f"{n / 10**decimals:{sign}.{decimals}f} {unit}" for n, sign in ((a, ""), (b, ""), (b - a, "+"))
    )
    delta = more if a != b else more.lstrip("+")
    return Row(key, name, first, second, delta, (y > x) - (y < x), percent(a, b))


def _changes(d: Diff, s: Scale, printed: int, exact: int, most: int) -> list[Change]:
    """Rounded together, the last one included, so that they add up to the printed difference."""
    work = Work(d.a, d.unit_s), Work(d.b, d.unit_s)

    def more(a: Bill, b: Bill) -> Fraction:
        return work[1].of(b) - work[0].of(a)

    found = rules(d)
    rows: list[tuple[Fraction, Change]] = [(r.units, _of_rule(r)) for r in found[:most]]
    left = found[most:]
    if left:
        count = sum(r.operators for r in left)
        text = f"{len(left)} more {'rule' if len(left) == 1 else 'rules'} (--details)"
        rows.append((sum((r.units for r in left), Fraction()), Change("", 0, text, count)))
    same = [*d.same, *d.often]
    if same:
        bills = total(x.a for x in same), total(x.b for x in same)
        reason = same_reason(d, step=True)
        rows.append((more(*bills), Change("", 0, reason, sum(len(x.operators) for x in same))))
    for side, names, value in (
        ("A", d.matching.only_a, more(d.only_a, Bill())),
        ("B", d.matching.only_b, more(Bill(), d.only_b)),
    ):
        if names:
            rows.append((value, Change("", 0, f"in {side} alone", len(names))))
    attributed = sum((v for v, _ in rows), Fraction())
    if rows and (attributed or exact):
        rest = "overlap, pipeline bubble, waiting for the host, and time outside of operators"
        rows.append((exact - attributed, Change("", 0, rest)))
    counts = rounded([v for v, _ in rows], s.quantum)
    if counts:
        counts[-1] += printed - sum(counts)  # both totals were rounded on their own
    return [
        Change(s.text(n, sign=True), n, c.text, c.operators, c.roles, c.changes, c.groups)
        for n, (_, c) in zip(counts, rows, strict=True)
    ]


def _of_rule(r: Rule) -> Change:
    return Change("", 0, r.text, r.operators, r.roles, r.changes, r.numbers)


def made_otherwise(d: Diff) -> list[str]:
    """What the plans were made for and with, `what: a -> b`, pins counted by where they come from."""
    known = {s.what for s in d.settings}
    hidden = {"profile_digest", "stages.operators"}
    follows = "model.batch" in known and _batch_alone(d)
    if follows:
        hidden |= {"model.digest", *(w for w in known if w.startswith("inputs."))}
    out = []
    for row in d.settings:
        if row.what == "pin" or row.what in hidden or row.what.startswith("schedule.run."):
            continue  # those of the run stand together in one line
        a, b = row.a, row.b
        if row.what == "memory_limit_bytes":
            a, b = (memory_text(int(x)) if x else "none" for x in (a, b))
        if row.what == "model.batch":
            a, b = (str(samples(p) or "none") for p in (d.a, d.b))
            if a == b:
                continue
        if row.what == "model.digest":
            out.append(f"model: another graph (digest {a} -> {b})")
            continue
        what = row.what.removesuffix("_bytes").replace("model.", "").replace("schedule.", "").replace("_", " ")
        out.append(f"{what}: {a or 'none'} -> {b or 'none'}")
    strategies = [_strategy(p) for p in (d.a, d.b)]
    if all(strategies):
        if strategies[0] != strategies[1]:
            out.append(f"strategy: {strategies[0]} -> {strategies[1]}")
    elif any(s.what == "pin" for s in d.settings):
        out.append(f"pins: {' -> '.join(pins_text(p) for p in (d.a, d.b))}")
    run = [f"{k} {a} -> {b}" for k, a, b in _run(d)]
    if run:
        out.insert(0, f"run: {', '.join(run)}")
    return out + [f"{o.what}: {o.a or 'none'} -> {o.b or 'none'}" for o in d.others if not follows]


def _batch_alone(d: Diff) -> bool:
    """Whether the models differ in nothing but the batch, from which other shapes of tensors follow."""
    inputs = [
        {n: (x.dtype, x.shape if n in p.parameters else (x.shape or [])[1:]) for n, x in p.inputs.items()}
        for p in (d.a, d.b)
    ]
    alike = inputs[0] == inputs[1] and not (d.matching.only_a or d.matching.only_b)
    return alike and all(o.what.startswith("tensors.*.shape") for o in d.others)


def _run(d: Diff) -> list[tuple[str, str, str]]:
    """Keys of a configuration that say how the step is run, in the words of `planner evaluate`; the level of ZeRO is in
    the words of the plans."""
    a, b = (p.schedule.run for p in (d.a, d.b))
    if not (a and b):
        return []
    return [(k, _said(a.get(k)), _said(b.get(k))) for k in {**a, **b} if a.get(k) != b.get(k) and k != "zero"]


def _said(value: object) -> str:
    return "by default" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _strategy(plan: PlanDocument) -> str:
    """The configuration that all pins come from; empty where they come from elsewhere."""
    sources = {x.source for x in plan.pins}
    source = sources.pop() if len(sources) == 1 else ""
    return source.removeprefix("--strategy ") if source.startswith("--strategy ") else ""


def pins_text(plan: PlanDocument) -> str:
    """How many there are, by where they come from."""
    counts = Counter(x.source for x in plan.pins)
    listed = [f"{n:,} of {source}" for source, n in counts.most_common(2)]
    more = sum(counts.values()) - sum(n for _, n in counts.most_common(2))
    return ", ".join([*listed, f"{more:,} others"] if more else listed) or "none"
