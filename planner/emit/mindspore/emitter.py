"""What a MindSpore job needs of a plan: strategy files, the module that applies them, rank table, scripts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from planner.clock import Configuration
from planner.emit.emission import Emission
from planner.emit.hosts import Server
from planner.emit.launch import hosts_of
from planner.emit.mindspore.hybrid import hybrid_text
from planner.emit.mindspore.launch import launch_scripts
from planner.emit.mindspore.module import module_text, optimizer_of
from planner.emit.mindspore.optimizer import differences
from planner.emit.mindspore.rank_table import check_counts, check_servers, rank_table
from planner.emit.mindspore.stages import staged
from planner.emit.mindspore.strategy import Strategies, joined, merged
from planner.emit.mindspore.strategy_map import StrategyMap, to_json, to_protobuf
from planner.emit.names import Name
from planner.emit.stages import holders
from planner.emit.uniform import Model, recomputes_layers
from planner.emit.wording import some
from planner.errors import InputError
from planner.planning.document import PlanDocument

__all__ = ["emit_mindspore", "unsupported"]


def unsupported(c: Configuration, model: Model) -> str:
    """What of a uniform configuration MindSpore's files cannot express; empty where they can express all of it."""
    if c.cp > 1:
        return "context parallelism"  # rows of a product are one dimension there, whose parts are contiguous
    if c.zero and 1 < c.ep < c.dp:
        return "ZeRO beside experts on fewer ranks"  # whose first dimension, of experts, is divided by these already
    return "" if recomputes_layers(c) else f"{c.recompute} recomputation of a part"


def emit_mindspore(plan: PlanDocument, names: Mapping[str, Name], *, servers: Sequence[Server] = ()) -> Emission:
    """`servers`: from a hosts file; without them there is no rank table.

    InputError where the plan cannot be said in MindSpore's terms, or the servers do not hold its devices.
    """
    made = staged(plan, names)
    found, maps = joined(made.strategies), made.maps
    _check_stages(made.strategies)
    files = {"parallel.py": module_text(plan, names, found, optimizer_of(found, made.size)).encode()}
    lost = [*_lost(plan, found), *differences(plan, made.wanted, made.size)]
    if len(maps) == 1:
        _add_maps(files, lost, {"strategy": maps[0]})
    else:
        _add_maps(
            files, lost, {**{f"strategy_stage{s}": m for s, m in enumerate(maps)}, "strategy_merged": merged(maps)}
        )
    hybrid = hybrid_text(plan, names)
    if hybrid:
        files["hybrid.py"] = hybrid.encode()
    gpu = not plan.cluster.hardware.startswith("ascend")
    table = not gpu and bool(servers) and all(s.addressed for s in servers)
    # Rank tables number ranks in the order of the servers' names; otherwise they follow the file, the first has rank 0.
    hosts = hosts_of(plan, sorted(servers, key=lambda s: s.server_id) if table else servers)
    if table:
        check_servers(servers, "--hosts", halves=plan.cluster.hardware == "ascend-910a")
        files["rank_table.json"] = (json.dumps(rank_table(servers), indent=1) + "\n").encode()
    elif not gpu:
        check_counts(hosts)
        if servers:
            lost.append("no rank table: the hosts file counts devices, and does not give their addresses")
    numbers = [d.number for d in servers[0].devices] if servers else range(hosts.per_host)
    scripts = launch_scripts(hosts, numbers=numbers, gpu=gpu, table=table)
    files |= {name: text.encode() for name, text in scripts.items()}
    return Emission(files, tuple(lost))


def _check_stages(stages: Sequence[Strategies]) -> None:
    """InputError where a stage has no parameter: MindSpore counts the stages of a strategy file by those of its
    parameters, and transforms the shards of that many ranks, without a word of the others."""
    empty = [s for s, x in enumerate(stages) if not x.map.parameters]
    if empty and len(stages) > 1:
        raise InputError(
            f"plan: stage {empty[0]} of {len(stages)} reads no parameter, and MindSpore counts the stages of strategy "
            "files by their parameters, so that transform_checkpoints would leave its ranks out; search with fewer "
            "--stages, or with pins that cut elsewhere"
        )


def _add_maps(files: dict[str, bytes], lost: list[str], maps: Mapping[str, StrategyMap]) -> None:
    """Each as protobuf and as JSON, where JSON can express it."""
    for name, m in maps.items():
        files[f"{name}.ckpt"] = to_protobuf(m)
        try:
            files[f"{name}.json"] = to_json(m)
        except ValueError as e:
            lost.append(f"{name}.json is left out: {e}")


def _lost(plan: PlanDocument, found: Strategies) -> list[str]:
    out = []
    if found.unnamed:
        out.append(
            f"{len(found.unnamed)} operators without a parameter have no key in the strategy file "
            f"({some(found.unnamed)}): parallel.py lists their strategies for shard(); those that are not "
            "given one MindSpore divides along their first dimension among all devices"
        )
    if found.displaced:
        out.append(
            f"the ranks of {len(found.displaced)} operators ({some(found.displaced)}): told shards alone, "
            "MindSpore lays them out over other ranks than the plan; parallel.py does not load the file and lists "
            f"every operator for shard(), as Layouts{_other_order(plan)}"
        )
    if any(k.primitive in ("Add", "Mul", "BiasAdd") for k in found.keyed.values()):
        out.append(
            "keys follow the operators of the ONNX graph: where the network has another primitive in their place "
            "(RmsNorm for Mul, say) they match nothing, and MindSpore decides"
        )
    held = [n for n, stages in holders(plan).items() if len(stages) > 1]
    if held:
        out.append(
            f"{len(held)} parameters that several stages read ({some(held)}): each holds one, and MindSpore sums "
            "their gradients where it knows them for one parameter"
        )
    if plan.redistributions:
        out.append(
            f"{len(plan.redistributions)} redistributions: MindSpore chooses the operators between two layouts itself"
        )
    if any(r.partial for o in plan.operators.values() for r in o.results if r is not None):
        out.append("sums that the plan leaves pending: MindSpore reduces them where they arise")
    if plan.schedule.recompute:
        out.append(
            f"{len(plan.schedule.recompute)} recomputed blocks are told by cells: what a cell without parameters of "
            "the block computes is kept"
        )
    return out


def _other_order(plan: PlanDocument) -> str:
    sizes = [n for n in plan.mesh.shape if n > 1]
    mesh_text = "x".join(map(str, reversed(sizes)))
    return f"; a search with --mesh {mesh_text}, the other way round, may spare that" if len(sizes) > 1 else ""
