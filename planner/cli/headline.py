"""What a plan is, in the words of the field: degrees of parallelism, seconds, samples and tokens, MFU, memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cost_models import HardwareProfile
from cost_models.device import resolve_rate
from planner.clock import Configuration, interval
from planner.emit.scheme import Scheme, scheme_of
from planner.errors import InputError
from planner.frontends.inspect import flops
from planner.ir import Graph
from planner.planning import PlanDocument, Planned
from planner.planning.schemes import in_words
from planner.report.words import time_text

__all__ = ["headline"]

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
        scheme = scheme_of(plan, "a plan in degrees")
    except InputError:
        mesh = " x ".join(str(a.size) for a in plan.mesh.axes)
        return f"no one DP, TP and ZeRO for all: operators are divided one by one over a mesh of {mesh} (--details)"
    return _of_scheme(scheme, plan)


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
        parts.append(
            f"and {plan.devices - plan.devices // idle} of {plan.devices} devices repeat what others do: --devices "
            f"{plan.devices // idle} is as fast"
        )
    return ", ".join(parts)
