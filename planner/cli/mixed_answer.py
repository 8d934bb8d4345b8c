"""A pipeline over several kinds of devices, in the words of the field and as the document of `--json`."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from planner.ir import Graph
from planner.planning.pipeline import global_batch
from planner.planning.plan_file import MIXED_SCHEMA
from planner.planning.planner import gap_of
from planner.planning.schemes import in_words, spelled
from planner.report.words import time_text
from planner.requests.degrees import degrees_of
from planner.requests.rates import computed_flops, tokens_of_sample
from planner.uniform.mixed import Cluster, Compared, FoundMixed, Mixed

__all__ = ["MixedAnswer", "document_of", "lines_of"]

_GIB = 2**30
_NOT_YET = "no plan.json: `verify`, `emit`, `report` and `run` handle only one kind of devices"


@dataclass(frozen=True, slots=True)
class MixedAnswer:
    """`best`: the configuration; `alone`: the best on each kind; `assumed`: the best homogeneous assumption; `even`:
    seconds of the same configuration with even layers, and whether it fits."""

    cluster: Cluster
    graph: Graph
    found: FoundMixed
    best: tuple[Mixed, ...]
    alone: tuple[Compared, ...]
    assumed: Compared
    even: tuple[float, bool] | None
    seconds: float
    cancelled: bool


def document_of(answer: MixedAnswer, model: Path) -> dict[str, Any]:
    """What `--json` prints, and --out keeps."""
    best, graph, cluster = answer.best[0], answer.graph, answer.cluster
    c, seconds, batch = best.configuration, best.step_time_s, global_batch(graph)
    tokens = tokens_of_sample(graph)
    rate = computed_flops(graph) / seconds
    bound = min(answer.found.bound_s, seconds)
    return {
        "schema": MIXED_SCHEMA,
        "plan": None,
        "not_yet": _NOT_YET,
        "model": str(model),
        "name": graph.name,
        "hardware": str(cluster),
        "devices": cluster.devices,
        "batch": batch,
        "precision": c.precision,
        "in_words": in_words(c),
        "strategy": spelled(c),
        "parallelism": degrees_of(c),
        "stages": _stages(best),
        "kinds": _kinds(answer, best),
        "step_time_s": seconds,
        "step_time_interval_s": [best.prediction.time_low_s, best.prediction.time_high_s],
        "step_time_lower_bound_s": bound,
        "gap": gap_of(seconds, bound),
        "status": "optimal" if bound == seconds else "feasible",
        "step_parts_s": dict(best.prediction.step.breakdown),
        "samples_per_s": batch / seconds,
        "tokens_per_s": None if tokens is None else batch * tokens / seconds,
        "flops_per_s_per_device": rate / cluster.devices,
        "mfu": rate / cluster.peak(c.precision),
        "peak_memory_bytes": max(h.peak for h in best.prediction.held),
        "compared": _compared(answer),
        "best": [{"strategy": spelled(m.configuration), "step_time_s": m.step_time_s} for m in answer.best],
        "considered": answer.found.considered,
        "simulated": answer.found.simulated,
        "refused": dict(answer.found.refused),
        "search_seconds": answer.seconds,
        "cancelled": answer.cancelled,
    }


def _stages(best: Mixed) -> list[dict[str, Any]]:
    per_stage = best.configuration.devices // best.configuration.pp
    rows = zip(best.stages, best.layers, best.prediction.step.rows, best.prediction.held, strict=True)
    return [
        {
            "hardware": kind.profile.name,
            "devices": per_stage,
            "layers": layers,
            "forward_s": row[0].forward_s,
            "backward_s": row[0].backward_s,
            "peak_memory_bytes": held.peak,
        }
        for kind, layers, row, held in rows
    ]


def _kinds(answer: MixedAnswer, best: Mixed) -> list[dict[str, Any]]:
    held = list(zip(best.stages, best.layers, best.prediction.held, strict=True))
    return [
        {
            "hardware": kind.profile.name,
            "devices": kind.devices,
            "stages": sum(k is kind for k, _, _ in held),
            "layers": sum(n for k, n, _ in held if k is kind),
            "peak_memory_bytes": max(h.peak for k, _, h in held if k is kind),
            "memory_limit_bytes": kind.memory_limit,
        }
        for kind in answer.cluster.kinds
    ]


def _compared(answer: MixedAnswer) -> list[dict[str, Any]]:
    """With each kind alone, with all devices taken as the slowest, and with even layers; seconds None where nothing
    fits."""

    def one(what: str, compared: Compared) -> dict[str, Any]:
        best = compared.best
        return {
            "what": what,
            "hardware": compared.kind.profile.name,
            "devices": compared.devices,
            "step_time_s": None if best is None else best.prediction.step_time_s,
            "strategy": None if best is None else spelled(best.configuration),
            "in_words": None if best is None else in_words(best.configuration),
        }

    found = [one("alone", a) for a in answer.alone]
    found.append(one("all taken as the slowest, layers even", answer.assumed))
    if answer.even is not None:
        seconds, fits = answer.even
        title = "this configuration, layers even"
        even = {"what": title, "hardware": str(answer.cluster), "devices": answer.cluster.devices}
        found.append({**even, "step_time_s": seconds, "fits": fits})
    return found


def lines_of(answer: MixedAnswer, document: dict[str, Any]) -> list[str]:
    """The summary."""
    low, high = document["step_time_interval_s"]
    kinds = " + ".join(f"{k.devices:,} x {k.profile.name}" for k in answer.cluster.kinds)
    rates = [f"{document['samples_per_s']:,.4g} samples/s"]
    if document["tokens_per_s"] is not None:
        rates.append(f"{document['tokens_per_s']:,.0f} tokens/s")
    each = document["flops_per_s_per_device"] / 1e12
    rates.append(f"{each:.4g} TFLOP/s per device (MFU {document['mfu']:.1%} of the sum of all peaks)")
    memory = (f"{k['hardware']} {_of_limit(k)}" for k in document["kinds"])
    lines = [
        f"{document['name']}: training on {kinds}, batch {document['batch']:,}, {document['precision']}",
        f"plan        {document['in_words']}",
        *_of_stages(document["stages"]),
        f"step        {time_text(document['step_time_s'])}, 80 % between {time_text(low)} and {time_text(high)}",
        f"            {', '.join(rates)}",
        f"memory      {', '.join(memory)} per device at peak",
        *_of_compared(document),
    ]
    lines += [f"also        {time_text(b['step_time_s'])}: {b['strategy']}" for b in document["best"][1:]]
    lines.append(
        f"bound       no pipeline over all of these devices, of {document['considered']:,}, takes less than "
        f"{time_text(document['step_time_lower_bound_s'])} (gap {document['gap']:.1%})"
    )
    lines.append(f"not yet     {document['not_yet']}")
    if document["cancelled"]:
        lines.append("cancelled   this is the best found until then")
    return lines


def _of_limit(kind: dict[str, Any]) -> str:
    limit = kind["memory_limit_bytes"]
    return f"{kind['peak_memory_bytes'] / _GIB:.2f} GiB" + ("" if limit is None else f" of {limit / _GIB:.2f} GiB")


def _of_stages(stages: list[dict[str, Any]]) -> list[str]:
    """A line for each run of stages alike."""
    out: list[str] = []
    numbered = list(enumerate(stages))
    for key, run in groupby(numbered, key=lambda s: (s[1]["hardware"], s[1]["devices"], s[1]["layers"])):
        places = [n for n, _ in run]
        name, devices, layers = key
        which = f"stage {places[0]}" if len(places) == 1 else f"stages {places[0]} to {places[-1]}"
        each = "" if len(places) == 1 else " each"
        some = "layer" if layers == 1 else "layers"
        out.append(f"{'' if out else 'stages':<12}{which}: {layers} {some}{each} on {devices} x {name}")
    return out


def _of_compared(document: dict[str, Any]) -> list[str]:
    out: list[str] = []
    own = document["step_time_s"]
    for found in document["compared"]:
        name, devices, seconds = found["hardware"], found["devices"], found["step_time_s"]
        what = {
            "alone": f"{devices:,} x {name} alone",
            "this configuration, layers even": "this configuration with equally many layers on every stage",
        }.get(found["what"], f"all {devices:,} treated as {name}, equally many layers on every stage")
        if seconds is None:
            text = "no configuration fits"
        else:
            more = seconds / own - 1
            text = f"{time_text(seconds)}, {abs(more):.0%} {'slower' if more >= 0 else 'FASTER'}"
            text += "" if found.get("fits", True) else ", and does not fit"
            text += f" ({found['in_words']})" if found.get("in_words") else ""
        out.append(f"{'' if out else 'compared':<12}{what}: {text}")
    quicker = [f for f in document["compared"] if "strategy" in f and (f["step_time_s"] or own) < own]
    if quicker:
        best = min(quicker, key=lambda f: f["step_time_s"])
        what = "leave the others out" if best["what"] == "alone" else f"take all of them as {best['hardware']}"
        out.append(f"advice      {what}: --hardware {best['hardware']} --devices {best['devices']}")
    return out
