"""`plan_overrides` of HyperParallel's trainer: what happens at the boundary of every module that has parameters.

Entries as trainer/config/parallelism.py (PlanOverride) reads them.  Its plan is that of one data-parallel rank: axes of
data parallelism are not named in it, the others are `tp`, `cp` and `ep`, and every parameter is in exactly one entry
(distributed/sharding_planner.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planner.emit.hyper_parallel.boundaries import Boundary, blocks_of, forward_moves
from planner.emit.hyper_parallel.grid import Grid
from planner.emit.layers import Recomputed, layers_of, recomputed_layers
from planner.emit.names import Name
from planner.emit.scheme import AxisUse, Scheme
from planner.ir import Layout
from planner.planning.document import PlanDocument

__all__ = ["NAMES", "Inexpressible", "Overrides", "all_again", "overrides_of"]

NAMES: Mapping[AxisUse, str] = {"data": "dp", "tensor": "tp", "context": "cp", "expert": "ep"}
# What forward's argument is called, as HyperParallel's own templates have it (distributed/sharding_config.py).
_INPUT, _TOKENS = "hidden_states", "input"
_Named = Mapping[str, Mapping[str, str]]


class Inexpressible(Exception):
    """What of a plan the contracts cannot express; the message names the object and what to pin."""


@dataclass(frozen=True, slots=True)
class Entry:
    """`stage`: the pipeline stage of the module."""

    match: str
    stage: int
    params: _Named
    in_src: _Named
    in_dst: _Named
    out_src: _Named
    out_dst: _Named


@dataclass(frozen=True, slots=True)
class Overrides:
    """`loss_parallel`: the loss takes the output layer's columns divided."""

    entries: tuple[Entry, ...]
    scheme: Scheme
    loss_parallel: bool

    def text(self, plan: PlanDocument, stage: int) -> str:
        """The YAML: topology, what is recomputed, and the entries of a stage, whose part of the model alone has the
        modules that they name."""
        s = self.scheme
        lines = [
            "accelerator:",
            f"  tp_size: {s.tensor}",
            f"  cp_size: {s.context}",
            "  ep_size: 1",
            f"  pp_size: {s.stages}",
            f"  sequence_parallel: {str(s.sequence).lower()}",
            f"  loss_parallel: {str(self.loss_parallel).lower()}",
            "activation_checkpoint:",
            f'  mode: "{"full" if all_again(plan) else "off"}"',
            "plan_overrides:",
        ]
        for e in (e for e in self.entries if e.stage == stage):
            lines.append(f"  - match: {json.dumps(e.match)}")
            lines.append("    params:" + ("" if e.params else " {}"))
            lines += [f"      {json.dumps(n)}: {_flow(named)}" for n, named in e.params.items()]
            for key in ("in_src", "in_dst", "out_src", "out_dst"):
                entries = ", ".join(f"{name}: {_flow(named)}" for name, named in getattr(e, key).items())
                lines.append(f"    {key}: {{{entries}}}")
        return "\n".join(lines) + "\n"


def all_again(plan: PlanDocument) -> bool:
    """Whether all layers, and nothing else, run again in the backward pass."""
    layers = layers_of(plan)
    return bool(plan.schedule.recompute) and recomputed_layers(plan, layers) == Recomputed(
        list(range(layers.count)), True
    )


def _flow(named: Mapping[str, str]) -> str:
    return "{" + ", ".join(f'{axis}: "{word}"' for axis, word in named.items()) + "}"


