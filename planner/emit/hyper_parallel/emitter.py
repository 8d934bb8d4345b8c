"""What a HyperParallel job needs of a plan: the module that lays a network out, the overrides of its own planner, and
the layouts of parameters for checkpoints.

Read at mindspore-ai/hyper-parallel: fdd0a80 (March 2026) for ShardingPlan and layouts, its trainer of August 2026 for
`plan_overrides`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from planner.clock import Configuration
from planner.emit.emission import Emission
from planner.emit.hyper_parallel.boundaries import Boundary, leaves_of
from planner.emit.hyper_parallel.grid import Grid, grid_of
from planner.emit.hyper_parallel.layout_file import Lying, to_json
from planner.emit.hyper_parallel.module import Placed, module_text
from planner.emit.hyper_parallel.overrides import NAMES, Inexpressible, all_again, overrides_of
from planner.emit.mindspore.arrangement import Arrangement
from planner.emit.names import Name, plain
from planner.emit.scheme import Scheme, scheme_of
from planner.emit.shards import elsewhere, optimizer_shards
from planner.emit.stages import holders
from planner.emit.uniform import Model, recomputes_layers
from planner.emit.wording import some
from planner.errors import InputError
from planner.ir import Layout
from planner.planning.document import PlanDocument

__all__ = ["emit_hyper_parallel", "unsupported"]

_TYPES = {"bf16": "torch.bfloat16", "fp16": "torch.float16", "fp32": "torch.float32"}


def unsupported(c: Configuration, model: Model) -> str:
    """What of a uniform configuration HyperParallel cannot express; empty where it can express all of it."""
    if c.zero > 1 and c.dp * c.cp > 1:
        return f"ZeRO {c.zero}"  # weights are gathered once for the step
    if c.zero and c.ep > 1:
        return "ZeRO beside divided experts"  # all weights are in as many shards, but for small ones
    return "" if recomputes_layers(c) else f"{c.recompute} recomputation of a part"


def emit_hyper_parallel(plan: PlanDocument, names: Mapping[str, Name]) -> Emission:
    """InputError where a parameter has no one layout to compute with, or none that HyperParallel can express.

    What `plan_overrides` alone cannot express leaves them out.
    """
    computed = {n: _computed(plan, n, names[n]) for n in plan.parameters}
    leaves = leaves_of(plan, names)
    for b in leaves:
        _check_bias(plan, b, computed)
    lost: list[str] = []
    scheme: Scheme | None = None
    try:
        scheme = scheme_of(plan, "HyperParallel")
        scheme.check_busy("HyperParallel")
    except InputError as e:
        lost.append(f"plan_overrides.yaml is left out: {str(e).removeprefix('plan: ')}")
        scheme = None
    uses = {} if scheme is None else {a: NAMES[u] for a, u in scheme.uses.items() if u != "idle"}
    grid = grid_of(plan.mesh, [*computed.values(), *_all(plan, leaves)], uses)
    held = holders(plan)
    parameters: list[dict[str, Placed]] = [{} for _ in plan.stages]
    for n, x in computed.items():
        for stage in held[n]:
            parameters[stage][names[n].name] = _words(f"parameter {n}", x, grid)
    inputs: list[dict[str, list[Placed]]] = [{} for _ in plan.stages]
    outputs: list[dict[str, Placed]] = [{} for _ in plan.stages]
    inputs[0]["input"] = [_words(f"input {n}", _input(plan, n), grid) for n in plan.inputs]
    order = list(plan.operators)
    for b in leaves:
        stage = plan.operators[order[b.first]].stage
        _contract(b, grid, inputs[stage], outputs[stage], lost)
    optimizer = optimizer_shards(plan, "HyperParallel")
    files = {"parallel.py": module_text(plan, grid, parameters, inputs, outputs, optimizer).encode()}
    files |= _layouts(plan, names, computed, grid, held)
    if scheme is not None:
        try:
            overrides = overrides_of(plan, names, scheme, grid)
            texts = [overrides.text(plan, stage) for stage in range(plan.schedule.stages)]
            lost += _lost_of_overrides(plan, scheme)
        except (Inexpressible, InputError) as e:
            lost.append(f"plan_overrides.yaml is left out: {str(e).removeprefix('plan: ')}")
            texts = []
        for stage, text in enumerate(texts):
            name = "plan_overrides.yaml" if len(texts) == 1 else f"plan_overrides_stage{stage}.yaml"
            files[name] = (_head(plan) + text).encode()
    return Emission(files, (*lost, *_lost_copies(held), *_lost(plan, optimizer[0])))


def _head(plan: PlanDocument) -> str:
    return (
        f"# {plain(plan.model.name)} on {plan.devices} devices (mesh {plan.mesh}).\n"
        "# Made by `planner emit --target hyper-parallel`; the plan decides, edit that.\n"
        "# Sections of a trainer's YAML; modules it derives no boundary for take the entries as they stand.\n"
    )


def _computed(plan: PlanDocument, name: str, emitted: Name) -> Layout:
    reads = list(dict.fromkeys(x.layout() for x in plan.parameters[name].compute))
    if len(reads) != 1:
        readers = ", ".join(r.operator for r in plan.parameters[name].readers) or "several operators"
        raise InputError(
            f"plan: parameter {name} is computed with as {' and as '.join(map(str, reads))} (read by {readers}); "
            "HyperParallel keeps it in one layout: search with --target mindspore, or pin `compute`"
        )
    return Layout(reads[0].dims[::-1], reads[0].partial) if emitted.transposed else reads[0]


def _check_bias(plan: PlanDocument, b: Boundary, computed: Mapping[str, Layout]) -> None:
    """HyperParallel's linear layers take product and bias at once: a bias lies as the columns of the product."""
    for weight in b.parameters:
        for r in plan.parameters[weight].readers:
            product = plan.operators[r.operator]
            if product.type not in ("MatMul", "Gemm") or r.slot != 1 or product.results[0] is None:
                continue
            columns = tuple(product.results[0].dims[-1])
            for bias in b.parameters:
                if len(plan.parameters[bias].shape) == 1 and computed[bias].dims != (columns,):
                    raise InputError(
                        f"plan: parameter {bias} is computed with as {computed[bias]}, and {r.operator} makes columns "
                        f"[{'.'.join(columns) or '_'}]; HyperParallel adds it there: pin the operator that reads it so"
                    )


