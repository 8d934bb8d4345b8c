"""Pins applied to a priced problem: states that they rule out are forbidden, shapes stay as they are.

Everything downstream is none the wiser: the optimum, the bound and the gap are those of the pinned space.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.errors import InputError
from planner.ir import DeviceMesh
from planner.planning.constraints.conflicts import conflict
from planner.planning.constraints.masks import Demand, Unoffered, demands_of, unoffered
from planner.planning.constraints.resolve import Pins
from planner.pricing import PricedProblem
from planner.search.problem import FORBIDDEN, IntArray

__all__ = ["Unfit", "apply", "contradiction", "masked", "no_mesh_left"]

MOST_REASONS = 5


@dataclass(frozen=True, slots=True)
class Unfit:
    """Why the pins leave no plan on a mesh, memory aside.  `failed` counts the pins that the mesh cannot hold; where it
    is 0 each pin can hold, but not all together."""

    mesh: DeviceMesh
    failed: int
    message: str

    @property
    def status(self) -> str:
        return "pins do not fit" if self.failed else "pins contradict"


def apply(priced: PricedProblem, pins: Pins) -> PricedProblem | Unfit:
    """The problem with the states that the pins rule out forbidden, or why some pins cannot hold on this mesh."""
    demands = demands_of(pins, priced)
    _check_read(priced, pins, demands)
    failed = unoffered(demands, priced)
    mesh = priced.machine.mesh
    if failed:
        return Unfit(mesh, len({u.restriction.where for u in failed}), _reasons(failed))
    pinned = masked(priced, demands)
    borne = {d.node for d in demands}
    empty = next((n for n in borne if pinned.problem.nodes[n].costs.min() >= FORBIDDEN), None)
    if empty is not None:
        return Unfit(mesh, 0, conflict(priced, [d for d in demands if d.node == empty]) or "")
    return pinned


def masked(priced: PricedProblem, demands: Sequence[Demand]) -> PricedProblem:
    """The problem with all states forbidden that some demand does not allow."""
    nodes = list(priced.problem.nodes)
    shared: dict[tuple[int, ...], IntArray] = {}  # layers that look alike keep sharing arrays
    for node, own in _by_node(demands).items():
        masks = list({id(d.allowed): d.allowed for d in own}.values())
        key = (id(nodes[node].costs), *(id(m) for m in masks))
        if key not in shared:
            shared[key] = np.where(np.logical_and.reduce(masks), nodes[node].costs, FORBIDDEN)
        nodes[node] = replace(nodes[node], costs=shared[key])
    return replace(priced, problem=replace(priced.problem, nodes=nodes))


def contradiction(priced: PricedProblem, pins: Pins) -> Unfit | None:
    """Which pins contradict each other on this mesh, memory aside; None where some plan holds them all.

    `priced` is the problem without the pins.
    """
    message = conflict(priced, demands_of(pins, priced))
    return None if message is None else Unfit(priced.machine.mesh, 0, message)


def no_mesh_left(pins: Pins, unfit: Sequence[Unfit]) -> InputError:
    """The error where no mesh is left for the pins, told of the mesh that comes nearest."""
    nearest = min(unfit, key=lambda u: u.failed)
    rest = " or ".join(str(u.mesh) for u in unfit if u is not nearest)
    others = f", and no more of them hold on {rest}" if rest else ""
    if nearest.failed:
        head = f"{nearest.failed} pin{'s' if nearest.failed > 1 else ''} cannot hold on mesh {nearest.mesh}{others}"
    else:
        head = f"pins contradict each other on mesh {nearest.mesh}{others}"
    return InputError(f"constraints {pins.constraints.source}: {head}:\n  {nearest.message}")


def _reasons(failed: Sequence[Unoffered]) -> str:
    """A line per pin and reason, however many operators it bears on."""
    lines: dict[tuple[str, str, str], tuple[str, int]] = {}
    for u in failed:
        r = u.restriction
        first, count = lines.get((r.where, r.text, u.reason), (r.object, 0))
        lines[r.where, r.text, u.reason] = first, count + 1
    out = []
    for (where, text, reason), (first, count) in lines.items():
        others = f" and {count - 1} more" if count > 1 else ""
        out.append(f"{where}: {first}{others} {text}: {reason}")
    more = [f"... and {len(out) - MOST_REASONS} more"] if len(out) > MOST_REASONS else []
    return "\n  ".join((*out[:MOST_REASONS], *more))


def _by_node(demands: Sequence[Demand]) -> dict[int, list[Demand]]:
    found: dict[int, list[Demand]] = defaultdict(list)
    for d in demands:
        found[d.node].append(d)
    return found


def _check_read(priced: PricedProblem, pins: Pins, demands: Sequence[Demand]) -> None:
    borne = {(d.restriction.kind, d.restriction.name) for d in demands}
    for r in pins.restrictions:
        if (r.kind, r.name) not in borne:
            raise InputError(f"constraints {r}: nothing reads it on the devices; pin how it is `produced` instead")
