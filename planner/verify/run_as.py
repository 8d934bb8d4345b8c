"""How a plan says that its step is run, for the operators of a graph: those of the model, or of a sibling.

Recomputation of less than every block is a key of `schedule.run`, which names a kind and a fraction, and no operators;
which these are is settled here, as frameworks settle it:

- `selective`: the core of every attention, from scores to weighted sum (Korthikanti et al. 2022).
- `products`: all of a block but the results of attention and of the first, third, ... of its other products
  (torchtitan's selection of operators).
- `full` with `recompute_blocks`: so many of the blocks, in every chunk the first ones (Megatron-LM's `block` method);
  with `recompute_layers`, as many as it says of each chunk (MindFormers).
- `offload`, `offload_layers`: what so many of the blocks keep, in every chunk the first ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from typing import Final

from planner.ir import Graph, Op
from planner.lowering import Program
from planner.lowering.run_as import RunAs
from planner.planning import PlanDocument
from planner.work.fusion import fusion_of

__all__ = ["is_plain", "run_as_of"]

_LEVERS: Final = ("recompute", "offload", "offload_layers", "zero")  # keys of `schedule.run`


def is_plain(plan: PlanDocument) -> bool:
    """Whether everything is made once and kept."""
    return not plan.schedule.recompute and not any(key in plan.schedule.run for key in _LEVERS)


def run_as_of(plan: PlanDocument, program: Program, chunk_of: Mapping[str, int]) -> RunAs:
    """`chunk_of`: operator of the program → chunk of the model."""
    run, graph = plan.schedule.run, program.graph
    block = {name: (r, k) for r, run_ in enumerate(plan.model.repeated) for k, b in enumerate(run_) for name in b}
    if not program.active:
        return RunAs(gathers=run.get("zero") == 3, copies=plan.schedule.copies, unit=_units(graph, block))
    inside: dict[str, object] = {}
    saved: dict[str, object] = {}
    match run.get("recompute"):
        case "selective":
            inside = dict(_cores(program))
        case "products":
            inside = {op.name: block[op.name] for op in graph.ops if op.name in block}
            saved = {name: inside.pop(name) for name in _selected(program, block)}
        case "full":
            again = _shares(plan, "recompute_layers", "recompute_blocks", 1.0)
            inside = dict(_first(graph, block, chunk_of, again))
    return RunAs(
        again=inside,
        saved=saved,
        hosted=frozenset(_first(graph, block, chunk_of, _shares(plan, "offload_layers", "offload", 0.0))),
        gathers=run.get("zero") == 3,
        scatters=run.get("zero") in (2, 3),
        copies=plan.schedule.copies,
        unit=_units(graph, block),
    )


def _shares(plan: PlanDocument, by_chunk: str, of_all: str, default: float) -> Callable[[int], float]:
    """The fraction of its blocks that a chunk of the model runs again, or keeps elsewhere.

    Counts are those of the model's chunks; a sibling, which has fewer blocks, takes the same fraction.
    """
    counts = plan.schedule.run.get(by_chunk)
    if not isinstance(counts, str):
        value = plan.schedule.run.get(of_all, default)
        fraction = float(value) if isinstance(value, int | float) else 0.0
        return lambda chunk: fraction
    blocks = Counter(plan.chunk(block[0]) for run in plan.model.repeated for block in run)
    shares = {k: int(n) / max(1, blocks[k]) for k, n in enumerate(counts.split("-"))}
    return lambda chunk: shares.get(chunk, 0.0)


def _units(graph: Graph, block: Mapping[str, object]) -> dict[str, object]:
    """Operator → its block, or what it is in between blocks."""
    passed: set[object] = set()
    out: dict[str, object] = {}
    for op in graph.ops:
        passed.add(block.get(op.name))
        out[op.name] = block.get(op.name, len(passed))
    return out


def _first(
    graph: Graph, block: Mapping[str, object], chunk_of: Mapping[str, int], share: Callable[[int], float]
) -> Mapping[str, object]:
    """Operators of the first blocks of every chunk, with their blocks: a fraction of them, at least one where it is
    not zero."""
    blocks: dict[int, dict[object, None]] = {}
    for op in graph.ops:
        if op.name in block:
            blocks.setdefault(chunk_of[op.name], {})[block[op.name]] = None
    count = {k: max(1, round(share(k) * len(found))) if share(k) else 0 for k, found in blocks.items()}
    chosen = {b for k, found in blocks.items() for b in list(found)[: count[k]]}
    return {op.name: block[op.name] for op in graph.ops if block.get(op.name) in chosen}


def _cores(program: Program) -> Iterable[tuple[str, object]]:
    """Operators of the core of each attention, with a name for it."""
    graph, rules = program.graph, program.rules
    for op in graph.ops:
        if rules[op.name].cost.kind == "attention":
            yield op.name, op.name
    fusion = fusion_of(graph, rules, program.active, chains=True, attention=True, copies=False)
    for core in fusion.cores:
        for name in (core.scores, *(op.name for op in core.between), core.output):
            yield name, core.scores


def _selected(program: Program, block: Mapping[str, object]) -> list[str]:
    """Operators of blocks whose results are kept: attention, and every second of the other products."""
    cores = dict(_cores(program))
    last = {core: name for name, core in cores.items()}  # the weighted sum comes last
    ops = [op for op in program.graph.ops if op.name in block]
    out = [name for name in last.values() if name in block]
    for _, of_block in groupby(ops, key=lambda op: block[op.name]):
        out += [op.name for op in _products(program, of_block, cores)][::2]
    return out


def _products(program: Program, ops: Iterable[Op], cores: Mapping[str, object]) -> Iterable[Op]:
    return (op for op in ops if program.rules[op.name].cost.kind.product and op.name not in cores)
