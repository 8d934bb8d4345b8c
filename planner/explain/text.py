"""An explanation for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from planner.explain.document import (
    AlternativeDocument,
    ChoiceDocument,
    ExplanationDocument,
    LimitDocument,
    ModuleDocument,
    MoveDocument,
    TopDocument,
)
from planner.explain.splits import split_text
from planner.report.rates import rates_text
from planner.report.words import PART_NAMES, memory_text, printable, time_text
from planner.terminal import plain

__all__ = ["explanation_text"]

_WIDTH = 400  # of a line with names in it: of those as long as a page, the ends are shown


class _Whole(str):
    """A line that is shown whole: a command, or a sentence that ends as it has to."""

    __slots__ = ()


def explanation_text(e: ExplanationDocument) -> str:
    lines = [*_head(e), ""]
    if e.module is not None:
        lines += _module(e.module, e.plan.objective_s)
    elif e.choice is not None:
        lines += [*_choice(e.choice), "", *_alternatives(e)]
    else:
        lines += [*_meshes(e), "", *_top(e), *_moves(e.redistributions)]
    if e.module is None:
        lines += ["", *_limits(e)]
    lines += [f"note        {note}" for note in e.notes]
    return "\n".join(plain(line) if isinstance(line, _Whole) else printable(line, _WIDTH) for line in lines)


def _head(e: ExplanationDocument) -> Iterator[str]:
    p = e.plan
    several = p.stages > 1 or p.micro_batches > 1
    parts = f", {_count(p.stages, 'stage')}, {_count(p.micro_batches, 'micro-batch', 'es')}" if several else ""
    yield f"{p.model}: {p.devices} x {p.hardware}, mesh {p.mesh}{parts}"
    one = " of a micro-batch" if parts else ""
    own = " to the bound of its stages and micro-batches" if several else ""
    yield f"step        {time_text(p.step_time_s)} (gap {p.gap:.2%}{own}); objective {time_text(p.objective_s)}{one}"
    done = rates_text(p.model_dump())
    if done:
        yield f"            {done}"
    limit = "no limit" if p.memory_limit_bytes is None else f"limit {memory_text(p.memory_limit_bytes)}"
    yield f"memory      {memory_text(p.peak_memory_bytes)} per device ({limit})"


def _module(m: ModuleDocument, whole: float) -> Iterator[str]:
    alike = f", one of {m.alike:,} equal modules" if m.alike > 1 else ""
    yield f"{m.module} ({_count(len(m.products), 'product')}, {_count(m.operators, 'operator')}{alike})"
    for s in m.splits:
        yield f"  split     {s.text}: {_count(len(s.operators), 'operator')}, {time_text(s.own_s)}"
    share = f" ({m.own_s / whole:.1%} of the objective)" if whole else ""
    more = f", {time_text(m.alike_s)} of all equal modules" if m.alike > 1 else ""
    yield f"  cost      {time_text(m.own_s)}{share}{more}"
    for part, seconds in m.parts_s.items():
        yield f"    {time_text(seconds):>10}  {PART_NAMES[part]}"
    kinds = "weights, gradients and optimizer state" if m.trained else "weights"
    yield f"  memory    {memory_text(m.parameter_bytes)} per device of {kinds}"
    yield f"  sent      {memory_text(m.sent_bytes)} per device in a step"
    freed = f"; the module is freed from {m.freed} for that" if m.freed else ""
    yield ""
    yield f"alternatives (each was searched again with all of its products split differently{freed})"
    for a in m.alternatives:
        where = f"on mesh {a.mesh}, {memory_text(a.peak_memory_bytes)} (gap {a.gap:.2%})"
        yield f"  {a.text}"
        yield f"    step {time_text(a.step_time_s)}, {_signed(a.difference_s)} {where}"
        yield _Whole(f"    it {a.why}")
        if a.command:
            yield _Whole(f"    {a.command}")
    if m.reason:
        yield f"  {'no more: ' if m.alternatives else 'none: '}{m.reason}"


def _count(n: int, what: str, more: str = "s") -> str:
    return f"{n:,} {what}{'' if n == 1 else more}"


def _choice(c: ChoiceDocument) -> Iterator[str]:
    yield f"{c.operator} ({c.type}{f', {c.module}' if c.module else ''})"
    yield f"  rule      {c.rule}; {', '.join(f'{f}={n}' for f, n in c.factors.items())}"
    roles = ", ".join(f"{axis}: {role}" for axis, role in c.strategy.items())
    yield f"  choice    {_split(c.split)} ({roles})"
    yield f"  layouts   {', '.join(x or '-' for x in c.operands)} -> {', '.join(x or '-' for x in c.results)}"
    yield f"  cost      {time_text(c.own_s)}: its runs, what it makes moved, its parameters"
    for phase, seconds in c.runs_s.items():
        yield f"    {time_text(seconds):>10}  {phase}"
    if c.inside_s:
        yield f"    {time_text(c.inside_s):>10}  of these in collectives inside: {', '.join(c.inner)}"
    for m in c.writes:
        yield f"    {time_text(m.seconds):>10}  {_move(m)} (for {m.reader or 'its readers'})"
    for p in c.parameters:
        shared = ", shared" if p.shared else ""
        parts = {"gathered": p.gathered_s, "synchronised": p.synchronised_s, "updated": p.optimizer_s}
        costs = ", ".join(f"{what} {time_text(s)}" for what, s in parts.items() if s)
        yield f"    parameter {p.name} stored {p.stored}{shared}: {costs or 'free'}"
    for m in c.reads:
        yield f"    {time_text(m.seconds):>10}  {_move(m)} (what it reads, not counted above)"


def _move(m: MoveDocument) -> str:
    what = "gradient of " if m.direction == "gradient" else ""
    shared = ", which others read too" if m.shared else ""
    return f"{what}{m.tensor} {m.source} -> {m.target} by {', '.join(m.collectives)}{shared}"


def _alternatives(e: ExplanationDocument) -> Iterator[str]:
    if not e.alternatives and not e.refused:
        yield "alternatives: none, its rule offers no other split"
        return
    yield "alternatives (each was searched again with this split pinned and everything else free)"
    for a in e.alternatives:
        yield from _alternative(a)
    for r in e.refused:
        yield f"  {_split(r.split)}: impossible: {r.reason}"
    if e.more_refused:
        yield f"  and {e.more_refused} more that no plan of this request can have"


def _alternative(a: AlternativeDocument) -> Iterator[str]:
    yield (
        f"  {_split(a.split):12} {time_text(a.step_time_s):>10}  {_signed(a.difference_s)} on mesh {a.mesh}, "
        f"{memory_text(a.peak_memory_bytes)} (gap {a.gap:.2%})"
    )
    yield _Whole(f"    it {a.why}")
    yield _Whole(f"    {a.command}")


def _split(split: Mapping[str, int]) -> str:
    return split_text(tuple(split.items()))


def _signed(seconds: float) -> str:
    return "no difference" if seconds == 0 else f"{'+' if seconds > 0 else '-'}{time_text(abs(seconds))}"


def _limits(e: ExplanationDocument) -> Iterator[str]:
    binding = any(entry.binding for entry in e.limits)
    yield f"limit       {'what stands in the way of a better plan' if binding else e.binding}"
    for entry in e.limits:
        yield from _limit(entry, e.choice)
    for u in e.undivided:
        of = f" in {u.operators} operators" if e.choice is None else ""
        axes = f"all {u.shards} devices" if len(u.axes) > 1 else f"axis {u.axes[0]} of {u.shards}"
        yield f"            {u.size} ({', '.join(u.factors)}{of}) is not divided by {axes}, so it is not split so"


def _limit(entry: LimitDocument, choice: ChoiceDocument | None) -> Iterator[str]:
    otherwise = entry.operator is not None and choice is not None and entry.operator != choice.split
    then = f"; this operator would be {_split(entry.operator or {})}" if otherwise else ""
    yield f"            {'binds' if entry.binding else 'free '}  {entry.name}: {entry.why}{then}"
    if entry.smallest is not None:
        least = f"{memory_text(entry.smallest)} ({entry.smallest} bytes)"
        yield f"                   a limit of {least} does for a better plan"


def _meshes(e: ExplanationDocument) -> Iterator[str]:
    yield "candidates"
    for m in e.meshes:
        if m.step_time_s is not None:
            known, more = f"step {time_text(m.step_time_s)}", f"  {_signed(m.step_time_s - e.plan.step_time_s)}"
        elif m.objective_s is not None:
            known, more = f"objective {time_text(m.objective_s)}", ""
        else:
            known, more = (f"objective at least {time_text(m.bound_s)}" if m.bound_s else m.status), ""
        chosen = "  (chosen)" if m.mesh == e.plan.mesh and m.step_time_s == e.plan.step_time_s else more
        yield f"  {m.mesh:8} {known:>30}{chosen}{'  recomputing' if m.recompute else ''}"


def _top(e: ExplanationDocument) -> Iterator[str]:
    yield "most expensive operators, with the best alternative of one of them"
    first: dict[str, str] = {}  # of which operator a reason was given
    for t in e.operators:
        yield from _top_operator(t, e.plan.objective_s, first)


def _top_operator(t: TopDocument, whole: float, first: dict[str, str]) -> Iterator[str]:
    count = f"{t.choice.alike} like " if t.choice.alike > 1 else ""
    share = f" ({t.total_s / whole:.1%})" if whole else ""
    what = f"{count}{t.choice.operator} ({t.choice.type}) {_split(t.choice.split)}"
    yield f"  {time_text(t.total_s):>10}{share}  {what}"
    if t.alternative is None:
        yield f"              no alternative: {t.reason}"
    else:
        a = t.alternative
        split = printable(_split(a.split), _WIDTH)
        given = first.setdefault(a.why, t.choice.operator)
        why = a.why if given == t.choice.operator else f"is so for the reason given for {printable(given, _WIDTH)}"
        yield _Whole(f"              {split}: {_signed(a.difference_s)} on mesh {a.mesh}; it {why}")


def _moves(moves: list[MoveDocument]) -> Iterator[str]:
    if moves:
        yield from ("", "most expensive redistributions")
    for m in moves:
        yield f"  {time_text(m.seconds):>10}  {_move(m)}{f', for {m.reader}' if m.reader else ''}"
