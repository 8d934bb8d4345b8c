"""What a step sends over the cluster's links: inside of servers, and between them.

Bytes are those that a device sends, on average over the devices of its stage, where collectives go around in rings
(all-gather, reduce-scatter, all-reduce) and all-to-all goes from each to each, as most libraries run them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from planner.cost_models import ProfileError, load_profile
from planner.planning.document import PlanDocument
from planner.report.held import local_elements

__all__ = ["traffic"]

MOST = 16_384  # devices whose groups are looked at one by one

_RING = {"all_gather": 1, "reduce_scatter": 1, "all_reduce": 2}  # kind → how often its ring goes around
_FREE = ("slice",)


@dataclass(frozen=True, slots=True)
class _Way:
    """Of what a group's members send: the part that stays in servers, in a ring, and from each to each."""

    ranks: int
    ring: float
    pairs: float


class _Ways:
    """Where groups lie; `first`: number of the stage's first rank in the whole cluster."""

    def __init__(self, plan: PlanDocument, per_server: int) -> None:
        self.plan, self.per_server = plan, per_server
        self.of = lru_cache(maxsize=None)(self._of)

    def _of(self, axes: tuple[str, ...], stage: int) -> _Way:
        mesh = self.plan.mesh
        first = stage * mesh.devices
        return self.among([[first + r for r in group] for group in mesh.groups(axes)])

    def among(self, groups: Sequence[Sequence[int]]) -> _Way:
        ring = pairs = members = 0.0
        size = max(map(len, groups), default=1)
        for group in groups:
            servers = [r // self.per_server for r in group]
            n = len(group)
            members += n
            ring += sum(a == b for a, b in zip(servers, [*servers[1:], *servers[:1]], strict=True))
            pairs += sum(servers.count(s) * (servers.count(s) - 1) for s in set(servers)) / max(1, n - 1)
        return _Way(size, ring / members if members else 1.0, pairs / members if members else 1.0)


@dataclass(frozen=True, slots=True)
class _Sent:
    """Bytes that a device of a stage sends in a step, by one collective or to another stage."""

    stage: int
    axes: str
    what: str
    way: _Way
    bytes: float
    ring: bool

    @property
    def inside(self) -> float:
        """The part of them that stays in servers."""
        return self.way.ring if self.ring else self.way.pairs


def traffic(plan: PlanDocument) -> dict[str, Any] | None:
    """None of more than `MOST` devices.  `rows`: for each stage and set of mesh axes, what is sent and how much of it
    between servers, in bytes of a step that a device sends; `links`: what the profile says that a device
    can send, where it is the packaged one."""
    if plan.devices > MOST:
        return None
    per_server = plan.cluster.devices_per_server or plan.devices
    ways = _Ways(plan, per_server)
    rows: dict[tuple[int, str, str], list[_Sent]] = defaultdict(list)
    for sent in (*_redistributed(plan, ways), *_inside(plan, ways), *_across(plan, ways), *_handed_on(plan, ways)):
        rows[sent.stage, sent.axes, sent.what].append(sent)
    return {
        "per_server": per_server,
        "servers": -(-plan.devices // per_server),
        "links": _links(plan),
        "rows": [_row(rows[key]) for key in sorted(rows) if sum(sent.bytes for sent in rows[key]) >= 1],
    }


def _row(parts: Sequence[_Sent]) -> dict[str, Any]:
    last = parts[-1]
    return {
        "stage": last.stage,
        "axes": last.axes,
        "what": last.what,
        "ranks": last.way.ranks,
        "count": len(parts),
        "inside_bytes": round(sum(sent.bytes * sent.inside for sent in parts)),
        "between_bytes": round(sum(sent.bytes * (1 - sent.inside) for sent in parts)),
    }


def _redistributed(plan: PlanDocument, ways: _Ways) -> Iterator[_Sent]:
    """By redistributions, whose bytes are those of the whole tensor of a group."""
    stage_of = {t: o.stage for o in plan.operators.values() for t in o.outputs}
    reader_of: dict[str, int] = {}
    for o in plan.operators.values():
        for t in o.inputs:
            reader_of.setdefault(t, o.stage)
    passes = plan.schedule.micro_batches
    each_pass = plan.schedule.run.get("zero") in (2, 3)
    for r in plan.redistributions:
        stored = r.tensor in plan.parameters
        stage = stage_of.get(r.tensor, reader_of.get(r.tensor, 0))
        times = passes if not stored or each_pass else 1
        what = ("parameters" if r.direction == "forward" else "gradients") if stored else "activations"
        for s in r.steps:
            if s.kind in _FREE or not s.axes:
                continue
            way = ways.of(tuple(s.axes), stage)
            if s.kind in _RING:
                sent = s.bytes * _RING[s.kind] * (way.ranks - 1) / way.ranks
            elif s.kind == "all_to_all":
                sent = s.bytes * (way.ranks - 1) / way.ranks / way.ranks
            else:
                sent = s.bytes
            yield _Sent(stage, ".".join(s.axes), what, way, sent * times, s.kind in _RING)


def _inside(plan: PlanDocument, ways: _Ways) -> Iterator[_Sent]:
    """By collectives inside operators, whose bytes are the payload of one rank."""
    for o in plan.operators.values():
        for c in o.inner:
            way = ways.of(tuple(c.axes), o.stage)
            others = (way.ranks - 1) / way.ranks
            around = {"all_gather": way.ranks - 1, "reduce_scatter": others, "all_reduce": 2 * others}
            around["all_to_all"] = others
            sent = c.bytes * c.count * around.get(c.kind, 1) * plan.schedule.micro_batches
            yield _Sent(o.stage, ".".join(c.axes), "activations", way, sent, c.kind in _RING)


def _across(plan: PlanDocument, ways: _Ways) -> Iterator[_Sent]:
    """Gradients of parameters that several stages read, summed among these."""
    for p in plan.parameters.values():
        if p.across is not None:
            way = ways.among(p.across.groups)
            for stage in p.stages:
                yield _Sent(stage, "stages", "gradients", way, 2 * p.across.bytes * (way.ranks - 1) / way.ranks, True)


def _handed_on(plan: PlanDocument, ways: _Ways) -> Iterator[_Sent]:
    """From stage to stage."""
    size = plan.mesh.devices
    for (stage, to, what), sent in _sends(plan).items():
        way = ways.among([[stage * size + r, to * size + r] for r in range(size)])
        yield _Sent(stage, "stages", what, way, sent * plan.schedule.micro_batches, False)


def _sends(plan: PlanDocument) -> dict[tuple[int, int, str], float]:
    """Bytes of one micro-batch that a device of one stage sends to one of another: activations, and their gradients
    on the way back."""
    wide = 4 if plan.schedule.precision == "fp32" else 2
    out: dict[tuple[int, int, str], float] = defaultdict(float)
    made = {t: o.stage for o in plan.operators.values() for t in o.outputs}
    seen: set[tuple[str, int]] = set()
    for o in plan.operators.values():
        for t, layout in zip(o.inputs, o.operands, strict=False):
            known = plan.tensors.get(t)
            if made.get(t, o.stage) == o.stage or (t, o.stage) in seen:
                continue
            if layout is None or known is None or known.shape is None or "float" not in known.dtype:
                continue
            seen.add((t, o.stage))
            size = local_elements(plan, known.shape, layout) * wide
            out[made[t], o.stage, "activations"] += size
            if known.gradient is not None:
                out[o.stage, made[t], "gradients of activations"] += size
    return dict(out)


def _links(plan: PlanDocument) -> dict[str, float]:
    try:
        profile = load_profile(plan.cluster.hardware)
    except (ProfileError, OSError):
        return {}
    if profile.digest != plan.cluster.profile_digest:
        return {}
    out = {}
    if profile.server is not None and profile.server.bandwidth_bytes_per_s:
        out["inside"] = profile.server.bandwidth_bytes_per_s
    if profile.network is not None:
        out["between"] = profile.network.bandwidth_bytes_per_s
    return out
