"""`--target onnx-ranks`: a graph for every rank, one at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import onnx

from planner.clock import Configuration
from planner.emit.emission import Emission
from planner.emit.onnx.ranks.index import entry_of, index_text
from planner.emit.onnx.ranks.model import model_of
from planner.emit.onnx.ranks.rank import RankGraph
from planner.emit.onnx.ranks.values import FileValues
from planner.emit.uniform import Model
from planner.errors import InputError
from planner.ir import Graph
from planner.lowering import Program
from planner.planning.document import PlanDocument
from planner.planning.programs import program_of

__all__ = ["INDEX", "emit_onnx_ranks", "file_of", "unsupported"]

INDEX: Final = "ranks.json"
MOST_BYTES: Final = (1 << 31) - (1 << 24)  # protobuf's limit, less the nodes


def unsupported(c: Configuration, model: Model) -> str:
    """What of a uniform configuration graphs per rank cannot express; empty where they can express all of it."""
    if c.pp > 1:
        return "pipeline stages"
    if c.recompute != "none":
        return "recomputation"
    return f"ZeRO {c.zero}" if c.zero > 1 and c.dp * c.cp > 1 else ""


def file_of(rank: int) -> str:
    return f"rank_{rank:05d}.onnx"


class _Files(Mapping[str, bytes]):
    """Files by name; a rank's graph is written when it is asked for, and not kept."""

    def __init__(self, program: Program, source: FileValues) -> None:
        self.program, self.source = program, source
        self.ranks = program.mesh.devices
        self._entries: dict[int, dict[str, Any]] = {}

    def __iter__(self) -> Iterator[str]:
        yield from map(file_of, range(self.ranks))
        yield INDEX

    def __len__(self) -> int:
        return self.ranks + 1

    def __getitem__(self, name: str) -> bytes:
        if name == INDEX:
            return index_text(self.program.mesh, self.program.graph, [self._entry(r) for r in range(self.ranks)])
        number = name.removeprefix("rank_").removesuffix(".onnx")
        rank = int(number) if number.isdecimal() else -1
        if not 0 <= rank < self.ranks or file_of(rank) != name:
            raise KeyError(name)
        return self._written(rank).SerializeToString(deterministic=True)

    def _entry(self, rank: int) -> dict[str, Any]:
        if rank not in self._entries:
            self._written(rank)
        return self._entries[rank]

    def _written(self, rank: int) -> onnx.ModelProto:
        graph = RankGraph(self.program, rank, self.source.read)
        model = model_of(graph)
        self._entries[rank] = entry_of(graph, file_of(rank))
        return model


def emit_onnx_ranks(model: onnx.ModelProto, plan: PlanDocument, graph: Graph) -> Emission:
    """`model` as read from its file, `graph` as imported from it for the plan.

    InputError where an operator's exchange has no form in nodes, and where a file would be too large.
    """
    if plan.schedule.stages > 1:
        raise InputError(
            f"plan: has {plan.schedule.stages} pipeline stages; graphs per rank are written for plans of one stage"
        )
    program = program_of(plan, graph)
    values = FileValues(model, graph)
    files = _Files(program, values)
    first = RankGraph(program, 0, values.read)  # what cannot be written is told before anything is
    size = sum(len(t.raw_data) for t in first.writer.constants.values())
    if size > MOST_BYTES:
        raise InputError(
            f"plan: rank 0 alone holds {size / 2**30:.1f} GiB of weights, and an ONNX file at most 2 GiB; strip the "
            "weights from the model (they become inputs), or let `planner run` execute the plan"
        )
    lost = ["the backward pass, gradients and the optimizer's state: these graphs are the forward pass"]
    if plan.schedule.micro_batches > 1:
        lost.append(f"{plan.schedule.micro_batches} micro-batches: a graph computes one of them")
    for names, why in ((values.external, "lie in other files, which are not read"), (values.lacking, "are not in it")):
        if names:
            lost.append(f"values of {len(names)} parameters and constants {why}: they are inputs, in shards")
    return Emission(files, tuple(lost))
