"""What a plan is, in the words of the field: degrees of parallelism, seconds, samples and tokens, MFU, memory."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from math import prod
from typing import Any, Final

from cost_models import HardwareProfile
from cost_models.device import resolve_rate
from planner.clock import Configuration, interval
from planner.emit.scheme import PRODUCTS, Scheme, scheme_of
from planner.errors import InputError
from planner.frontends.inspect import flops
from planner.ir import Graph
from planner.planning import PlanDocument, Planned
from planner.planning.document import OperatorDocument
from planner.planning.schemes import in_words
from planner.report.words import time_text

__all__ = ["headline"]

_KINDS: Final = ("DP", "CP", "TP")
_PASSES = {"training": 3, "inference": 1}  # the backward pass computes twice as much as the forward pass


def headline(
    planned: Planned, plan: PlanDocument, document: Mapping[str, Any], execution: Configuration | None
) -> list[str]:
    """Lines of the summary; `document`: of `--json`; `execution`: of a known configuration."""
    graph, profile, s = planned.priced.graph, planned.request.profile, plan.schedule
    devices, batch, seconds = document["devices"], document["batch"], document["step_time_s"]
    samples = "" if batch is None else f", batch {batch:,}"
    parts = [
        f"{graph.name}: {s.mode} on {devices:,} x {profile.name}{samples}, {s.precision}",
        f"plan        {_words(plan, execution)}",
        f"step        {time_text(seconds)}{_spread(seconds, profile)}",
    ]
    told = _rates(graph, plan, profile, batch, devices, seconds)
    if told:
        parts.append(f"            {', '.join(told)}")
    limit = document["memory_limit_bytes"]
    parts.append(
        f"memory      {document['peak_memory_bytes'] / 2**30:.2f} GiB per device at peak "
        f"({'no limit' if limit is None else f'limit {limit / 2**30:.2f} GiB'})"
    )
    return parts


def _spread(seconds: float, profile: HardwareProfile) -> str:
    if profile.device is None:
        return ""
    low, high = interval(seconds, profile)
    return f", 80 % between {time_text(low)} and {time_text(high)}"


def _rates(
    graph: Graph, plan: PlanDocument, profile: HardwareProfile, batch: int | None, devices: int, seconds: float
) -> list[str]:
    """Samples, tokens and operations a second, as far as they can be counted."""
    out = []
    if batch is not None and seconds > 0:
        out.append(f"{batch / seconds:,.4g} samples/s")
        first = graph.tensors[graph.inputs[0]] if graph.inputs else None
        if first is not None and first.shape is not None and len(first.shape) == 2 and first.dtype.startswith("int"):
            out.append(f"{batch * first.shape[1] / seconds:,.0f} tokens/s")
    computed = sum(flops(graph, op) for op in graph.ops) * _PASSES[plan.schedule.mode] * plan.schedule.micro_batches
    if computed and profile.device is not None and seconds > 0:
        rate = computed / seconds / devices
        peak = resolve_rate(profile.device.matmul_flops_per_s, plan.schedule.precision)
        out.append(f"{rate / 1e12:.4g} TFLOP/s per device (MFU {rate / peak:.1%})")
    return out


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
    found = {
        name: tuple(_use(plan, op, a) for a in axes)
        for name, op in plan.operators.items()
        if op.type in (*PRODUCTS, "Gather") and op.results and op.results[0] is not None
    }
    mesh = " x ".join(str(plan.mesh.sizes[a]) for a in axes)
    if not found:
        return f"operators are divided one by one over a mesh of {mesh} (--details)"
    most, count = Counter(found.values()).most_common(1)[0]
    if 2 * count <= len(found):
        return f"operators are divided one by one over a mesh of {mesh}, no half of them alike (--details)"
    ranks = {kind: prod(plan.mesh.sizes[a] for a, k in zip(axes, most, strict=True) if k == kind) for kind in _KINDS}
    named = [f"{kind} {count}" for kind, count in ranks.items() if count > 1] or ["one device"]
    divided = sum(p.stored.dims != p.compute[0].dims for p in plan.parameters.values() if p.compute)
    shards = ", parameters and their state in shards" if 2 * divided > len(plan.parameters) else ""
    stages = "" if plan.schedule.stages == 1 else f" x PP {plan.schedule.stages}"
    again = f", {len(plan.schedule.recompute)} blocks recomputed" if plan.schedule.recompute else ""
    alike = prod(plan.mesh.sizes[a] for a, k in zip(axes, most, strict=True) if k == "repeated")
    idle = _repeated(plan.devices, alike) if alike > 1 else ""
    others = list(dict.fromkeys(_module(plan, name) for name, kinds in found.items() if kinds != most))
    more = f", and {len(others) - 3} more" if len(others) > 3 else ""
    return f"{' x '.join(named)}{stages}{shards}{again}{idle}; otherwise in {', '.join(others[:3])}{more} (--details)"


def _use(plan: PlanDocument, op: OperatorDocument, axis: str) -> str:
    """What the axis does there, as people call it."""
    weights = [x for t, x in zip(op.inputs, op.operands, strict=False) if x is not None and t in plan.parameters]
    if any(axis in d for x in weights for d in x.dims):
        return "TP"
    result = op.results[0]
    assert result is not None
    where = next((i for i, d in enumerate(result.dims) if axis in d), None)
    return "repeated" if where is None else "DP" if where == 0 else "CP" if where == 1 else "TP"


def _module(plan: PlanDocument, name: str) -> str:
    """Of an operator, layers as one."""
    path = (plan.operators[name].module or name).lstrip("/").replace("/", ".")
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
