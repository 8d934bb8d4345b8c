"""One rank of a training: its parts of the weights, an optimizer on them, and a step.

The optimizer is torch's own, on the local parts: what it does to an element depends on nothing but that element.  Ranks
that hold one part twice (replicas, parameters that several stages read) have the same gradients, and so keep it equal.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from planner.errors import InputError
from planner.frontends import load_model
from planner.ir import Graph, Layout, Role
from planner.kernels.shards import Array
from planner.planning import PlanDocument
from planner.planning.programs import program_of
from planner.runtime.apart import Apart
from planner.runtime.cells import Taken
from planner.runtime.live import peak_bytes
from planner.runtime.outputs import own_loss
from planner.runtime.parts import tensor_of
from planner.runtime.placements import State
from planner.runtime.session import Traffic
from planner.runtime.stage import DRAW, Feed, Stage
from planner.runtime.timed import Timed
from planner.runtime.training.data import Data, batch_rows
from planner.runtime.training.finite import Suspect, first_not_finite
from planner.runtime.training.options import Numbers
from planner.runtime.training.weights import Weights, plain_names
from planner.runtime.watched import watched_steps
from planner.runtime.workers import Context
from planner.verify.data import random_tensors
from planner.verify.pipelined import pipeline_of

__all__ = ["NotFinite", "RankTraining", "StepOutcome", "graph_of_plan"]


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """Of one step: the mean loss, the norm of all gradients before they are clipped, and this rank's seconds."""

    loss: float
    gradient_norm: float
    seconds: float


@dataclass(frozen=True, slots=True)
class NotFinite:
    """A step whose loss or gradients are not finite; nothing was changed by it.  `suspect`: this rank's."""

    loss: float
    gradient_norm: float
    suspect: Suspect | None


def graph_of_plan(model: Path, plan: PlanDocument) -> Graph:
    """The model in the sizes that were planned for."""
    return load_model(model, bind=dict(plan.model.bind), batch=plan.model.batch)


