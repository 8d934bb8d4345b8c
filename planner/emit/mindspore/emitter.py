"""What a MindSpore job needs of a plan: strategy files, the module that applies them, rank table, scripts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from planner.emit.emission import Emission
from planner.emit.mindspore.launch import launch_scripts
from planner.emit.mindspore.module import context_settings, module_text
from planner.emit.mindspore.rank_table import PER_SERVER, Server, check_servers, rank_table
from planner.emit.mindspore.strategy import Strategies, strategies_of_plan
from planner.emit.mindspore.strategy_map import to_json, to_protobuf
from planner.emit.names import Name
from planner.errors import InputError
from planner.planning.document import PlanDocument

__all__ = ["emit_mindspore"]

_MOST_NAMED = 6


def emit_mindspore(plan: PlanDocument, names: Mapping[str, Name], *, servers: Sequence[Server] = ()) -> Emission:
    """`servers`: from a hosts file; without them there is no rank table.

    InputError where the plan cannot be said in MindSpore's terms, or the servers do not hold its devices.
    """
    found = strategies_of_plan(plan, names)
    shards = _optimizer_shards(found)
    files = {
        "strategy.ckpt": to_protobuf(found.map),
        "parallel.py": module_text(
            plan, found.unnamed, found.displaced, optimizer_shards=shards, blocks=plan.schedule.recompute
        ).encode(),
        "context.json": _json(context_settings(plan)),
    }
    lost = _lost(plan, found)
    try:
        files["strategy.json"] = to_json(found.map)
    except ValueError as e:
        lost.append(f"strategy.json is left out: {e}")
    gpu = not plan.cluster.hardware.startswith("ascend")
    halves = plan.cluster.hardware == "ascend-910a"
    if servers:
        check_servers(servers, "--hosts", halves=halves)
        held = sum(len(s.devices) for s in servers)
        if held != plan.mesh.devices:
            raise InputError(f"--hosts: the plan is for {plan.mesh.devices} devices, the servers hold {held}")
        if not gpu:
            files["rank_table.json"] = _json(rank_table(servers))
    per_server = len(servers[0].devices) if servers else min(plan.mesh.devices, PER_SERVER)
    scripts = launch_scripts(
        devices=plan.mesh.devices,
        per_server=per_server,
        numbers=[d.number for d in servers[0].devices] if servers else range(per_server),
        addresses=[s.server_id for s in sorted(servers, key=lambda s: s.server_id)],
        gpu=gpu,
    )
    files |= {name: text.encode() for name, text in scripts.items()}
    return Emission(files, tuple(lost))


def _optimizer_shards(found: Strategies) -> int:
    """The largest group that divides the optimizer's state of one weight."""
    return max((p.arrangement.optimizer_shards for p in found.map.parameters.values()), default=0)


def _lost(plan: PlanDocument, found: Strategies) -> list[str]:
    out = []
    if found.unnamed:
        more = f" and {len(found.unnamed) - _MOST_NAMED} more" if len(found.unnamed) > _MOST_NAMED else ""
        out.append(
            f"{len(found.unnamed)} operators without a parameter have no key in the strategy file "
            f"({', '.join(found.unnamed[:_MOST_NAMED])}{more}): parallel.py lists their strategies for shard(); those "
            "that are not given one follow MindSpore's propagation"
        )
    if found.displaced:
        shown = ", ".join(list(found.displaced)[:_MOST_NAMED]) + (", …" if len(found.displaced) > _MOST_NAMED else "")
        out.append(
            f"the ranks of {len(found.displaced)} operators ({shown}): told shards alone, MindSpore lays them out over "
            "other ranks than the plan; parallel.py does not load the file and lists them for shard(), as Layouts"
        )
    if plan.redistributions:
        out.append(
            f"{len(plan.redistributions)} redistributions: MindSpore chooses the operators between two layouts itself"
        )
    if any(r.partial for o in plan.operators.values() for r in o.results if r is not None):
        out.append("sums that the plan leaves pending: MindSpore reduces them where they arise")
    if plan.schedule.recompute:
        out.append(f"{len(plan.schedule.recompute)} recomputed blocks: parallel.py says where recompute() belongs")
    return out


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=1) + "\n").encode()
