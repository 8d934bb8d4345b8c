"""The terminal summary of a plan: what the search says of it, and on demand how every operator is split."""

from __future__ import annotations

from collections import Counter

from planner.frontends.resized.blocks import repeated_blocks
from planner.ir import Op
from planner.planning import Candidate, Planned
from planner.planning.pipeline import Pipelined
from planner.report.words import PART_NAMES, time_text
from planner.targets import NARROWED

__all__ = ["details", "outcome"]


def outcome(planned: Planned, pipeline: Pipelined | None) -> list[str]:
    """What the step spends beside computing, how good the plan is, and what the search took."""
    gap, bound, within = planned.gap, planned.step_bound_s, ""
    lines = _waits(planned)
    if pipeline is not None:
        gap, bound, within = pipeline.gap, pipeline.step_bound_s, " with these stages and micro-batches"
        lines = [_bubble(pipeline)] if pipeline.stages > 1 else []
    proven = f"a step takes at least {time_text(bound)}{within}: gap {gap:.2%}"
    lines += [
        f"optimality  {proven if bound > 0 else 'the search ended before it proved what a step takes at least'}",
        *_pins(planned),
        *_narrowed(planned),
        f"search      {planned.search_seconds:.2f} s, {planned.solution.solver}",
    ]
    if planned.without_rule:
        lines.append(f"no rule     {', '.join(planned.without_rule)}: whole on every device")
    return lines


def _bubble(pipeline: Pipelined) -> str:
    """What stages wait for each other: the mean, and on the stage that waits least, on whose account `diff` and
    `evaluate` put it."""
    run = pipeline.run
    least = min(run.bubble_s) / run.total_s if run.total_s else 0.0
    return f"bubble      stages wait {run.bubble_fraction:.1%} of the step on average, the busiest one {least:.1%}"


def details(planned: Planned, pipeline: Pipelined | None) -> str:
    """Strategies by distinct block, parameters, collectives, and the parts of the objective; stages."""
    lines = _operators(planned)
    return "\n".join(lines if pipeline is None else [*lines, *_stages(pipeline)])


def _operators(planned: Planned) -> list[str]:
    unit = planned.priced.machine.unit_s
    axes = ", ".join(f"{a.name}={a.size}" for a in planned.mesh.axes)
    lines = [
        f"mesh {planned.mesh} ({axes})",
        "",
        "strategy (factor=axis: that axis splits that index; _ nothing)",
        *_blocks(planned),
        *_recomputed(planned),
        "",
        "parameters stored as",
        *_stored(planned),
        "",
        "collectives per step",
        *_collectives(planned),
        "",
        f"time        step {time_text(planned.step_time_s)} by the clock; "
        f"objective {time_text(planned.objective_s)} (everything in sequence)",
    ]
    seconds = planned.parts.seconds(unit)
    total = planned.objective_s or 1.0
    lines += [
        f"            {time_text(s):>10}  {s / total:6.1%}  {PART_NAMES[name]}" for name, s in seconds.items() if s > 0
    ]
    tried = ", ".join(_candidate(c) for c in planned.candidates)
    return [*lines, f"meshes      {len(planned.candidates)} searches: {tried}"]


def _stages(p: Pipelined) -> list[str]:
    """What the plan of a micro-batch leaves out: stages, the step of all micro-batches, memory."""
    counts = Counter(p.stage_of.values())
    chunks = f" with {p.chunks} chunks of the model each" if p.chunks > 1 else ""
    lines = [
        f"pipeline    {_count(p.stages, 'stage')} of {p.planned.mesh.devices} devices{chunks}, "
        f"{_count(p.micro_batches, 'micro-batch', 'es')} ({p.order}): "
        f"step {time_text(p.step_time_s)}, bubble {p.run.bubble_fraction:.1%}; "
        "the lines above describe one micro-batch that passes through all stages"
    ]
    for s, size in enumerate(p.memory):
        busy = p.run.busy_s[s] / p.micro_batches
        lines.append(
            f"  stage {s:<4} {counts[s]:5} operators, {time_text(busy)} a micro-batch, "
            f"{size / 2**30:.2f} GiB per device with {p.run.in_flight[s]} in flight"
        )
    if p.shared:
        lines.append(f"  held by several stages: {', '.join(p.shared[:4])}{', …' if len(p.shared) > 4 else ''}")
    return lines


def _count(number: int, what: str, plural: str = "s") -> str:
    return f"{number} {what}{'' if number == 1 else plural}"


