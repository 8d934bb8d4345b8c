"""A stage's step as graphs of ATen operators: what the interpreter runs, traced once, and compiled.

`make_fx` follows the interpreter, so that a graph holds precisely the collectives of the program, as functional
operators, and gives the bits that the interpreter gives.  A plan of one micro-batch is one graph, forward, backward and
collectives together.  With several, what happens once at the beginning of a step, a pass, and what happens once at the
end are three, so that their number does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from planner.ir import Layout
from planner.lowering import Event, Load, Run
from planner.runtime.stage import Feed, Stage, Taken

__all__ = ["TracedStage", "traceable"]

Wanted = tuple[str, Layout, int]  # what is fed: tensor, layout, place of the micro-batch among those that pass together


def traceable(stage: Stage) -> str:
    """Why the stage's step cannot be traced; empty where it can be."""
    if len(stage.staged.passes.stages) > 1:
        return "it is a stage of a pipeline, whose passes wait for others"
    if stage.fallbacks:
        return f"operators run on the host: {', '.join(sorted(stage.fallbacks))}"
    events = stage.staged.passes.stages[0]
    order = [(e.phase, e.micro_batch) for e in events]
    count = len({m for p, m in order if p == "forward"})
    turns = [(p, m) for m in range(count) for p in ("forward", "backward")]
    if order not in ([("begin", 0), *turns, ("end", 0)], [("begin", 0), *((p, m) for p, m in turns if p == "forward"),
                                                          ("end", 0)]):  # fmt: skip
        return "its passes do not run one after the other"
    return ""


@dataclass
class _Graph:
    """A traced function of tensors, and what its results are."""

    module: GraphModule
    fed: list[Wanted]
    outputs: list[tuple[str, int, Layout]] = field(default_factory=list)
    keys: list[Any] = field(default_factory=list)  # of further results: values, gradients
    run: Callable[..., Any] | None = None

    def __call__(self, *tensors: Tensor) -> list[Tensor]:
        run = self.module if self.run is None else self.run
        found: list[Tensor] = run(*tensors)
        return list(found)


