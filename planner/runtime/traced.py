"""A stage's step as graphs of ATen operators: what the interpreter runs, traced once, and compiled.

`make_fx` follows the interpreter, so that a graph holds precisely the collectives of the program, as functional
operators, and gives the bits that the interpreter gives.  A plan of one micro-batch is one graph, forward, backward and
collectives together.  With several, what happens once at the beginning of a step, a pass, and what happens once at the
end are three, so that their number does not matter; where gradients are summed at the end, the last pass is one graph
with it, so that they are while its backward pass goes on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from planner.ir import Layout
from planner.lowering import Event, Load, Redistribute
from planner.redistribute.steps import FREE
from planner.runtime.cells import Taken
from planner.runtime.overlap import overlap
from planner.runtime.stage import DRAW, Feed, Stage

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
        self._whole: _Graph | None = None
        self._parts: tuple[_Graph, _Graph, _Graph] | None = None
        self._totals: list[Tensor] = []  # as meta tensors, the sums that passes add to
        self._others: list[str] = []  # gradients whose sums over ranks are not in the place of these
        self._joined = False  # whether the last pass and the end of the step are one graph

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
        totals = self._zeros()
        last = self.passes - 1
        for n in range(self.passes):
            graph = end if n == last and self._joined else turn
            found = graph(*totals, *values, *self._fed(graph, feed, n))
            self._taken(graph, found, n, {}, taken)
        others = found[len(end.outputs) :] if self._joined else end(*totals)
        summed = dict(zip((name for name, _ in turn.keys), totals, strict=True))
        apart = dict(zip(self._others, others, strict=True))
        taken.gradients = {name: apart[name] if name in apart else summed[name] for name in end.keys}
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

        self._trace(turn, turning, [*values, *self._fed(turn, feed, 0)])
        self._totals = _summing(turn.module, len(turn.outputs))
        totals = self._zeros()
        self._compile(turn, [*totals, *values, *self._fed(turn, feed, 0)])
        self._joined = any(
            isinstance(i, Redistribute) and any(step.kind not in FREE for step in i.steps)
            for i in self.stage.staged.chunks[once].instructions("end")
        )
        end = _Graph(GraphModule({}, torch.fx.Graph()), turn.fed if self._joined else [])

        def ending(*tensors: Tensor) -> list[Tensor]:
            summed = dict(zip(turn.keys, tensors, strict=False))
            if self._joined:
                taken = self._begun(turn.fed, tensors[len(summed) + len(values) :])
                self.stage.once[once].values = dict(zip(begin.keys, tensors[len(summed) :], strict=False))
                self.stage.run(turns, taken)
                made = self.stage.once[once].gradients
                summed = {key: total + made[key] for key, total in summed.items()}
            else:
                taken = self._begun([], [])
            found = self._listed(end, taken)
            self.stage.once[once].gradients = summed
            self.stage.run(last, taken)
            self.stage.total(taken)
            end.keys = list(taken.gradients)
            return [*found, *taken.gradients.values()]

        given = [*totals, *values, *self._fed(end, feed, 0)] if self._joined else totals
        self._trace(end, ending, given)
        self._others = _in_place(end.module, [name for name, _ in turn.keys], end.keys, len(end.outputs))
        self._compile(end, given)
        return begin, turn, end

    def _zeros(self) -> list[Tensor]:
        """What passes add their gradients to."""
        return [torch.zeros_like(g, device=self.stage.context.device) for g in self._totals]

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
            if self.stage.draws and event.phase not in ("begin", "end"):
                out.update(dict.fromkeys((*DRAW, p) for p in range(self.stage.staged.copies)))
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
        self._trace(graph, function, examples)
        self._compile(graph, examples)
        return graph

    def _trace(self, graph: _Graph, function: Callable[..., list[Tensor]], examples: Sequence[Tensor]) -> None:
        examples = [x.detach() for x in examples]
        module = make_fx(function, tracing_mode="fake", _allow_non_fake_inputs=True)(*examples)
        module.graph.eliminate_dead_code()
        overlap(module.graph, self._agreed)
        if not self.compiled:  # Inductor finds by itself what may be written over
            _reduce_buckets_in_place(module)
        module.recompile()
        graph.module = module

    def _agreed(self, order: Sequence[int]) -> bool:
        """Whether all ranks would begin their collectives in this order."""
        mine = int.from_bytes(hashlib.sha256(str(order).encode()).digest()[:7])
        both = torch.tensor([mine, -mine], device=self.stage.context.device)
        dist.all_reduce(both, dist.ReduceOp.MAX)
        return int(both[0]) == -int(both[1])

    def _compile(self, graph: _Graph, examples: Sequence[Tensor]) -> None:
        if not self.compiled:
            return
        import torch._inductor

        from planner.runtime.stored import StoredOnce

        # Shapes never change: the plan is for these.  Operators stay in their order: moved nearer to what they read, or
        # by what Inductor finds of memory, collectives would be waited for where they begin, parameters of all blocks
        # be gathered at the beginning, and blocks run again beside their first time.
        options: dict[str, Any] = {
            "size_asserts": False,
            "reorder_for_locality": False,
            "reorder_for_peak_memory": False,
            "post_grad_custom_post_pass": StoredOnce(),
        }
        graph.run = torch._inductor.compile(graph.module, [x.detach() for x in examples], options=options)


def _summing(module: GraphModule, outputs: int) -> list[Tensor]:
    """Has a graph add what it returns behind so many outputs to tensors that it is given before all others, each when
    it is made, so that no second set of gradients is held; returns what has the shapes and types of these."""
    graph = module.graph
    end, first = graph.output_node(), next(iter(graph.nodes))
    returned: Any = end.args[0]
    made: list[Any] = list(returned[outputs:])
    behind = next(n for n in graph.nodes if n.op != "placeholder")
    for number, node in enumerate(made):
        with graph.inserting_before(first):
            total = graph.placeholder(f"total_{number}")
            total.meta["val"] = node.meta["val"]
        with graph.inserting_before(behind) if node.op == "placeholder" else graph.inserting_after(node):
            graph.call_function(torch.ops.aten.add_.Tensor, (total, node))
    end.args = (list(returned[:outputs]),)
    module.recompile()
    return [torch.empty(n.meta["val"].shape, dtype=n.meta["val"].dtype, device="meta") for n in made]


def _reduce_buckets_in_place(module: GraphModule) -> None:
    """Has collectives reduce where it lies what is joined for them alone."""
    for node in module.graph.find_nodes(op="call_function", target=torch.ops._c10d_functional.all_reduce.default):
        if (joined := node.args[0]).target is torch.ops.aten.cat.default and len(joined.users) == 1:
            node.target = torch.ops._c10d_functional.all_reduce_.default


def _in_place(module: GraphModule, given: Sequence[str], made: Sequence[str], outputs: int) -> list[str]:
    """Has a graph write the results behind so many outputs that are like its first inputs, `given` by name, into the
    inputs of the same names, instead of returning them; returns the names of the others."""
    graph = module.graph
    end, inputs = graph.output_node(), dict(zip(given, graph.find_nodes(op="placeholder"), strict=False))
    behind = next(n for n in graph.nodes if n.op != "placeholder")
    listed: Any = end.args[0]
    returned: list[Any] = list(listed[:outputs])
    others: list[str] = []
    for name, node in zip(made, listed[outputs:], strict=True):
        place = inputs.get(name)
        if place is None or _like(place) != _like(node):
            returned.append(node)
            others.append(name)
        elif node is not place:
            with graph.inserting_before(behind) if node.op == "placeholder" else graph.inserting_after(node):
                graph.call_function(torch.ops.aten.copy_.default, (place, node))
    end.args = (returned,)
    module.recompile()
    return others


def _like(node: Any) -> tuple[torch.Size, torch.dtype]:
    return node.meta["val"].shape, node.meta["val"].dtype