def _waits(planned: Planned) -> list[str]:
    """What a step takes beside, or less than, the parts of the objective."""
    timeline, unit = planned.timeline, planned.priced.machine.unit_s
    parts = {
        "collectives not hidden": timeline.exposed,
        "waiting for the host to start kernels": timeline.host,
        "outside the model": timeline.overhead,
    }
    costs = [f"{time_text(units * unit)} {what}" for what, units in parts.items() if units]
    return [f"of which    {', '.join(costs)}"] if costs else []


def _candidate(c: Candidate) -> str:
    seconds = c.objective_s if c.step_time_s is None else c.step_time_s
    outcome = c.status if seconds is None else time_text(seconds)
    return f"{c.mesh}{'+recompute' if c.recompute else ''} {outcome}"


def _pins(planned: Planned) -> list[str]:
    pins = planned.pins
    if pins is None:
        return []
    count = Counter(r.object_kind for r in pins.restrictions)
    named = [f"{n} {what}{'s' if n > 1 else ''}" for what, n in count.items()]
    rest = [] if pins.rest.kind == "search" else [f"the rest {pins.rest}"]
    return [f"pins        {', '.join(named + rest) or 'none'} ({pins.constraints.source})"]


def _narrowed(planned: Planned) -> list[str]:
    """What was not searched since the target cannot express it."""
    target = planned.request.settings.target
    return [f"target      {target}: {NARROWED[target]}"] if target in NARROWED else []


def _blocks(planned: Planned) -> list[str]:
    """One line for every distinct block of a run of equal layers, and one for what stands outside."""
    graph = planned.priced.graph
    lines: list[str] = []
    inside: set[str] = set()
    for run in repeated_blocks(graph):
        kinds: dict[tuple[str, ...], list[int]] = {}
        for k, block in enumerate(run.blocks):
            inside.update(block)
            kinds.setdefault(tuple(planned.assignment.strategies[n].text(planned.mesh) for n in block), []).append(k)
        for members in kinds.values():
            ops = [graph.op(n) for n in run.blocks[members[0]]]
            where = f"{members[0]}" if len(members) == 1 else f"{members[0]}..{members[-1]}"
            lines.append(f"  {len(members)} x block {where} ({run.size} ops): {_strategies(planned, ops)}")
    rest = [op for op in graph.ops if op.name not in inside]
    if rest:
        lines.append(f"  {'outside' if inside else 'all'} ({len(rest)} ops): {_strategies(planned, rest)}")
    return lines


def _recomputed(planned: Planned) -> list[str]:
    blocks = planned.assignment.blocks
    if not blocks:
        return []
    return [f"  recomputed in the backward pass: {max(blocks.values()) + 1} blocks, {len(blocks)} operators"]


def _strategies(planned: Planned, ops: list[Op]) -> str:
    """Operators that multiply each with its strategy (equal neighbours counted), the others by what is most common."""
    heavy: Counter[str] = Counter()
    light: Counter[str] = Counter()
    for op in ops:
        text = _short(planned.assignment.strategies[op.name].text(planned.mesh))
        if planned.priced.rules[op.name].cost.kind.multiplies:
            heavy[f"{op.type}[{text}]"] += 1
        else:
            light[text] += 1
    parts = [f"{n}x{k}" if n > 1 else k for k, n in heavy.most_common(6)]
    if len(heavy) > 6:
        parts.append(f"{len(heavy) - 6} more kinds")
    common = light.most_common(2)
    if common:
        parts.append("others " + ", ".join(f"[{k}] x{n}" for k, n in common))
    return " ".join(parts)


def _short(text: str) -> str:
    return "_" if text == "replicated" else text


def _stored(planned: Planned) -> list[str]:
    size: Counter[str] = Counter()
    count: Counter[str] = Counter()
    for name, layout in planned.assignment.stored.items():
        size[str(layout)] += planned.priced.graph.tensors[name].elements
        count[str(layout)] += 1
    rows = [f"  {k:16} {count[k]:5} tensors {size[k]:>16,} elements" for k, _ in size.most_common(6)]
    return rows + ([f"  and {len(size) - 6} more layouts"] if len(size) > 6 else []) or ["  none"]


def _collectives(planned: Planned) -> list[str]:
    settings = planned.request.settings
    traffic = planned.program.traffic(settings)
    rows = [f"  {kind:16} {t.count:5} x {t.bytes / 1e6:12,.3f} MB in all" for kind, t in traffic.items()]
    return rows or ["  none"]