class TracedStage:
    """In the place of a stage: `step` runs graphs, compiled by Inductor where `compiled`."""

    def __init__(self, stage: Stage, *, compiled: bool = True) -> None:
        self.stage, self.compiled = stage, compiled
        self.events = stage.staged.passes.stages[stage.number]
        self.passes = sum(e.phase == "forward" for e in self.events)
        backward = (i for c in stage.staged.chunks for i in c.instructions("backward"))
        self.runs_again = any(isinstance(i, Run) and not i.backward for i in backward)
        self._whole: _Graph | None = None
        self._parts: tuple[_Graph, _Graph, _Graph] | None = None

    @property
    def graphs(self) -> list[GraphModule]:
        """The traced graphs, as far as a step has been run."""
        found = [self._whole] if self._whole is not None else list(self._parts or ())
        return [g.module for g in found if g is not None]

    def step(self, feed: Feed) -> Taken:
        """One step, as `Stage.step`."""
        with torch.no_grad():
            return self._step_whole(feed) if self.passes == 1 else self._step_in_passes(feed)

    # One micro-batch

    def _step_whole(self, feed: Feed) -> Taken:
        if self._whole is None:
            self._whole = self._traced_whole(self._wanted(self.events), feed)
        graph = self._whole
        found = graph(*self._fed(graph, feed, 0))
        return self._taken(graph, found, 0, dict(zip(graph.keys, found[len(graph.outputs) :], strict=True)))

    def _traced_whole(self, wanted: list[Wanted], feed: Feed) -> _Graph:
        graph = _Graph(GraphModule({}, torch.fx.Graph()), wanted)

        def step(*tensors: Tensor) -> list[Tensor]:
            taken = self._begun(wanted, tensors)
            self.stage.run(self.events, taken)
            self.stage.total(taken)
            graph.keys = list(taken.gradients)
            return [*self._listed(graph, taken), *taken.gradients.values()]

        return self._traced(graph, step, self._fed(graph, feed, 0))

    # Several

    def _step_in_passes(self, feed: Feed) -> Taken:
        begin, turn, end = self._parts or self._traced_parts(feed)
        self._parts = begin, turn, end
        values = begin(*self._fed(begin, feed, 0))
        taken = Taken()
        totals: list[Tensor] = []
        for n in range(self.passes):
            found = turn(*values, *self._fed(turn, feed, n))
            self._taken(turn, found, n, {}, taken)
            made = found[len(turn.outputs) :]
            if totals:
                torch._foreach_add_(totals, made)
            else:
                totals = made
        taken.gradients = dict(zip(end.keys, end(*totals), strict=True))
        return taken

    def _traced_parts(self, feed: Feed) -> tuple[_Graph, _Graph, _Graph]:
        once, *_ = self.stage.chunks
        first = [e for e in self.events if e.phase == "begin"]
        turns = [e for e in self.events if e.phase not in ("begin", "end") and e.micro_batch == 0]
        last = [e for e in self.events if e.phase == "end"]
        begin = _Graph(GraphModule({}, torch.fx.Graph()), self._wanted(first))

        def beginning(*tensors: Tensor) -> list[Tensor]:
            self.stage.run(first, self._begun(begin.fed, tensors))
            begin.keys = list(self.stage.once[once].values)
            return list(self.stage.once[once].values.values())

        self._traced(begin, beginning, self._fed(begin, feed, 0))
        values = begin.module(*self._fed(begin, feed, 0))
        turn = _Graph(GraphModule({}, torch.fx.Graph()), self._wanted(turns))

        def turning(*tensors: Tensor) -> list[Tensor]:
            taken = self._begun(turn.fed, tensors[len(values) :])
            self.stage.once[once].values = dict(zip(begin.keys, tensors, strict=False))
            self.stage.run(turns, taken)
            turn.keys = list(self.stage.once[once].gradients)
            return [*self._listed(turn, taken), *self.stage.once[once].gradients.values()]

        self._traced(turn, turning, [*values, *self._fed(turn, feed, 0)])
        made = turn.module(*values, *self._fed(turn, feed, 0))[len(turn.outputs) :]
        end = _Graph(GraphModule({}, torch.fx.Graph()), [])

        def ending(*tensors: Tensor) -> list[Tensor]:
            taken = self._begun([], [])
            self.stage.once[once].gradients = dict(zip(turn.keys, tensors, strict=True))
            self.stage.run(last, taken)
            self.stage.total(taken)
            end.keys = list(taken.gradients)
            return list(taken.gradients.values())

        self._traced(end, ending, made)
        return begin, turn, end

    # What is common

    def _wanted(self, events: Sequence[Event]) -> list[Wanted]:
        """What the interpreter asks to be fed: for the stage, and for each of the micro-batches that pass together."""
        out: dict[Wanted, None] = {}
        for event in events:
            for i in self.stage.staged.chunks[event.chunk].instructions(event.phase):
                if isinstance(i, Load) and (i.tensor, i.layout) not in self.stage.resident:
                    once = self.stage.is_parameter(i.tensor) or event.phase in ("begin", "end")
                    places = [-1] if once else range(self.stage.staged.copies)
                    out.update(dict.fromkeys((i.tensor, i.layout, p) for p in places))
        return list(out)

    def _fed(self, graph: _Graph, feed: Feed, turn: int) -> list[Tensor]:
        copies = self.stage.staged.copies
        return [feed(name, layout, p if p < 0 else turn * copies + p) for name, layout, p in graph.fed]

    def _begun(self, wanted: Sequence[Wanted], tensors: Sequence[Tensor]) -> Taken:
        given = dict(zip(wanted, tensors, strict=True))
        self.stage.begin(lambda name, layout, micro_batch: given[name, layout, micro_batch])
        return Taken()

    @staticmethod
    def _listed(graph: _Graph, taken: Taken) -> list[Tensor]:
        named = [(name, m, *found) for name, each in taken.outputs.items() for m, found in each.items()]
        graph.outputs = [(name, m, layout) for name, m, layout, _ in named]
        return [value for *_, value in named]

    def _taken(
        self,
        graph: _Graph,
        found: Sequence[Tensor],
        turn: int,
        gradients: dict[str, Tensor],
        taken: Taken | None = None,
    ) -> Taken:
        taken = Taken() if taken is None else taken
        for (name, m, layout), value in zip(graph.outputs, found, strict=False):
            taken.outputs.setdefault(name, {})[turn * self.stage.staged.copies + m] = layout, value
        taken.gradients = gradients
        return taken

    def _traced(self, graph: _Graph, function: Callable[..., list[Tensor]], examples: Sequence[Tensor]) -> _Graph:
        examples = [x.detach() for x in examples]
        module = make_fx(function, tracing_mode="fake", _allow_non_fake_inputs=True)(*examples)
        module.graph.eliminate_dead_code()
        module.recompile()
        graph.module = module
        if self.compiled:
            import torch._inductor

            # Shapes never change: the plan is for these.
            options: dict[str, Any] = {"size_asserts": False}
            if self.runs_again:
                # Moving operators nearer to what they read would run blocks again beside their first time, and keep
                # what they make until the backward pass after all.
                options["reorder_for_locality"] = False
            graph.run = torch._inductor.compile(module, list(examples), options=options)
        return graph
