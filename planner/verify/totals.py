"""Gradients of parameters at the end of a step: each in every stage that holds the parameter, of all micro-batches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.ir import Graph, Layout, Reduction
from planner.kernels.shards import Array, Shards, combine
from planner.lowering import Staged
from planner.verify.compare import Rounding, difference
from planner.verify.findings import Report
from planner.verify.proof import Proof
from planner.verify.terms import names, summed
from planner.verify.whole import Whole

__all__ = ["Totals"]


class Totals:
    """What the whole model's gradients of all micro-batches come to, and whether the stages hold that."""

    def __init__(self, pipeline: Staged, graph: Graph) -> None:
        self.pipeline, self.graph = pipeline, graph
        self.devices = pipeline.program.mesh.devices
        self.expected: dict[str, Array] = {}
        self.added: dict[str, list[tuple[int, str]]] = {}  # parameter → chunk and name of every contribution
        readers = {n: graph.consumers.get(n, ()) for n in pipeline.program.final_gradients}
        reading = {n: [pipeline.chunk_of[op.name] for op, _ in found] for n, found in readers.items()}
        self.reading = {n: frozenset(chunks) for n, chunks in reading.items()}
        self.open: dict[tuple[int, str], set[int]] = {}  # micro-batch and parameter → chunks that still contribute

    @staticmethod
    def name(micro_batch: int, contribution: str) -> str:
        return f"{contribution} of micro-batch {micro_batch}"

    def expect(self, chunk: int, micro_batch: int, whole: Whole) -> None:
        """Takes the gradients that are complete when the chunk, in whatever order, has made its part of them."""
        for name, reading in self.reading.items():
            if chunk not in reading:
                continue
            left = self.open.setdefault((micro_batch, name), set(reading))
            left.discard(chunk)
            if left:
                continue
            del self.open[micro_batch, name]
            found = whole.take_gradient(name)
            if found is not None:
                self.expected[name] = self.expected[name] + found if name in self.expected else found
            for contribution in whole.contributions(name):
                by = self.pipeline.chunk_of[contribution.rpartition(":")[0]]
                self.added.setdefault(name, []).append((by, self.name(micro_batch, contribution)))

    def check(self, chunks: Sequence[Proof], report: Report) -> int:
        """Sums what is to be summed in stages and between them, and compares.  How many gradients were compared."""
        program = self.pipeline.program
        trained = {t.name for t in self.graph.parameters if t.name in program.active}
        for name in sorted(trained - set(program.final_gradients)):
            report.failures.append(f"gradient of {name}: the program has no place for it")
        for name in sorted(set(self.pipeline.sums) - set(program.final_gradients)):
            report.failures.append(f"gradient of {name}: summed between stages, though the parameter is not trained")
        return sum(self._parameter(n, layout, chunks, report) for n, layout in program.final_gradients.items())

    def _parameter(self, name: str, layout: Layout, chunks: Sequence[Proof], report: Report) -> int:
        holder = self.pipeline.passes.holder
        holders = sorted({holder[k] for k, part in enumerate(self.pipeline.chunks) if name in part.held})
        made: dict[int, list[Shards]] = {}
        for k, proof in enumerate(chunks):
            found = proof.devices.gradients.pop((name, layout), None)
            contributed = [c for by, c in self.added.get(name, ()) if by == k]
            added = proof.added.pop((name, layout), ())
            proof.sums.pop((name, layout), None)
            if sorted(added) != sorted(contributed):
                where = f"gradient of {name} in {self.pipeline.passes.name(k)}, where it is stored"
                report.failures.append(f"{where}: made of {names(added)}, where {names(tuple(contributed))} contribute")
            if found is not None:
                made.setdefault(holder[k], []).append(found)
        shards = {s: _together(found) for s, found in made.items()}
        expected = self.expected.get(name)
        if expected is None:
            report.failures.append(f"gradient of {name}: no operator of the model contributes to it")
            return 0
        terms = [x for parts in made.values() for found in parts for x in found]
        if name in self.pipeline.sums:
            self._sum(name, expected.shape, layout, holders, shards, report)
        elif len(shards) > 1:
            report.failures.append(
                f"gradient of {name}: stages {names(tuple(map(str, shards)))} make parts of it, which are never summed"
            )
        for s in holders:
            what = f"gradient of {name} in stage {s} at the end of the step"
            if s not in shards:
                report.failures.append(f"{what}: never brought to {layout}")
                continue
            report.add(what, difference(shards[s], layout, expected, self.pipeline.program.mesh, _rounding(terms)))
        return len(holders)

    def _sum(
        self,
        name: str,
        shape: tuple[int, ...],
        layout: Layout,
        holders: list[int],
        shards: dict[int, Shards],
        report: Report,
    ) -> None:
        """An all-reduce in every group, on ranks of the whole pipeline."""
        what = f"gradient of {name}, summed between stages"
        local = layout.local_shape(shape, self.pipeline.program.mesh)
        held: dict[int, Array] = {}
        for s in holders:  # one that reads it where no gradient passes gives nothing
            part = shards.get(s) or (np.zeros(local),) * self.devices
            held.update({s * self.devices + r: x for r, x in enumerate(part)})
        done: dict[tuple[int, ...], Array] = {}
        for group in self.pipeline.sums[name]:
            strangers = [r for r in group if r not in held]
            if strangers:
                report.failures.append(f"{what}: rank {strangers[0]} of group {list(group)} does not hold it")
                return
            if len({r % self.devices for r in group}) > 1:
                report.failures.append(f"{what}: group {list(group)} joins ranks at different places of their stages")
            if len({held[r].shape for r in group}) > 1:
                report.failures.append(f"{what}: ranks {list(group)} hold shards of different shapes")
                return
            key = tuple(id(held[r]) for r in group)
            total = done[key] if key in done else combine([held[r] for r in group], Reduction.SUM)
            done[key] = total
            held.update(dict.fromkeys(group, total))
        for s in holders:
            shards[s] = tuple(held[s * self.devices + r] for r in range(self.devices))


def _together(parts: Sequence[Shards]) -> Shards:
    """The sum of what a stage's chunks make, rank by rank."""
    if len(parts) == 1:
        return parts[0]
    return tuple(combine(list(ranks), Reduction.SUM) for ranks in zip(*parts, strict=True))


def _rounding(terms: Sequence[Array]) -> Rounding | None:
    return summed(tuple(terms)) if terms else None
