"""`planner.torch.parallelize`: the plan's program runs as the forward and backward of the user's own module.

The module keeps its class, the names of its parameters and buffers, and its place in the user's loop; its parameters
become DTensors in the layouts in which the plan stores them.  A call runs a whole step, forward and backward, since the
schedule of a pipeline interleaves them; `loss.backward()` hands the gradients over.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal, get_args

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from planner.errors import InputError, UsageError
from planner.ir import Layout
from planner.lowering import lower
from planner.lowering.check import check_program
from planner.planning.programs import assignment_of, program_of
from planner.runtime.apart import Apart
from planner.runtime.cells import Taken
from planner.runtime.freed import keep_freed_memory
from planner.runtime.outputs import step_loss, whole
from planner.runtime.parts import local_part
from planner.runtime.placements import State, local_tensor
from planner.runtime.stage import DRAW, Feed, Stage
from planner.runtime.traced import TracedStage
from planner.runtime.training.data import bounds_of, ignored_of
from planner.runtime.workers import Context
from planner.torch.agreement import check_micro_batches, check_plan
from planner.torch.capture.writer import as_array
from planner.torch.delivery import Deliver
from planner.torch.guards import Kept, check_autocast, check_frozen, check_hooks, check_indices, check_mode, replaced
from planner.torch.planning import ModulePlan
from planner.torch.state import STAGES, in_shards
from planner.torch.step import model_of_step
from planner.verify.pipelined import pipeline_of
from planner.work.constants import part_of

__all__ = ["Mode", "Runner", "parallelize"]

Mode = Literal["eager", "traced", "compiled"]


def parallelize(module: nn.Module, plan: ModulePlan, *, mode: Mode = "eager") -> nn.Module:
    """Makes the module run as the plan says, on the processes of the default process group; returns the module.

    Called with the example inputs' like, and the targets behind them, it returns the loss, the same on every rank.
    A batch may be given whole on every rank, or as the part that the rank's data-parallel group reads
    (`planner.torch.data_shard`).  Parameters that no stage of this rank holds lie on the meta device.

    Args:
        module: the module that was planned for; it is changed.
        plan: of `planner.torch.plan` or `planner.torch.load`.
        mode: eager interprets the program, operator by operator; traced runs it as graphs of ATen operators, with the
            same bits; compiled has Inductor compile these, which takes a while at the first step.  Stages of pipelines
            are interpreted.

    Raises:
        UsageError: there is no process group, or one of another size than the plan's; the module runs under a plan.
        InputError: the plan is for another module.
    """
    if not dist.is_initialized():
        raise UsageError(
            "planner.torch.parallelize: no process group; start the script with torchrun and call "
            "torch.distributed.init_process_group() first"
        )
    if dist.get_world_size() != plan.devices:
        raise UsageError(
            f"the plan is for {plan.devices} devices, and the process group has {dist.get_world_size()}; "
            f"start {plan.devices} processes, or plan again"
        )
    if hasattr(type(module), "_planner"):
        raise UsageError(
            f"planner.torch.parallelize: the {type(module).__name__} runs under a plan already; give another module"
        )
    if mode not in get_args(Mode):
        raise UsageError(f"planner.torch.parallelize: mode {mode!r}: expected one of {', '.join(get_args(Mode))}")
    check_hooks(module)
    runner = Runner(module, plan, mode)
    runner.place_state()
    module.register_load_state_dict_pre_hook(in_shards)
    kind = type(module)
    named = {"forward": _forward_of(kind), "_planner": runner, "__reduce_ex__": _not_copied}
    module.__class__ = type(f"Parallel{kind.__name__}", (kind,), named)
    return module


def _forward_of(kind: type[nn.Module]) -> Any:
    """What takes the place of a module's `forward`; it shows the same signature, by which trainers choose inputs."""

    @functools.wraps(kind.forward)
    def forward(self: nn.Module, *arguments: Any, **keywords: Any) -> Any:
        runner: Runner = self._planner
        return runner(arguments, keywords)

    # torch.compile goes around it: the program of a plan is compiled by `mode`.  torch.compiler.disable would import
    # the compiler here, this does at the first call, as torch's optimizers do.
    return torch._compile._disable_dynamo(forward)


def _not_copied(self: nn.Module, _: object) -> Any:
    """In the place of what copies and pickles a module: a copy would run with this one's weights."""
    raise UsageError(
        f"{type(self).__name__}: a module that runs under a plan cannot be copied or pickled; its weights are "
        "planner.torch.whole_state_dict(module), and what to save planner.torch.state_dict(module)"
    )


