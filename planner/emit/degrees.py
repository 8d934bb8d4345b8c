"""What training frameworks that take degrees of parallelism have in common: what they refuse of a plan, and do not
carry."""

from __future__ import annotations

import math

from planner.emit.layers import Stages
from planner.emit.scheme import Scheme, scheme_of
from planner.emit.wording import some
from planner.errors import InputError
from planner.planning.document import PlanDocument

__all__ = ["lost_in_degrees", "lost_in_stages", "size_text", "training_scheme", "zero_level"]


def training_scheme(plan: PlanDocument, target: str) -> Scheme:
    """InputError where the plan is no training, has no degrees, or leaves devices idle."""
    if plan.schedule.mode != "training":
        raise InputError(f"plan: is one of inference, and {target} trains: search with --mode training")
    scheme = scheme_of(plan, target)
    scheme.check_busy(target)
    return scheme


def zero_level(plan: PlanDocument, scheme: Scheme) -> int:
    """What data-parallel ranks divide: 0 nothing; 1 the optimizer's state; 2 gradients, too, in every micro-batch;
    3 parameters, which are gathered for every pass."""
    level = plan.schedule.run.get("zero", 1 if scheme.shards > 1 else 0)
    assert isinstance(level, int)
    return level


def size_text(size: float) -> str:
    """Bytes for a reader."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.2f} MiB"


def lost_in_degrees(plan: PlanDocument, scheme: Scheme, target: str, displaced: tuple[str, str] | None) -> list[str]:
    """`displaced`: two axes that the framework nests the other way round.

    InputError where parameters are in shards, but most of what they hold is not.
    """
    out = [
        f"how {len(plan.operators)} operators are split, and {len(plan.redistributions)} redistributions: {target} "
        "derives its own from the degrees; `planner run` executes the plan to the letter"
    ]
    if displaced is not None:
        a, b = displaced
        out.append(
            f"which ranks work together: axis {a} is outside of {b} in the plan ({plan.mesh}), and inside in {target}: "
            "groups of the same sizes on other devices"
        )
    if scheme.whole:
        whole, every = (sum(math.prod(plan.parameters[n].shape) for n in p) for p in (scheme.whole, plan.parameters))
        if 2 * whole > every:
            largest = max(scheme.whole, key=lambda n: math.prod(plan.parameters[n].shape))
            raise InputError(
                f"plan: {len(scheme.whole)} of {len(plan.parameters)} parameters ({largest}, …) stay whole, with "
                f"{whole / every:.0%} of all elements, and the others are in {scheme.shards} shards; {target} divides "
                "all or none: pin `stored` alike, or rest=zero (docs/constraints.md)"
            )
        out.append(
            f"{len(scheme.whole)} parameters that stay whole ({some(scheme.whole)}; {whole / every:.1%} of all "
            f"elements): {target} keeps them in {scheme.shards} shards as the others"
        )
    tensor = {a for a, use in scheme.uses.items() if use == "tensor"}
    positions = [
        n
        for n, p in plan.parameters.items()
        if scheme.cuts[n] == "whole" and any(tensor & set(d) for x in p.compute for d in x.dims)
    ]
    if positions:
        out.append(f"parameters divided along positions ({some(positions)}): whole on every rank in {target}")
    return out


def lost_in_stages(stages: Stages, target: str) -> list[str]:
    if not stages.moved:
        return []
    return [
        f"where stages begin: {target} cuts between layers, and keeps what comes before and behind them in the first "
        f"and last stage; moved, with their memory and time: {some(stages.moved)}"
    ]