def _input(plan: PlanDocument, name: str) -> Layout:
    x = plan.inputs[name]
    return Layout.replicated(len(x.shape or ())) if x.layout is None else x.layout.layout()


def _all(plan: PlanDocument, leaves: list[Boundary]) -> list[Layout]:
    found = [_input(plan, n) for n in plan.inputs]
    return found + [x for b in leaves for x in (b.in_src, b.in_dst, b.out_src, b.out_dst) if x is not None]


def _words(what: str, layout: Layout, grid: Grid) -> Placed:
    try:
        return grid.placements(layout)
    except ValueError as e:
        raise InputError(f"plan: {what}: {e}; pin its layout, or give --mesh another order") from e


def _contract(
    b: Boundary, grid: Grid, inputs: dict[str, list[Placed]], outputs: dict[str, Placed], lost: list[str]
) -> None:
    """`<module>.input` and `<module>.output`; pending sums are left to where they arise."""
    prefix = f"{b.module}." if b.module else ""
    try:
        if b.module and b.in_dst is not None and not b.in_dst.partial:
            inputs[f"{prefix}input"] = [grid.placements(b.in_dst)]
        if b.module and b.out_dst is not None and not b.out_dst.partial:
            outputs[f"{prefix}output"] = grid.placements(b.out_dst)
    except ValueError as e:
        lost.append(f"how module {b.module} reads its input or hands on its output: {e}")


def _layouts(
    plan: PlanDocument,
    names: Mapping[str, Name],
    computed: Mapping[str, Layout],
    grid: Grid,
    held: Mapping[str, Sequence[int]],
) -> dict[str, bytes]:
    """One file per stage, of its first rank."""
    ranks = plan.mesh.devices
    stages: dict[int, dict[str, Lying]] = {s: {} for s in range(plan.schedule.stages)}
    for n, layout in computed.items():
        p, emitted = plan.parameters[n], names[n]
        matrix, places = tuple(grid.sizes.values()), grid.tensor_map(layout)
        shape = tuple(p.shape[::-1] if emitted.transposed else p.shape)
        kind = _TYPES[plan.schedule.precision]
        for stage in held[n]:
            stages[stage][emitted.name] = Lying(
                Arrangement(matrix, places), tuple(grid.sizes), shape, stage * ranks, kind
            )
    return {f"rank{s * ranks}.layout": to_json(s * ranks, lying) for s, lying in stages.items()}


def _lost_of_overrides(plan: PlanDocument, scheme: Scheme) -> list[str]:
    out = [
        "the names of forward's arguments, which the plan does not know: plan_overrides.yaml has `hidden_states`, of "
        "embeddings `input`; give those of your modules"
    ]
    if scheme.tensor > 1:
        out.append(
            "attributes that count heads and the like, of modules that compute with their part: list them as "
            "tp_divide_attrs where HyperParallel does not find them"
        )
    if scheme.context > 1:
        out.append("attention over divided positions: give each such module its inner_wrapper, as HyperParallel asks")
    if plan.schedule.recompute and not all_again(plan):
        out.append(f"{len(plan.schedule.recompute)} recomputed blocks: activation_checkpoint has all layers or none")
    return out


def _lost_copies(held: Mapping[str, Sequence[int]]) -> list[str]:
    copied = [n for n, stages in held.items() if len(stages) > 1]
    if not copied:
        return []
    return [
        f"{len(copied)} parameters that several stages read ({some(copied)}): each holds a copy, under the one name in "
        "parallel.py and .layout files and in overrides of the first alone; sum the copies' gradients yourself"
    ]


def _lost(plan: PlanDocument, shards: int) -> list[str]:
    out = [
        f"how {len(plan.operators)} operators are split between the modules: HyperParallel derives it from what it is "
        "told of their inputs, outputs and parameters"
    ]
    if shards > 1:
        out.append("the optimizer's shards in .layout files: HyperParallel saves what operators compute with")
        moved = elsewhere(plan)
        if moved:
            out.append(
                f"which ranks share {len(moved)} parameters ({some(moved)}): hsdp takes the innermost of those that "
                "compute with equal parts, groups of the same size"
            )
    if plan.schedule.stages > 1:
        out.append(
            f"{plan.schedule.stages} stages of {plan.schedule.micro_batches} micro-batches: parallel.py lays out the "
            "module of one stage; cut the network as its tables say, with HyperParallel's PipelineStage"
        )
    return out
