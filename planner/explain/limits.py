"""The binding limit: which of the request's restrictions keeps a better plan away, shown by searching without it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Literal

from planner.errors import InfeasibleError, PlannerError
from planner.explain.alternatives import outcome
from planner.explain.case import Case, Found
from planner.explain.document import LimitDocument, UndividedDocument
from planner.explain.splits import splits_into
from planner.planning import Request
from planner.planning.constraints import Constraints
from planner.report.words import memory_text, time_text
from planner.rules.rule import Rule
from planner.work.activity import fixed_operators

__all__ = ["binding_text", "limits", "undivided"]

UNLIMITED = 1 << 50  # bytes per device
PROBES = 8  # of memory limits between the plan's and the one that changes nothing more
PROBED_OPERATORS = 1000  # operators times candidates of a search that is quick enough to be repeated for them
MOST_PINS = 8  # that are dropped one by one
MOST_UNDIVIDED = 8


@dataclass(frozen=True, slots=True)
class _Lifted:
    kind: Literal["memory", "pin", "mesh", "target", "recompute", "all"]
    name: str
    request: Request


def limits(case: Case, base: Found, operator: str | None) -> list[LimitDocument]:
    """Every restriction of the request with the plan that is found without it, those that save most first, and at last
    without all of them.  Where the operator is given, how it would be split then stands with each."""
    found: list[LimitDocument] = []
    for lifted in _each(case, base):
        try:
            free = case.search(lifted.request, f"without {lifted.name}")
        except PlannerError as e:
            found.append(
                LimitDocument(kind=lifted.kind, name=lifted.name, binding=False, saves_s=0.0, why=f"lifted: {e}")
            )
            continue
        saved = base.step - free.step
        document = outcome(free, base)
        limit = LimitDocument(
            kind=lifted.kind,
            name=lifted.name,
            binding=saved > 0,
            saves_s=saved * base.unit_s,
            why=_why(lifted, free, saved, base),
            outcome=document,
            operator=None if operator is None else _split(free, operator),
        )
        if lifted.kind == "memory" and limit.binding:
            limit = _with_least(case, base, limit)
        found.append(limit)
    return sorted(found, key=lambda entry: (entry.kind == "all", -entry.saves_s))


def _each(case: Case, base: Found) -> Iterator[_Lifted]:
    request = case.request
    limit = base.planned.memory_limit
    if limit is not None:
        yield _Lifted("memory", f"the memory limit of {memory_text(limit)}", replace(request, memory_limit=UNLIMITED))
    if request.settings.training and request.recompute == "blocks":
        yield _Lifted("recompute", "--recompute blocks", replace(request, recompute="auto"))
    if request.meshes is not None:
        name = f"--mesh {', '.join(map(str, request.meshes))}"
        yield _Lifted("mesh", name, replace(request, meshes=None))
    if request.settings.target != "any":
        settings = replace(request.settings, target="any")
        yield _Lifted("target", f"--target {request.settings.target}", replace(request, settings=settings))
    pinned = case.pinned
    if len(pinned) > 1:
        yield _Lifted("pin", "all pins", replace(request, constraints=None))
    if len(pinned) <= MOST_PINS:
        for k, (name, _) in enumerate(pinned):
            rest = [c for j, (_, c) in enumerate(pinned) if j != k]
            yield _Lifted("pin", name, replace(request, constraints=_sum(rest)))
    free = _free(request)
    if replace(free, memory_limit=request.memory_limit) != request:  # something but memory is restricted
        yield _Lifted("all", "all of these together", free)


def _free(request: Request) -> Request:
    recompute = "auto" if request.recompute == "blocks" else request.recompute
    settings = replace(request.settings, target="any")
    return replace(
        request, memory_limit=UNLIMITED, meshes=None, constraints=None, recompute=recompute, settings=settings
    )


def _sum(parts: Sequence[Constraints]) -> Constraints | None:
    return reduce(lambda a, b: a + b, parts) if parts else None


def _split(found: Found, operator: str) -> dict[str, int]:
    return dict(splits_into(found.planned.assignment.strategies[operator], found.mesh))


def _why(lifted: _Lifted, free: Found, saved: int, base: Found) -> str:
    without = "without them" if lifted.kind == "all" or lifted.name == "all pins" else "without it"
    if saved > 0:
        same = "" if base.pipeline is None else ", with the same stages and micro-batches"
        text = f"{without}{same}, the step is shorter by {time_text(saved * base.unit_s)}, on mesh {free.mesh}"
        return f"{text}, with {memory_text(free.peak_memory_bytes)} per device"
    if saved < 0:
        return f"{without}, the search returns a longer step: no plan of its best objective is faster"
    return f"{without}, no better plan is found"


def _with_least(case: Case, base: Found, limit: LimitDocument) -> LimitDocument:
    """By bisection the smallest limit at which the step gets shorter, where searches are small.  More memory never
    makes the best plan slower, so that this is sound as far as the searches find the best one."""
    assert limit.outcome is not None
    low, high = base.planned.memory_limit or 0, limit.outcome.peak_memory_bytes
    size = len(case.graph.ops) * len(base.planned.candidates)
    if case.plan.schedule.stages > 1 or size > PROBED_OPERATORS or low >= high:
        return limit
    for _ in range(PROBES):
        middle = (low + high) // 2
        if middle in (low, high):
            break
        try:
            found = case.search(
                replace(case.request, memory_limit=middle), f"with a memory limit of {memory_text(middle)}"
            )
            better = found.step < base.step
        except InfeasibleError:
            better = False
        # What a better plan needs at its peak does as a limit, and is often less than what was tried.
        low, high = (low, min(middle, found.peak_memory_bytes)) if better else (middle, high)
    return limit.model_copy(update={"smallest": high, "largest_without": low})


def undivided(case: Case, base: Found, operators: Sequence[str]) -> list[UndividedDocument]:
    """Sizes of factors of these operators that axes of the plan's mesh do not divide; those of most operators first."""
    mesh, rules = base.mesh, base.planned.priced.rules
    groups: list[tuple[str, ...]] = [(a,) for a in mesh.names if mesh.sizes[a] > 1]
    if len(groups) > 1:
        groups.append(mesh.names)
    factors: dict[tuple[int, tuple[str, ...]], dict[str, None]] = {}
    having: dict[tuple[int, tuple[str, ...]], set[str]] = {}
    fixed = fixed_operators(case.graph)
    for name in operators:
        for factor, size in () if name in fixed else _splittable(rules[name]):
            for axes in groups:
                if size % mesh.size(axes):
                    factors.setdefault((size, axes), {})[factor] = None
                    having.setdefault((size, axes), set()).add(name)
    ranked = sorted(having, key=lambda k: -len(having[k]))[:MOST_UNDIVIDED]
    return [
        UndividedDocument(
            size=size,
            axes=list(axes),
            shards=mesh.size(axes),
            factors=list(factors[size, axes]),
            operators=len(having[size, axes]),
        )
        for size, axes in ranked
    ]


def _splittable(rule: Rule) -> list[tuple[str, int]]:
    return [(f, n) for f, n in rule.factors.items() if n > 1 and f in rule.cuts]


def binding_text(found: Sequence[LimitDocument], base: Found) -> str:
    """What stops a better plan, in one sentence."""
    binding = [entry for entry in found if entry.binding]
    gap, step_s = base.gap, base.step_time_s
    if binding:
        first = binding[0]
        rest = [entry.name for entry in binding[1:] if entry.kind != "all"]
        others = f"; {', '.join(rest)} cost something, too" if rest else ""
        more = ""
        if first.smallest is not None:
            size = f"{memory_text(first.smallest)} ({first.smallest} bytes)"
            more = f"; a limit of {size} is the smallest that allows a better plan"
        return f"{first.name}: {first.why}{more}{others}"
    if gap > 0:
        return (
            f"no limit was found that makes the step longer, but the step is proven only within {gap:.2%}: a plan may "
            f"be faster by up to {time_text(gap * step_s)}"
        )
    count = len(base.planned.candidates)
    meshes = f"{count} candidate meshes" if count > 1 else "its only mesh"
    return (
        f"no limit costs anything: the plan is proven best over {meshes}, and no restriction of the request makes it "
        "slower"
    )
