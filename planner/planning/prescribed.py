"""The program of a plan whose operators and parameters are all pinned, without the search over meshes around it."""

from __future__ import annotations

from planner.cost_models import HardwareProfile
from planner.errors import InputError
from planner.ir import DeviceMesh, Graph
from planner.lowering import Program, lower
from planner.planning.constraints import Constraints, Unfit, apply, contradiction, needed, resolve
from planner.planning.least_memory import smallest_hubs
from planner.planning.schemes.model import model_of
from planner.pricing import Machine, PriceTables, Settings, price
from planner.search.solve import solve

__all__ = ["program_of_pins"]


def program_of_pins(
    graph: Graph, pins: Constraints, profile: HardwareProfile, settings: Settings, tables: PriceTables | None = None
) -> Program:
    """What `planner.planning.make_plan` would lower under these pins, which name one mesh; memory is not looked at.
    `tables`: prices of the same graph, mesh and pins of operators, to be added to.

    InputError where the pins do not fit the mesh.
    """
    model = model_of(graph)
    rules, active = model.rules, model.active if settings.training else frozenset[str]()
    resolved = resolve(pins, graph, rules)
    (mesh,) = (DeviceMesh.of(*sizes) for sizes in pins.meshes)
    machine = Machine(profile, mesh, settings)
    pinned = apply(price(graph, machine, rules, active, None, tables, needed(resolved)), resolved)
    solution = None if isinstance(pinned, Unfit) else solve(pinned.problem)
    if isinstance(pinned, Unfit) or solution is None or solution.cost is None:
        whole = price(graph, machine, rules, active, None)  # with what is offered instead
        offered = apply(whole, resolved)
        if isinstance(offered, Unfit):
            raise InputError(f"constraints {pins.source}: mesh {mesh}: {offered.status}: {offered.message}")
        why = contradiction(whole, resolved)
        raise InputError(f"constraints {pins.source}: mesh {mesh}: {why.message if why else 'no plan holds all pins'}")
    choice = smallest_hubs(pinned, solution.choice)
    return lower(graph, mesh, rules, active, pinned.decode(choice))