def overrides_of(plan: PlanDocument, names: Mapping[str, Name], scheme: Scheme, grid: Grid) -> Overrides:
    """`grid`: with axes named by what they do (NAMES).

    Raises:
        Inexpressible: conversions inside a module, or of tensors that no module makes; experts, whose computation has
            to be injected; no module at all.
    """
    if scheme.expert > 1:
        raise Inexpressible("experts are divided, and what computes with a part of them has to be given as code")
    boundaries = blocks_of(plan, names)
    if not boundaries:
        raise Inexpressible("no module of the plan has parameters and reads data, and entries are of those that do")
    _check_moves(plan, boundaries)
    entries = []
    for i, b in enumerate(boundaries):
        out = b.out_dst
        if i == len(boundaries) - 1 and out is not None and _gathered_later(plan, b):
            out = Layout(tuple(tuple(a for a in d if scheme.uses[a] == "data") for d in out.dims))
        entries.append(_entry(plan, names, b, out, grid))
    logits = entries[-1].out_dst.get("output", {}).get(NAMES["tensor"], "")
    return Overrides(tuple(entries), scheme, logits.startswith("shard"))


def _check_moves(plan: PlanDocument, boundaries: Sequence[Boundary]) -> None:
    settled = {k for b in boundaries for k in b.moves}
    place = {o: i for i, o in enumerate(plan.operators)}
    end = max(b.last for b in boundaries)
    for k, m in forward_moves(plan).items():
        if k in settled or place[m.tensor] > end:
            continue
        around = next((b.module for b in boundaries if b.first <= place[m.tensor] <= b.last), None)
        where = f"inside module {around}" if around is not None else "between modules"
        raise Inexpressible(
            f"tensor {m.tensor} goes from {m.source.layout()} to {m.target.layout()} {where}, where nothing is "
            f"converted: pin it, as --pin '{m.tensor} produced=[…]' or the operators that read it"
        )


def _gathered_later(plan: PlanDocument, last: Boundary) -> bool:
    """Whether behind the last module the plan makes whole what it handed on divided."""
    place = {o: i for i, o in enumerate(plan.operators)}
    return any(place[m.tensor] > last.last for m in forward_moves(plan).values())


def _entry(plan: PlanDocument, names: Mapping[str, Name], b: Boundary, out: Layout | None, grid: Grid) -> Entry:
    if not b.module or any(c in b.module for c in "*?["):
        raise Inexpressible(f"parameters {', '.join(b.parameters)} are of no module that an entry could name")
    for layout in b.reads:
        if layout != b.in_dst:
            raise Inexpressible(
                f"module {b.module} reads its input as {b.in_dst} and as {layout}: pin its products alike"
            )
    params = {}
    for onnx, own in b.parameters.items():
        layout = plan.parameters[onnx].compute[0].layout()
        params[own] = _words(b, Layout(layout.dims[::-1]) if names[onnx].transposed else layout, grid)
    first = plan.operators[list(plan.operators)[b.first]]
    in_src, in_dst = _contract(b, _TOKENS if first.type == "Gather" else _INPUT, b.in_src, b.in_dst, grid)
    out_src, out_dst = _contract(b, "output", b.out_src, out, grid)
    return Entry(b.module, first.stage, params, in_src, in_dst, out_src, out_dst)


def _contract(
    b: Boundary, name: str, source: Layout | None, target: Layout | None, grid: Grid
) -> tuple[_Named, _Named]:
    if source is None or target is None:
        return {}, {}
    if _data(b, source, grid) != _data(b, target, grid):
        raise Inexpressible(
            f"module {b.module}: its {name} goes from {source} to {target}, which moves samples between data-parallel "
            "ranks: pin the batch dimension alike"
        )
    return {name: _words(b, source, grid)}, {name: _words(b, target, grid)}


def _placed(b: Boundary, layout: Layout, grid: Grid) -> dict[str, str]:
    try:
        return dict(zip(grid.axes, grid.placements(layout), strict=True))
    except ValueError as e:
        raise Inexpressible(f"module {b.module}: {e}") from e


def _words(b: Boundary, layout: Layout, grid: Grid) -> dict[str, str]:
    """Axis → placement; `tp` at least, since an entry must not be empty."""
    found = {a: w for a, w in _placed(b, layout, grid).items() if a != NAMES["data"]}
    return found or {NAMES["tensor"]: "replicate"}


def _data(b: Boundary, layout: Layout, grid: Grid) -> str:
    return _placed(b, layout, grid).get(NAMES["data"], "replicate")
