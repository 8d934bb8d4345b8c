"""What a search for a plan knows before it begins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from planner.cost_models import usable_memory_bytes
from planner.errors import InputError
from planner.ir import DeviceMesh, Graph
from planner.planning.constraints import Pins, resolve
from planner.planning.meshes import logical_meshes
from planner.planning.recall import Recall
from planner.planning.request import Request
from planner.planning.targets import said_by
from planner.pricing import PriceTables, active_tensors, bind_rules
from planner.rules.rule import Rule

__all__ = ["SearchContext"]


@dataclass(frozen=True, slots=True)
class SearchContext:
    """The `graph` as the target says it, the `request`, and what follows from both.

    meshes        those that are searched
    rules         of the operators by name; operators of the types in `without_rule` are replicated
    active        tensors that gradients pass through; none outside of training
    limit         bytes per device that a plan may use at most; None: no limit
    room          the same for the search, None where a known configuration says what is held
    pins          what the plan must hold to
    recall        a plan to begin with
    tables        what an earlier search of this graph with the same settings has priced; what this one prices is kept
                  there, which changes no answer
    """

    graph: Graph
    request: Request
    meshes: tuple[DeviceMesh, ...]
    rules: Mapping[str, Rule]
    without_rule: tuple[str, ...]
    active: frozenset[str]
    limit: int | None
    room: int | None
    pins: Pins | None
    recall: Recall | None
    tables: dict[DeviceMesh, PriceTables]

    @classmethod
    def of(
        cls,
        graph: Graph,
        request: Request,
        recall: Recall | None = None,
        tables: dict[DeviceMesh, PriceTables] | None = None,
    ) -> Self:
        """InputError, UsageError where the constraints cannot be resolved on the graph, or there is nothing to plan."""
        if not graph.ops:
            raise InputError(
                f"{graph.name or 'the model'}: nothing is left to plan, since its outputs follow from sizes and "
                "constants alone; give a model that computes with its inputs"
            )
        graph = said_by(request.settings.target, graph)
        rules, without_rule = bind_rules(graph)
        limit = usable_memory_bytes(request.profile) if request.memory_limit is None else request.memory_limit
        pins = None if request.constraints is None else resolve(request.constraints, graph, rules)
        meshes = request.meshes or logical_meshes(request.devices)
        if pins is not None and pins.constraints.meshes:
            meshes = pins.meshes(request.devices, request.meshes)
        return cls(
            graph=graph,
            request=request,
            meshes=meshes,
            rules=rules,
            without_rule=tuple(without_rule),
            active=active_tensors(graph, rules) if request.settings.training else frozenset(),
            limit=limit,
            room=limit if request.configured is None else None,
            pins=pins,
            recall=recall,
            tables={} if tables is None else tables,
        )
