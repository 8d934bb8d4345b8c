"""`planner run --min-devices`: the plan for devices that are left, and what is said of it."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from planner.errors import InputError, UsageError

if TYPE_CHECKING:
    from planner.planning import PlanDocument
    from planner.runtime.training.recovery import Recovered, Replanned, Surviving

__all__ = ["surviving"]

_NAMED: Final = 5  # of lost tensors
_OPTIMIZERS: Final = {2: "adam", 1: "momentum", 0: "sgd"}  # by what they keep of each parameter


def surviving(least: int, plan: PlanDocument, model: Path, *, as_json: bool) -> Surviving:
    """That a training goes on as long as `least` devices are left.

    UsageError where no plan could be searched then.
    """
    from planner.cache import Store, default_folder
    from planner.requests.resuming import resumed
    from planner.requests.values import cache_size, profile_of
    from planner.runtime.training.recovery import Replanned, Surviving

    try:
        profile_of(plan.cluster.hardware)
    except (InputError, UsageError) as error:
        raise UsageError(
            f"--min-devices {least}: plans for fewer devices are searched for the hardware of this one, "
            f"{plan.cluster.hardware}, which is none of the packaged profiles ({error}); leave it out, and use "
            "planner resume --hardware FILE when devices are lost"
        ) from None
    store = Store(default_folder(), cache_size(), note=lambda _: None)

    def replan(now: PlanDocument, lost: Collection[int], slots: tuple[str, ...]) -> Replanned:
        found = resumed(now, model, lost, store=store, optimizer=_OPTIMIZERS[len(slots)])
        return Replanned(found.plan, found.transfer.schedule)

    def tell(done: Recovered) -> None:
        print(json.dumps({"recovered": _document(done)}) if as_json else _text(done), flush=True)

    return Surviving(least, replan, tell)


def _document(done: Recovered) -> dict[str, Any]:
    return {
        "ranks": list(done.ranks),
        "said": done.said,
        "devices_before": done.before,
        "devices_left": done.left,
        "devices": done.devices,
        "step": done.step,
        "planning_seconds": done.planning_s,
        "seconds": done.seconds,
        "moved_bytes": done.moved_bytes,
        "lost": list(done.lost),
        "checkpoint": None if done.checkpoint is None else str(done.checkpoint),
    }


def _text(done: Recovered) -> str:
    unused = f" of {done.left} left" if done.left > done.devices else ""
    line = (
        f"{done.said}; continuing with {done.devices} device{'' if done.devices == 1 else 's'}{unused} after step "
        f"{done.step}; recovery took {done.seconds:.2f} s, {done.planning_s:.2f} s of it planning"
    )
    if done.checkpoint is None:
        return f"{line}; {done.moved_bytes:,} bytes moved between devices"
    more = f" and {len(done.lost) - _NAMED} more" if len(done.lost) > _NAMED else ""
    return f"{line}; from {done.checkpoint}, since no device held all of {', '.join(done.lost[:_NAMED])}{more} any more"