class Runner:
    """A module, its plan, and this rank's stage."""

    def __init__(self, module: nn.Module, plan: ModulePlan, mode: Mode = "eager") -> None:
        self.module, self.plan, self.capture = module, plan, plan.capture
        self.document = plan.plan.document
        about = self.document.model
        self.graph = model_of_step(self.capture).source.load(bind=about.bind, batch=about.batch)
        self.micro_batches = self.document.schedule.micro_batches
        self.device = next((b.device for b in (*module.parameters(), *module.buffers()) if not b.is_meta),
                           torch.device("cpu"))  # fmt: skip
        self.context = Context(dist.get_rank(), dist.get_world_size(), self.device)
        if self.device.type == "cpu":
            keep_freed_memory()
        program = program_of(self.document, self.graph)
        if defects := check_program(program):
            raise InputError(f"plan of {self.capture.name}: {defects[0]}; plan it again")
        self.staged = pipeline_of(self.document, program, self.micro_batches)
        self.names = self.capture.paths(self.graph)
        if self.micro_batches > 1:
            batch = model_of_step(self.capture).source.load(bind=about.bind)
            check_micro_batches(self.capture, self.graph, batch, self.micro_batches)
        check_plan(module, self.capture, self.graph, self.names, self.micro_batches)
        kept = {n for n, _ in module.named_buffers()}
        self.buffers = {n for n, path in self.names.items() if path in kept}  # which the plan has as parameters
        self.changing = {u.buffer for u in self.capture.updates if u.output}
        self.stage = Stage(
            self.staged, self.context, self._constants(), precision=self.narrowed, changing=self.changing,
            drawing=True, wide_sums=self._precision() is not None,
        )  # fmt: skip
        made = {u.buffer: self.graph.producers[u.output].name for u in self.capture.updates if u.output}
        # Buffers that ranks of other stages of a pipeline write.
        self.elsewhere = frozenset(b for b, op in made.items() if self.staged.chunk_of[op] not in self.stage.chunks)
        self.steps = 0  # that were made, which is what dropout draws for
        self.stepper: Stage | TracedStage = self.stage
        if mode != "eager" and len(self.staged.passes.stages) == 1:
            self.stepper = TracedStage(self.stage, compiled=mode == "compiled")
        self.still: Stage | None = None
        self.held = [n for n in self.names if any(n in self.staged.chunks[k].held for k in self.stage.chunks)]
        stored = {n: self.document.parameters[n].stored.layout() for n in self.names}
        self.layouts = stored
        self.state = State(self.staged.program.mesh, len(self.staged.passes.stages), stored, self.device.type)
        # Weights of which every rank holds all stay plain tensors, as DistributedDataParallel leaves them: optimizers
        # take longer over DTensors.  Where only some are whole all are DTensors, since a step does not mix the two.
        self.plain = len(self.staged.passes.stages) == 1 and not any(x.split_axes for x in stored.values())
        self.parameters: dict[str, nn.Parameter] = {}
        self.frozen: dict[str, nn.Parameter] = {}  # as the module names them
        self.anchor = torch.zeros((), device=self.device, requires_grad=True)  # what the loss depends on for autograd
        self.kept = Kept(module, self.capture.kept)
        self.below = {n: min(np.ravel(b)) for n, b in bounds_of(self.graph).items()}
        self.ignored = ignored_of(self.graph)
        self.types = {n: getattr(torch, self.graph.tensors[n].dtype) for n in self.capture.inputs}

    def _precision(self) -> torch.dtype | None:
        return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(self.document.schedule.precision)

    @functools.cached_property
    def narrowed(self) -> torch.dtype | None:
        """The type in which what is in single precision is computed; None for a module most of whose weights are of
        that type already, beside some in single precision: it says itself what it computes in which."""
        low = self._precision()
        elements: Counter[torch.dtype] = Counter()
        for n in self.names.keys() - self.buffers:
            elements[getattr(torch, self.graph.tensors[n].dtype)] += self.graph.tensors[n].elements
        mixed = low is not None and elements[low] >= elements[torch.float32] > 0
        return None if mixed else low

    def _constants(self) -> Mapping[str, Any]:
        """Known tensors and buffers, whole."""
        found: dict[str, Any] = {n: self._constant(n, t) for n, t in self.capture.constants.items()}
        for name, b in (*self.module.named_parameters(), *self.module.named_buffers()):
            if name in self.graph.tensors and name not in self.names:
                found[name] = as_array(b)
        return found

    def _constant(self, name: str, captured: torch.Tensor) -> Any:
        """As the graph of a micro-batch has it, where it is smaller than that of the batch."""
        own = self.graph.tensors.get(name)
        if own is None or own.shape is None or own.shape == tuple(captured.shape):
            return as_array(captured)
        whole = as_array(captured)
        part = own.value if own.value is not None else part_of(whole, own.shape)[0]
        return whole if part is None else part  # what has no such part is refused where micro-batches are checked

    # State

    def place_state(self) -> None:
        """Puts the shards that the plan stores in the place of the module's parameters."""
        for name, origin in self.names.items():
            if name in self.buffers:
                continue
            whole = self.module.get_parameter(origin)
            if name in self.held:
                fresh = self._sharded(name, whole)
                holder, chunks = self.staged.passes.holder, self.staged.chunks
                setattr(fresh, STAGES, len({holder[k] for k, c in enumerate(chunks) if name in c.held}))
            else:
                fresh = nn.Parameter(whole.detach().to("meta"), requires_grad=whole.requires_grad)
            self.parameters[name] = fresh
            if self.graph.tensors[name].frozen:
                self.frozen[origin] = fresh
            replaced(whole, fresh)
            for path in self._paths(origin):
                owner, _, last = path.rpartition(".")
                self.module.get_submodule(owner)._parameters[last] = fresh

    def _paths(self, origin: str) -> list[str]:
        return [origin, *(alias for alias, name in self.capture.aliases.items() if name == origin)]

    def _sharded(self, name: str, whole: nn.Parameter) -> nn.Parameter:
        layout = self.layouts[name]
        shape, stride = whole.shape, torch.empty(whole.shape, device="meta").stride()
        if whole.is_meta:
            local = torch.empty(
                layout.local_shape(tuple(shape), self.stage.mesh), dtype=whole.dtype, device=self.device
            )
        else:
            local = local_part(whole.detach(), layout, self.stage.mesh, self.context.place)
        if self.plain:
            return nn.Parameter(local, requires_grad=whole.requires_grad)
        return nn.Parameter(self.state.tensor(layout, local, shape, stride), requires_grad=whole.requires_grad)

    def shard(self, parameter: nn.Parameter, whole: Tensor) -> Tensor:
        """What this rank holds of numbers for one of the module's parameters, as the parameter is held."""
        if parameter.is_meta:
            return whole.to("meta")
        name = next(n for n, p in self.parameters.items() if p is parameter)
        local = local_part(whole.detach(), self.layouts[name], self.stage.mesh, self.context.place)
        local = local.to(self.device)
        return local if self.plain else DTensor(local, parameter._spec, requires_grad=False)

    # A step

    def _given(self, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> dict[str, Tensor]:
        given = dict(zip(self.capture.inputs, self.capture.fed(arguments, keywords), strict=True))
        if self.device.type == "cpu":  # elsewhere looking would wait for the device
            for name, below in self.below.items():
                check_indices(name, given[name], below, self.ignored)
        return given

    def feed(self, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> Feed:
        """A batch, and the parameters as they are, as the stage reads them."""
        return self._feed(self._given(arguments, keywords), self.stage)

    def __call__(self, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
        self.kept.check()
        check_frozen(self.capture.name, self.frozen)
        if self.module.training and not self.capture.training:
            check_mode(self.module, self.capture.name)
        if check_autocast(self.device, self._precision(), self.capture.name):
            with torch.autocast(self.device.type, enabled=False):
                return self._step(arguments, keywords)
        return self._step(arguments, keywords)

    def _step(self, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
        given = self._given(arguments, keywords)
        # A module that was planned in evaluation mode is trained in it, too.
        if not torch.is_grad_enabled() or not (self.module.training or not self.capture.training):
            return self.capture.returned.wrapped(
                self._loss(self._forward_only().step(self._feed(given, self._forward_only())))
            )
        taken = self.stepper.step(self._feed(given, self.stage))
        self.steps += 1
        self._update_buffers(taken)
        loss = self._loss(taken)
        return self.capture.returned.wrapped(Deliver.apply(loss, self.anchor, self._delivery(taken)))

    def _delivery(self, taken: Taken) -> list[tuple[nn.Parameter, Tensor]]:
        """Parameters with their gradients, none in the memory of another, since what clips them writes into them."""
        found = []
        apart = Apart(self.stage.seeds.values())
        for name in self.held:
            local = taken.gradients.pop(name, None)  # of a gradient that is widened the narrow one goes at once
            p = self.parameters.get(name)
            if local is None or p is None or not p.requires_grad:
                continue
            local = apart(local if local.dtype == p.dtype else local.to(p.dtype))
            # As FSDP makes its own: DTensor.from_local would check and record for each what is known here.
            found.append((p, local if self.plain else DTensor(local, p._spec, requires_grad=False)))
        return found

    def _feed(self, given: Mapping[str, Tensor], stage: Stage) -> Feed:
        def feed(name: str, layout: Layout, micro_batch: int) -> Tensor:
            if (parameter := self.parameters.get(name)) is not None:
                return local_tensor(parameter)
            if (name, layout) == DRAW:
                number = self.steps * self.micro_batches + micro_batch
                return torch.full((), number, dtype=torch.int64, device=self.device)
            if name in self.buffers:
                return local_part(self.module.get_buffer(self.names[name]), layout, stage.mesh, self.context.place)
            if name in self.changing:
                return local_part(self.module.get_buffer(name), layout, stage.mesh, self.context.place)
            return self._part(name, given[name], layout, max(micro_batch, 0), stage)

        return feed

    def _part(self, name: str, value: Tensor, layout: Layout, micro_batch: int, stage: Stage) -> Tensor:
        """This rank's part of a micro-batch, of a whole batch or of the shard that its data-parallel group reads."""
        shape = self.graph.tensors[name].shape
        assert shape is not None
        value = self._typed(name, value.detach()).to(self.device)
        if tuple(value.shape) == shape and self.micro_batches == 1:
            return local_part(value, layout, stage.mesh, self.context.place)
        local = layout.local_shape(shape, stage.mesh)
        for rows, own in ((shape[0] if shape else 1, False), (local[0] if local else 1, True)):
            if shape and tuple(value.shape) == (rows * self.micro_batches, *shape[1:]):
                part = value[micro_batch * rows : (micro_batch + 1) * rows]
                rest = Layout(((), *layout.dims[1:]), layout.partial, layout.parts) if own else layout
                return local_part(part, rest, stage.mesh, self.context.place)
        expected = [shape[0] * self.micro_batches, *shape[1:]] if shape else []
        raise InputError(
            f"input {name}: expected the whole batch {expected} or this rank's {local[0] * self.micro_batches} samples "
            f"of it, found {list(value.shape)}"
        )

    def _typed(self, name: str, value: Tensor) -> Tensor:
        """An input in the type that was planned: whole numbers of any width are converted."""
        wanted = self.types.get(name, value.dtype)
        if value.dtype == wanted or (wanted.is_floating_point and value.dtype == self.narrowed):
            return value
        if value.dtype.is_floating_point or wanted.is_floating_point or torch.bool in (wanted, value.dtype):
            raise InputError(f"input {name}: expected elements of {wanted}, found {value.dtype}; convert it")
        return value.to(wanted)

    def _forward_only(self) -> Stage:
        if self.still is None:
            if self.capture.mode_matters:
                mode = "training" if self.capture.training else "evaluation"
                raise UsageError(
                    f"{self.capture.name}: the step was planned in {mode} mode, and some of its operators do something "
                    "else in the other one; gather the weights for evaluation with planner.torch.whole_state_dict"
                )
            program = self.staged.program
            forward = lower(
                self.graph, program.mesh, program.rules, frozenset(), assignment_of(self.document, self.graph)
            )
            self.still = Stage(
                pipeline_of(self.document, forward, self.micro_batches), self.context, self._constants(),
                precision=self.narrowed, changing=self.changing,
            )  # fmt: skip
        return self.still

    # What a step returns and leaves

    def _loss(self, taken: Taken) -> Tensor:
        """Of all micro-batches together, on every rank of every stage."""
        return step_loss(self.graph, self.stage, taken)

    def _update_buffers(self, taken: Taken) -> None:
        with torch.no_grad():
            for u in self.capture.updates:
                buffer = self.module.get_buffer(u.buffer)
                if not u.output:
                    buffer.add_(u.added * self.micro_batches)
                elif u.buffer not in self.elsewhere:
                    self._average(u, buffer, taken)

    def _average(self, u: Any, buffer: Tensor, taken: Taken) -> None:
        """A running statistic over the micro-batches in turn: each was counted from what the step began with."""
        first, kept = buffer.clone(), 1.0 - u.momentum
        shape = self.graph.tensors[u.counted].shape if u.counted else None
        unbiased = 1.0
        if shape is not None:
            count = shape[0]
            for n in shape[2:]:
                count *= n
            unbiased = count / max(count - 1, 1)
        for layout, value in (found for _, found in sorted(taken.outputs[u.output].items())):
            new = whole(value, layout, self.stage.mesh, self.context).to(buffer.dtype)
            if u.momentum:
                buffer.copy_(kept * buffer + (new - kept * first) * unbiased)
            else:
                buffer.copy_(new)
