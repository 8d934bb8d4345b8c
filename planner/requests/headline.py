"""What a plan is, in the words of the field: degrees of parallelism, seconds, samples and tokens, MFU, memory."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Final

from planner.clock import Configuration, extrapolated, interval
from planner.cost_models import HardwareProfile
from planner.emit.scheme import Scheme, scheme_of
from planner.errors import InputError, UsageError
from planner.planning import PlanDocument, Planned
from planner.planning.schemes import in_words, parse_strategy
from planner.report.rates import rates_text
from planner.report.words import gib_text, time_text
from planner.requests.degrees import KINDS, degrees, uses
from planner.requests.rates import rates

__all__ = ["execution_of", "extrapolation", "figures", "headline", "spread", "words"]

_NAMED: Final = 4  # features of an extrapolation


def figures(
    planned: Planned, plan: PlanDocument, document: Mapping[str, Any], execution: Configuration | None
) -> dict[str, Any]:
    """Of the document of `--json`, beside what it has: the plan in words, and what is done per second; None for what
    cannot be counted.  `execution`: of a known configuration."""
    graph, profile = planned.priced.graph, planned.request.profile
    devices, batch, seconds = document["devices"], document["batch"], document["step_time_s"]
    s = plan.schedule
    return {
        "in_words": _words(plan, execution),
        "parallelism": degrees(plan, execution),
        **spread(seconds, profile, execution),
        **rates(
            graph,
            s.micro_batches,
            batch,
            seconds,
            devices,
            profile,
            precision=s.precision,
            mode=s.mode,
            frozen=bool(s.run.get("frozen")),
        ),
    }


def spread(seconds: float, profile: HardwareProfile, execution: Configuration | None) -> dict[str, Any]:
    """Seconds between which a step of predicted `seconds` takes in 80 % of all cases (None of a profile that states
    links alone), and what no published step was measured with."""
    outside = [] if execution is None else list(extrapolated(execution))
    found = None if profile.device is None else interval(seconds, profile, extrapolated=bool(outside))
    return {"step_time_interval_s": None if found is None else list(found), "extrapolated": outside}


def words(plan: PlanDocument) -> str:
    """The plan in degrees of parallelism, as the headline of its search says it."""
    return _words(plan, execution_of(plan))


def execution_of(plan: PlanDocument) -> Configuration | None:
    """The known configuration that the plan was asked for with; None of a plan that was searched."""
    requested = plan.search.request
    if requested is None or requested.strategy is None:
        return None
    samples = next((i.shape[0] for i in plan.inputs.values() if i.shape), 1) * plan.schedule.micro_batches
    kind = {"precision": requested.precision, "optimizer": requested.optimizer}
    try:
        return parse_strategy(requested.strategy, devices=plan.devices, batch=samples, **kind)
    except UsageError:  # its batch was another when it was asked for
        return None


def headline(planned: Planned, plan: PlanDocument, document: Mapping[str, Any]) -> list[str]:
    """Lines of the summary; `document`: of `--json`, with `figures`."""
    s, seconds, batch = plan.schedule, document["step_time_s"], document["batch"]
    samples = "" if batch is None else f", batch {batch:,}"
    name, hardware = planned.priced.graph.name, planned.request.profile.name
    parts = [
        f"{name}: {s.mode} on {document['devices']:,} x {hardware}{samples}, {s.precision}",
        f"plan        {document['in_words']}",
        f"step        {time_text(seconds)}{_spread(document)}",
    ]
    parts += extrapolation(document["extrapolated"])
    done = rates_text(document)
    if done:
        parts.append(f"            {done}")
    limit = document["memory_limit_bytes"]
    parts.append(
        f"memory      {gib_text(document['peak_memory_bytes'])} per device at peak "
        f"({'no limit' if limit is None else f'limit {gib_text(limit)}'})"
    )
    return parts


def extrapolation(features: Sequence[str], before: str = "            extrapolated: ") -> list[str]:
    """A line about what no published step was measured with, where there is anything; the first few of it."""
    if not features:
        return []
    more = f"; and {len(features) - _NAMED} more (--json)" if len(features) > _NAMED else ""
    return [f"{before}no published step was measured with {'; '.join(features[:_NAMED])}{more}"]


def _spread(document: Mapping[str, Any]) -> str:
    if document["step_time_interval_s"] is None:
        return ""
    low, high = document["step_time_interval_s"]
    return f", 80 % between {time_text(low)} and {time_text(high)}"


def _words(plan: PlanDocument, execution: Configuration | None) -> str:
    if execution is not None:
        return in_words(execution)
    try:
        return _of_scheme(scheme_of(plan, "a plan in degrees"), plan)
    except InputError:
        return _of_most(plan)


def _of_most(plan: PlanDocument) -> str:
    """Degrees of most products and tables, and those that are divided otherwise."""
    axes = [a for a in plan.mesh.names if plan.mesh.sizes[a] > 1]
    found = uses(plan)
    mesh = " x ".join(str(plan.mesh.sizes[a]) for a in axes)
    if not found:
        return f"operators are divided one by one over a mesh of {mesh} (--details)"
    most, count = Counter(found.values()).most_common(1)[0]
    if 2 * count <= len(found):
        return f"operators are divided one by one over a mesh of {mesh}, less than half of them alike (--details)"
    ranks = {kind: prod(plan.mesh.sizes[a] for a, k in zip(axes, most, strict=True) if k == kind) for kind in KINDS}
    named = [f"{kind} {count}" for kind, count in ranks.items() if count > 1] or ["one device"]
    divided = sum(p.stored.dims != p.compute[0].dims for p in plan.parameters.values() if p.compute)
    shards = ", parameters and their state in shards" if 2 * divided > len(plan.parameters) else ""
    stages = "" if plan.schedule.stages == 1 else f" x PP {plan.schedule.stages}"
    again = f", {len(plan.schedule.recompute)} blocks recomputed" if plan.schedule.recompute else ""
    alike = prod(plan.mesh.sizes[a] for a, k in zip(axes, most, strict=True) if k == "repeated")
    idle = _repeated(plan.devices, alike) if alike > 1 else ""
    others = list(dict.fromkeys(_module(plan, name) for name, kinds in found.items() if kinds != most))
    more = f", and {len(others) - 3} more" if len(others) > 3 else ""
    verb = "is" if len(others) == 1 else "are"
    otherwise = f"; {', '.join(others[:3])}{more} {verb} laid out differently" if others else ""
    return f"{' x '.join(named)}{stages}{shards}{again}{idle}{otherwise} (--details)"


def _module(plan: PlanDocument, name: str) -> str:
    """Of an operator, layers as one."""
    path = (plan.operators[name].module.strip("/") or name).lstrip("/").replace("/", ".")
    return re.sub(r"(?<=\.)\d+(?=\.|$)", "*", path)


def _of_scheme(scheme: Scheme, plan: PlanDocument) -> str:
    """As `in_words` says a configuration."""
    degrees = [("DP", scheme.data), ("CP", scheme.context), ("TP", scheme.tensor), ("PP", scheme.stages)]
    named = [f"{name} {count}" for name, count in degrees if count > 1] or ["one device"]
    count = scheme.micro_batches
    order = "" if count == 1 else f" ({count} micro-batches)"
    parts = [f"{' x '.join(named)}{order}"]
    if scheme.expert > 1:
        parts.append(f"experts over {scheme.expert}")
    if scheme.shards > 1:
        whole = f" ({len(scheme.whole)} parameters whole)" if scheme.whole else ""
        among = f" among {scheme.shards}" if scheme.shards < scheme.data * scheme.context else ""
        parts.append(f"ZeRO 1{among}{whole}")
    if scheme.sequence:
        parts.append("sequence parallel")
    if plan.schedule.recompute:
        parts.append(f"{len(plan.schedule.recompute)} blocks recomputed")
    idle = scheme.ranks("idle")
    if idle > 1:
        return ", ".join(parts) + _repeated(plan.devices, idle) + f": --devices {plan.devices // idle} is as fast"
    return ", ".join(parts)


def _repeated(devices: int, alike: int) -> str:
    return f"; {devices - devices // alike} of {devices} devices repeat what others compute"