class RankTraining:
    """A plan on one rank, with weights and an optimizer.

    `parameters`: this rank's parts by the graph's name; `plain`: the names that files have for them, and
    `aliases` further ones with the graph's; `trained`: those
    with a gradient, on whatever stage; `position`: samples that were read so far; `step_number`: steps that were made.
    `placed`: parts of the weights that lie here already.

    `pending`: of a step whose gradients are complete on this rank and which it has not made yet; `made`: the last step
    that it has made.  What ranks communicate in a step lies before that (see `planner.runtime.training.recovery`).
    """

    def __init__(
        self, context: Context, graph: Graph, plan: PlanDocument, weights: Weights, data: Data | None,
        numbers: Numbers, seed: int, as_planned: bool, *, placed: Mapping[str, Tensor] | None = None,
    ) -> None:  # fmt: skip
        self.context, self.graph, self.numbers, self.seed = context, graph, numbers, seed
        self.micro_batches = plan.schedule.micro_batches
        self.data = data
        staged = pipeline_of(plan, program_of(plan, graph), self.micro_batches)
        low = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(plan.schedule.precision) if as_planned else None
        self.stage = Stage(staged, context, weights.constants(), precision=low, drawing=True)
        self.layouts = {t.name: plan.parameters[t.name].stored.layout() for t in graph.parameters}
        self.stages = len(staged.passes.stages)
        self.holders = {n: self._holders(n) for n in self.layouts}
        self.plain, self.aliases = plain_names(graph), weights.aliases
        self.trained = [n for n in self.layouts if n in staged.program.final_gradients]
        self.parameters = self._placed(weights) if placed is None else {
            n: nn.Parameter(x, requires_grad=False) for n, x in placed.items()
        }  # fmt: skip
        self.optimizer = self._optimizer([self.parameters[n] for n in self.trained if n in self.parameters])
        self.step_number = self.position = 0
        self.pending: Taken | None = None
        self.made: StepOutcome | None = None
        self._fed: dict[tuple[str, Layout, int], Tensor] = {}  # without data every step reads the same batch

    @cached_property
    def meshes(self) -> State:
        """What the parameters are as DTensors; made when first asked for, by all ranks together."""
        return State(self.stage.mesh, self.stages, self.layouts, self.context.device.type)

    @property
    def step_samples(self) -> int:
        return batch_rows(self.graph) * self.micro_batches

    def _holders(self, name: str) -> list[int]:
        """The stages that hold a parameter."""
        passes, chunks = self.stage.staged.passes, self.stage.staged.chunks
        return sorted({passes.holder[k] for k, c in enumerate(chunks) if name in c.held})

    def _placed(self, weights: Weights) -> dict[str, nn.Parameter]:
        held = [n for n in self.layouts if self.stage.number in self.holders[n]]
        drawn = weights.drawn(held)
        found = {}
        for name in held:
            layout, mesh, place = self.layouts[name], self.stage.mesh, self.context.place
            part = layout.shard(drawn.pop(name), mesh, place) if name in drawn else \
                weights.part(name, layout, mesh, place)  # fmt: skip
            found[name] = nn.Parameter(self._there(part), requires_grad=False)
        return found

    def _optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer | None:
        """None on a stage that holds no trained parameter: torch makes no optimizer of none."""
        n = self.numbers
        if not parameters:
            return None
        if n.optimizer == "adamw":
            return torch.optim.AdamW(parameters, lr=n.lr, weight_decay=n.weight_decay, fused=True)
        return torch.optim.SGD(parameters, lr=n.lr, weight_decay=n.weight_decay, momentum=n.momentum, fused=True)

    # A step

    def step(self) -> StepOutcome | NotFinite | InputError | None:
        """One step.  InputError where the data of this rank is none; None where another rank's is none, which all know
        before anything is computed."""
        begin = time.perf_counter()
        self.pending = None
        fed, error = self._fetched()
        if self._any_wrong(error):
            return error

        feed = self._feed(fed)
        self.context.ledger.clear()
        self.pending = self.stage.step(feed)
        loss, norm = self._measured(self.pending)
        if not (loss - loss == 0.0 and norm - norm == 0.0):  # of an infinity and of what is no number it is no number
            self.pending = None
            return NotFinite(loss, norm, first_not_finite(self.stage, feed))
        self.complete(StepOutcome(loss, norm, 0.0))
        self.context.synchronize()
        self.made = StepOutcome(loss, norm, time.perf_counter() - begin)
        return self.made

    def complete(self, outcome: StepOutcome) -> None:
        """Makes the pending step, of which a rank has found the loss and the norm; nothing is communicated."""
        taken, self.pending = self.pending, None
        assert taken is not None
        self._update(taken, outcome.gradient_norm)
        self.step_number += 1
        self.position += self.step_samples
        self.made = outcome

    def begun(self, step: int, position: int) -> None:
        """Goes on behind a step and a sample."""
        self.step_number, self.position = step, position

    def watched(self, steps: int) -> tuple[list[list[Timed]], int] | InputError | None:
        """What the rank does when in each of some steps that change nothing, and the bytes that live at the fullest
        moment of one; else as `step`."""
        fed, error = self._fetched()
        if self._any_wrong(error):
            return error
        feed = self._feed(fed)
        states = () if self.optimizer is None else (v for s in self.optimizer.state.values() for v in s.values())
        there = (x for x in (*self.parameters.values(), *states) if isinstance(x, Tensor))
        held = peak_bytes(lambda: self.stage.step(feed), self.context.device, there)
        return watched_steps(self.stage, feed, steps), held

    def _feed(self, fed: Mapping[tuple[str, Layout, int], Tensor]) -> Feed:
        def feed(name: str, layout: Layout, micro_batch: int) -> Tensor:
            if (name, layout) == DRAW:
                number = self.step_number * self.micro_batches + micro_batch
                return torch.full((), number, dtype=torch.int64, device=self.context.device)
            if name in self.parameters:
                return self.parameters[name].data
            return fed[name, layout, max(micro_batch, 0)]

        return feed

    def _any_wrong(self, error: InputError | None) -> bool:
        """Whether any rank's data is none."""
        if self.data is None:
            return False
        wrong = torch.tensor(float(error is not None), device=self.context.device)
        dist.all_reduce(wrong)
        return bool(wrong)

    def _fetched(self) -> tuple[dict[tuple[str, Layout, int], Tensor], InputError | None]:
        """This rank's parts of the inputs of all micro-batches."""
        mesh, place = self.stage.mesh, self.context.place
        read = self._read_inputs()
        if self.data is None:
            if not self._fed:
                self._fed = {(n, x, m): self._there(x.shard(whole[n], mesh, place))
                             for m, whole in enumerate(self._drawn()) for n, x in read}  # fmt: skip
            return self._fed, None
        found = {}
        try:
            self.data.check(self.position)
            for n, x in read:
                for m in range(self.micro_batches):
                    found[n, x, m] = self._there(self.data.part(n, self.position, m, x, mesh, place))
        except InputError as error:
            return {}, error
        return found, None

    def _there(self, part: Array) -> Tensor:
        return tensor_of(part).to(self.context.device)

    def _drawn(self) -> Iterator[dict[str, Array]]:
        """Whole inputs of each micro-batch, as `planner.runtime.session` draws them."""
        wanted = [n for n in self.graph.inputs if self.graph.tensors[n].role is Role.INPUT]
        for m in range(self.micro_batches):
            yield random_tensors(self.graph, self.seed + m, only=wanted)

    def _read_inputs(self) -> list[tuple[str, Layout]]:
        return list(dict.fromkeys(
            (i.tensor, i.layout) for i in self.stage.loads() if self.graph.tensors[i.tensor].role is Role.INPUT
        ))  # fmt: skip

    def _measured(self, taken: Taken) -> tuple[float, float]:
        """The loss, and the norm of the gradients: each element counts once, however many ranks hold it."""
        own = own_loss(self.graph, self.stage, taken)
        squares = torch.zeros((), dtype=torch.float64, device=self.context.device)
        for name, gradient in taken.gradients.items():
            size = torch.linalg.vector_norm(gradient.float()).double()
            if not torch.isfinite(size):  # squares of large elements may not be
                size = torch.linalg.vector_norm(gradient, dtype=torch.float64)
            squares += size * size / self._copies(name)
        has = 0.0 if own is None else 1.0
        value = squares.new_zeros(()) if own is None else own.double()
        both = torch.stack([value, squares.new_tensor(has), squares])
        dist.all_reduce(both)
        total, count, square = both.tolist()
        return total / count, square**0.5

    def _copies(self, name: str) -> int:
        """Ranks that hold the same part of a parameter."""
        layout, mesh = self.layouts[name], self.stage.mesh
        shards = mesh.size([a for axes in layout.dims for a in axes])
        return mesh.devices // shards * len(self.holders[name])

    def _update(self, taken: Taken, norm: float) -> None:
        if self.optimizer is None:
            return
        gradients = list(self._own(taken))
        limit = self.numbers.clip
        if limit is not None and (scale := min(limit / (norm + 1e-6), 1.0)) < 1.0:
            torch._foreach_mul_([g for _, g in gradients], scale)
        for parameter, gradient in gradients:
            parameter.grad = gradient
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def _own(self, taken: Taken) -> Iterator[tuple[nn.Parameter, Tensor]]:
        """Gradients, none in the memory of another, since clipping writes into them."""
        apart = Apart(self.stage.seeds.values())
        for name in self.trained:
            gradient = taken.gradients.pop(name, None)
            if gradient is None or name not in self.parameters:
                continue
            parameter = self.parameters[name]
            yield parameter, apart(gradient.to(parameter.dtype))

    def traffic(self) -> Traffic:
        """Collectives of the last step, and those that the plan has for it."""
        return Traffic.of_rank(self.context, self.stage)
