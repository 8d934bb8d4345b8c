"""What a pipeline over several kinds of devices is compared with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from planner.clock import predict_mixed
from planner.errors import UsageError
from planner.uniform.best import best_of
from planner.uniform.found import Scored
from planner.uniform.mixed.cluster import Cluster, Kind
from planner.uniform.mixed.search import Mixed
from planner.uniform.refine import refined
from planner.uniform.sample import Sample
from planner.uniform.space import Space

__all__ = ["Compared", "alone", "assumed", "even_layers"]

_BEGUN = 8  # of the fastest configurations, from which single changes begin
_LAID_OUT = 2  # of these, the ones of which other layouts are tried


@dataclass(frozen=True, slots=True)
class Compared:
    """`best` on so many devices that are all of one `kind`; None where nothing fits, or time was up."""

    kind: Kind
    devices: int
    best: Scored | None


def alone(sample: Sample, space: Space, kind: Kind, stopped: Callable[[], bool] = lambda: False) -> Compared:
    """The fastest uniform configuration on the devices of one kind, with the changes that make it faster: what a
    search finds there.  `sample`: on the kind's machine."""
    own = replace(space, devices=kind.devices, stages=None)
    found = best_of(sample, own, kind.memory_limit, _BEGUN, stopped).best
    changed = [refined(sample, own, kind.memory_limit, s, stopped, layouts=n < _LAID_OUT) for n, s in enumerate(found)]
    best = min(changed, key=lambda s: s.prediction.step_time_s, default=None)
    return Compared(kind, kind.devices, best)


def assumed(sample: Sample, space: Space, cluster: Cluster, stopped: Callable[[], bool] = lambda: False) -> Compared:
    """The best homogeneous assumption: all devices taken as the slowest kind, with the memory of the smallest, and
    layers dealt evenly.  `sample`: on the slowest kind's machine."""
    limits = [k.memory_limit for k in cluster.kinds if k.memory_limit is not None]
    found = best_of(sample, replace(space, stages=None), min(limits, default=None), 1, stopped).best
    return Compared(cluster.slowest(space.precision), cluster.devices, found[0] if found else None)


def even_layers(sample: Sample, mixed: Mixed) -> tuple[float, bool] | None:
    """Seconds of the same configuration on the same devices with its layers dealt evenly, and whether it fits; None
    where they cannot be."""
    c = mixed.configuration.with_(stage_layers=None)
    try:
        found = predict_mixed(sample.workload(c), c, [k.profile for k in mixed.stages])
    except UsageError:
        return None
    return found.step_time_s, found.fits([k.memory_limit for k in mixed.stages])
