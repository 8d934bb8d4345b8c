"""`planner.torch.plan`: from a module to a plan, without ONNX in between that anybody sees."""

from __future__ import annotations

import inspect
import os
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor, nn

from planner.errors import InputError, OptionError, UsageError
from planner.library.machine import Machine
from planner.library.model import Model
from planner.library.options import keywords_of, refuse_unknown
from planner.library.plan import Plan, load_plan
from planner.library.searching import search
from planner.requests.search import SearchRequest
from planner.torch.capture import Capture, capture
from planner.torch.step import Step, model_of_step

__all__ = ["Examples", "ModulePlan", "arguments_of", "load", "optimizer_name", "plan", "plans_of"]

_OPTIMIZERS = {"adamw": "adam", "adam": "adam", "sgd": "sgd", "momentum": "momentum"}

_SEARCHES_OWN = ("hardware", "progress", "cancellation", "cache")  # of `planner.search`, beside those of a request

Examples: TypeAlias = Tensor | Sequence[Any] | Mapping[str, Any]


@dataclass(frozen=True, eq=False, repr=False)
class ModulePlan:
    """A plan for a module: the plan itself, and the step that it is for, captured or exported."""

    plan: Plan
    capture: Step

    @property
    def parallelism(self) -> str:
        """The degrees of parallelism in words."""
        return self.plan.parallelism

    @property
    def step_time(self) -> float:
        """The predicted seconds of a step."""
        return self.plan.step_time

    @property
    def devices(self) -> int:
        """The number of processes that it runs on."""
        return self.plan.devices

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Writes plan.json and the captured model without weights, which the commands read; returns plan.json's path.

        `planner.torch.load` reads it again for the same module.
        """
        return self.plan.save(folder)

    def __repr__(self) -> str:
        return repr(self.plan)

    def __str__(self) -> str:
        return str(self.plan)


def plan(
    module: nn.Module,
    example_inputs: Examples = (),
    *,
    devices: int | None = None,
    targets: Examples = (),
    loss: Callable[..., Tensor] | None = None,
    optimizer: str | torch.optim.Optimizer | type[torch.optim.Optimizer] = "adamw",
    machine: Machine | None = None,
    fixed: Collection[str] = (),
    **options: Any,
) -> ModulePlan:
    """Searches the best parallel strategy for one training step of a module.

    No weight is read, and no process group is needed; where there is one, its first rank searches for all.

    Args:
        module: a module in the mode in which it is trained; it may lie on the meta device.
        example_inputs: a global batch: a tensor, a tuple of positional arguments, or a dict of keyword arguments.
        devices: the number of devices; default: that of the process group.
        targets: what `loss` reads after the module's result: a tensor, or a tuple; a mapping is one of them.
        loss: called with the module's result and the targets; None where the module returns its own loss, as Hugging
            Face's models do when they are given labels.
        optimizer: the optimizer, which takes memory: adamw, adam, momentum, sgd, or a torch optimizer or its class.
        machine: a `planner.Machine` to plan for; or `devices` and `hardware`.
        fixed: names of the module's arguments that have the same values in every step, such as the sizes of images; the
            module may read numbers from them, and whether they are the same is checked in every step.
        options: those of `planner.search`: hardware, time_limit, strategy, micro_batches, pin, …  `precision` is that
            of most of the module's weights by default; bf16 for weights in single precision computes and communicates
            in bfloat16, and keeps weights and optimizer in single precision.  A module that has weights of both types
            is computed as it says.

    Raises:
        InputError: the module cannot be captured; InfeasibleError, NoPlanError as `planner.search`.
    """
    _refuse_unknown("planner.torch.plan()", module, options)
    captured = _captured(module, example_inputs, targets, loss, fixed)
    model, searching = _search(module, captured, devices, machine, optimizer, options)
    (found,) = _by_first_rank(lambda: [searching()], model)
    return ModulePlan(found, captured)


def plans_of(
    module: nn.Module,
    example_inputs: Examples = (),
    *,
    count: int,
    devices: int | None = None,
    targets: Examples = (),
    loss: Callable[..., Tensor] | None = None,
    optimizer: str | torch.optim.Optimizer | type[torch.optim.Optimizer] = "adamw",
    machine: Machine | None = None,
    fixed: Collection[str] = (),
    **options: Any,
) -> list[ModulePlan]:
    """At most `count` plans for a module that are predicted fastest, and what `plan` finds; arguments as of `plan`.

    Among them are known configurations of stages, micro-batches and ZeRO, unless the options name a `space` or a
    `strategy`.
    """
    _refuse_unknown("planner.torch.autotune()", module, options)
    captured = _captured(module, example_inputs, targets, loss, fixed)
    model, searching = _search(module, captured, devices, machine, optimizer, options)

    def searched() -> list[Plan]:
        if {"space", "strategy"} & options.keys():
            first = searching(top_k=count)
            return [first, *first.others][:count]
        first = searching(top_k=count, space="whole")
        return [*(first, *first.others)[:count], searching()]

    distinct: dict[float, Plan] = {}  # one of those that take the same time, which do the same by other names
    for p in _by_first_rank(searched, model):
        distinct.setdefault(p.step_time, p)
    return [ModulePlan(p, captured) for p in distinct.values()]


def _refuse_unknown(function: str, module: nn.Module, options: Mapping[str, Any]) -> None:
    """OptionError for a keyword that the search does not have, before the module is captured for minutes.

    The likeliest is an argument of the module, as its own call takes it.
    """
    known = [*keywords_of(SearchRequest), *_SEARCHES_OWN]
    of_module = inspect.signature(module.forward).parameters
    taken = [name for name in options if name not in known and name in of_module]
    if taken:
        raise OptionError(
            f"{function} has no option {taken[0]!r}, which is an argument of {type(module).__name__}; give the "
            f"module's arguments by name in one dictionary: example_inputs={{{', '.join(f'{n!r}: …' for n in taken)}}}"
        )
    refuse_unknown(function, options, known)


def _search(
    module: nn.Module,
    captured: Capture,
    devices: int | None,
    machine: Machine | None,
    optimizer: Any,
    options: dict[str, Any],
) -> tuple[Model, Callable[..., Plan]]:
    """The captured model, and what searches a plan for it, with further options."""
    if devices is None and machine is None:
        if not dist.is_initialized():
            raise OptionError(
                "devices: expected a number of devices; give devices=…, a machine, or start a process group"
            )
        devices = dist.get_world_size()
    given = {"precision": _precision(module), "target": "torch", **options, "optimizer": optimizer_name(optimizer)}
    model = model_of_step(captured)
    if given["precision"] in ("bf16", "fp16"):
        _warn_of_wide(module, captured)

    def searching(**more: Any) -> Plan:
        return search(model, machine, devices=devices, **(given | more))

    return model, searching


def _warn_of_wide(module: nn.Module, captured: Capture) -> None:
    """Where frozen weights in single precision are to be computed with in a narrower type."""
    wide = [p for n in captured.frozen if (p := module.get_parameter(n)).dtype == torch.float32]
    if wide and sum(p.numel() for p in wide) * 2 > sum(p.numel() for p in module.parameters()):
        size = sum(p.numel() for p in wide) * 4 / 2**30
        warnings.warn(
            f"{captured.name}: {size:.2f} GiB of frozen weights in single precision stay in memory beside the copies "
            "that a step computes with, which alone a plan's memory counts; convert what is frozen before planning, as "
            "module.to(torch.bfloat16) does before adapters are put in",
            stacklevel=4,
        )


def load(
    path: str | os.PathLike[str],
    module: nn.Module,
    example_inputs: Examples = (),
    *,
    targets: Examples = (),
    loss: Callable[..., Tensor] | None = None,
    fixed: Collection[str] = (),
) -> ModulePlan:
    """A plan that was saved, for this module; arguments as of `plan`.

    Raises:
        InputError: the plan is for another step than the module's; `load_exported` reads one of its ONNX export.
    """
    captured = _captured(module, example_inputs, targets, loss, fixed)
    found = load_plan(path)
    about = found.document.model
    graph = model_of_step(captured).source.load(bind=about.bind, batch=about.batch)
    if graph.digest != about.digest:
        raise InputError(
            f"plan {os.fspath(path)}: it is for another step than that of {captured.name} with these inputs (digest "
            f"{about.digest[:12]}, the module's is {graph.digest[:12]}); give the inputs and the mode "
            "it was planned with"
        )
    requested = found.document.search.request
    model = Model(model_of_step(captured).source, dict(about.bind), None if requested is None else requested.batch)
    return ModulePlan(Plan(found.text, model), captured)


def _captured(module: nn.Module, inputs: Examples, targets: Examples, loss: Any, fixed: Collection[str]) -> Capture:
    if hasattr(type(module), "_planner"):
        raise UsageError(f"{type(module).__name__}: the module runs under a plan already; plan for another one")
    listed, named, wanted = arguments_of(inputs, targets)
    return capture(module, listed, named, wanted, loss, fixed)


def arguments_of(inputs: Examples, targets: Examples) -> tuple[tuple[Any, ...], dict[str, Any], tuple[Any, ...]]:
    """Positional and keyword arguments of a module's call, and what stands behind them for its loss."""
    named: dict[str, Any] = dict(inputs) if isinstance(inputs, Mapping) else {}
    listed = () if isinstance(inputs, Mapping) else (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
    return listed, named, (targets,) if isinstance(targets, Tensor | Mapping) else tuple(targets)


def _precision(module: nn.Module) -> str:
    """That of most of the module's weights: a module in single precision is computed so unless something else is asked
    for, and one in bfloat16 with adapters in single precision is none of single precision."""
    elements: Counter[torch.dtype] = Counter()
    for p in module.parameters():
        if p.dtype.is_floating_point:
            elements[p.dtype] += p.numel()
    names = {torch.bfloat16: "bf16", torch.float16: "fp16"}
    return names.get(max(elements, key=lambda t: elements[t], default=torch.float32), "fp32")


def optimizer_name(given: Any) -> str:
    """What plans call an optimizer.  OptionError where it is none that they know."""
    if isinstance(given, str) and given.lower() in _OPTIMIZERS:
        return _OPTIMIZERS[given.lower()]
    name = (given if isinstance(given, type) else type(given)).__name__.lower()
    if name == "sgd" and not isinstance(given, type):
        return "momentum" if given.defaults.get("momentum") else "sgd"
    if name in _OPTIMIZERS:
        return _OPTIMIZERS[name]
    raise OptionError(f"optimizer {given!r:.60}: expected one of {', '.join(sorted(_OPTIMIZERS))}")


def _by_first_rank(searched: Callable[[], list[Plan]], model: Model) -> list[Plan]:
    """The plans of the first rank on all ranks: two searches under a time limit may end in two plans."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return searched()
    found: list[Any] = [None, None]
    own: list[Plan] = []
    if dist.get_rank() == 0:
        try:
            own = searched()
            found = [[p.text for p in own], None]
        except Exception as error:  # which all ranks shall raise, or they would wait for ever
            found = [None, error]
    dist.broadcast_object_list(found, src=0)
    if found[1] is not None:
        raise found[1]
    return own if dist.get_rank() == 0 else [Plan(text, model) for text in found[0]]
