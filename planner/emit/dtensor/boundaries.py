"""How data lies where it enters and leaves the modules that hold parameters, as the plan has it.

DTensor derives placements operator by operator.  It does not always come out where the plan is, and not everywhere in
one piece: the pending sum of a divided table (a mask goes with it) can be reduced once and not be read twice (2.13).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planner.emit.modules import Modules, owner, weights_of
from planner.emit.names import Name
from planner.ir import Layout
from planner.planning.document import PlanDocument

__all__ = ["Boundary", "boundaries"]


@dataclass(frozen=True, slots=True)
class Boundary:
    """Layouts of a module's one input and one result, without pending sums; None where there is not just one."""

    input: Layout | None
    result: Layout | None


def boundaries(plan: PlanDocument, names: Mapping[str, Name]) -> dict[str, Boundary]:
    """Module, as the network names it → its boundary.  Where operators do not say their paths, modules are left out."""
    found = Modules.of_plan(plan, names).of_operator
    owners = {owner(emitted.name) for emitted in names.values()}
    readers = {r.operator for p in plan.parameters.values() for r in p.readers}
    weights = weights_of(plan)
    computed = {t: o for o, op in plan.operators.items() for t in op.outputs}
    members: dict[str, list[str]] = defaultdict(list)
    for name in plan.operators:
        module = found.get(name, "")
        if module and name not in weights and (module in owners or name in readers):
            members[module].append(name)
    return {module: _boundary(plan, ops, weights, computed) for module, ops in members.items()}


def _boundary(
    plan: PlanDocument, members: Sequence[str], weights: Mapping[str, str], computed: Mapping[str, str]
) -> Boundary:
    inputs: dict[str, Layout] = {}
    results: dict[str, Layout] = {}
    inside = {t for name in members for t in plan.operators[name].inputs}
    for name in members:
        op = plan.operators[name]
        for t, x in zip(op.inputs, op.operands, strict=False):
            known = t in plan.inputs or (t in computed and t not in weights)
            if x is not None and known and computed.get(t) not in members:
                inputs.setdefault(t, Layout(x.layout().dims))
        for t, x in zip(op.outputs, op.results, strict=False):
            if x is not None and t not in inside:
                results[t] = Layout(x.layout().dims)
    return Boundary(_only(inputs), _only(results))


def _only(found: Mapping[str, Layout]) -> Layout | None:
    return next(iter(found.values())) if len(found) == 1 else None
