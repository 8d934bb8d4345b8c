"""Whether a plan is one of the module that it is applied to, and micro-batches compute what the whole batch does."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import numpy as np
from torch import nn

from planner.errors import InputError
from planner.frontends.resized.samples import loss_over_samples
from planner.ir import Graph, Role
from planner.runtime.training.data import bounds_of
from planner.torch.capture.writer import as_array
from planner.torch.step import Step
from planner.work.by_sample import Meeting, meetings
from planner.work.constants import Known, constants_of_samples, counted_on

__all__ = ["check_micro_batches", "check_plan", "known_constants"]


def check_plan(module: nn.Module, capture: Step, graph: Graph, names: Mapping[str, str], micro_batches: int) -> None:
    """InputError where the step is not one that trains, or not this module's.

    `names`: parameter of the graph -> the module's name of it.
    """
    if graph.loss is None:
        raise InputError(
            f"{capture.name}: the step returns no loss; expected one number: give planner.torch.plan a loss, of which "
            "the mean or the sum is taken"
        )
    lacking = {n for n in capture.parameters if n in graph.tensors} - set(names.values())
    if lacking:
        raise InputError(f"the plan has no parameter {sorted(lacking)[0]}, which the module trains; plan again")
    own = dict((*module.named_parameters(remove_duplicate=False), *module.named_buffers()))
    for name, origin in names.items():
        shape = graph.tensors[name].shape
        found = own.get(origin)
        if found is None or tuple(found.shape) != shape:
            has = "has none of this name" if found is None else f"has it in the shape {list(found.shape)}"
            raise InputError(
                f"{type(module).__name__}: the plan is for {origin} of shape {list(shape or ())}, and the module "
                f"{has}; plan for this module"
            )
    several = [u.buffer for u in capture.updates if u.output and not u.counted and not u.momentum]
    if micro_batches > 1 and several:
        raise InputError(
            f"{capture.name}: a step changes the buffer {several[0]}, and the plan makes it in {micro_batches} "
            "micro-batches, each of which would begin with the old one; plan with micro_batches=1"
        )


def check_micro_batches(capture: Step, part: Graph, whole: Graph, micro_batches: int) -> None:
    """Whether a `part` of the `whole` batch computes its part of the loss, as far as sizes show that.

    InputError where indices count rows of the batch, or known numbers differ from sample to sample; a warning where
    samples meet each other.
    """
    placed = (n for n in part.inputs if part.tensors[n].role is Role.INPUT and _sizes(part, n) != _sizes(whole, n))
    if (name := next(placed, None)) is not None:
        raise InputError(
            f"{capture.name}: the input {name} of shape {list(whole.tensors[name].shape or ())} has its samples in "
            f"another dimension than the first, and the plan cuts the batch into {micro_batches} micro-batches; plan "
            "with micro_batches=1, or give the samples in the first dimension"
        )
    known = known_constants(capture, whole)
    unlike = next(constants_of_samples(part, whole, known), None)
    if unlike is not None:
        raise InputError(
            f"{capture.name}: the constant {unlike} of shape {list(whole.tensors[unlike].shape or ())} has other "
            f"numbers for each of the {micro_batches} micro-batches that the plan makes of the batch; plan with "
            "micro_batches=1, or give these numbers with the batch"
        )
    bounds = bounds_of(whole)
    for name, below in bounds_of(part).items():
        if tuple(np.ravel(below)) != tuple(np.ravel(bounds.get(name, below))):
            raise InputError(
                f"{capture.name}: the input {name} counts rows of the batch, which the plan cuts into {micro_batches} "
                "micro-batches; plan with micro_batches=1"
            )
    met = _met(capture, part, whole, known)
    if met is not None and met.kind == "rows":
        raise InputError(
            f"{capture.name}: {met.op.type} {met.op.name} takes as many rows of a weight as the batch has samples, and "
            f"so the first ones for each of the {micro_batches} micro-batches that the plan makes of it; plan with "
            "micro_batches=1, or give these rows with the batch"
        )
    if met is not None:
        own, of_batch = (list(g.tensors[met.tensor].shape or ()) for g in (part, whole))
        _warn(
            f"{capture.name}: samples of a micro-batch meet each other, or are chosen by their places, in "
            f"{met.op.type} {met.op.name}, whose result has the shape {own}, of the whole batch {of_batch}, so that "
            f"the {micro_batches} micro-batches compute something else than the whole batch does; plan with "
            "micro_batches=1 if that matters"
        )
    elif loss_over_samples(part) == "other":
        _warn(
            f"{capture.name}: the loss is neither a mean nor a sum over samples, as far as its operators show, so that "
            f"the mean of the {micro_batches} micro-batches' losses is something else than that of the whole batch; "
            "plan with micro_batches=1 if that matters"
        )
    if any(u.counted for u in capture.updates):
        _warn(
            f"{capture.name}: batch norms see a micro-batch at a time, one of {micro_batches}, and so compute "
            "something else than they do with the whole batch; plan with micro_batches=1 if that matters"
        )


def _sizes(graph: Graph, name: str) -> tuple[int, ...]:
    """Of a tensor, but for its first dimension."""
    return (graph.tensors[name].shape or ())[1:]


def known_constants(capture: Step, whole: Graph) -> Known:
    """Constants that are too large for the graph lie beside it."""
    apart = capture.constants
    return lambda name: as_array(apart[name]) if name in apart else whole.tensors[name].value


def _met(capture: Step, part: Graph, whole: Graph, known: Known) -> Meeting | None:
    """Where micro-batches compute something else than the whole batch, rows of a tensor first; of batch norms that
    know the means of earlier steps that is said apart."""
    apart = {whole.producers[u.output].name for u in capture.updates if u.counted}
    return min(meetings(part, whole, counted_on(part, whole, known), apart), key=lambda m: m.kind, default=None)


def _warn(message: str) -> None:
    """As of whoever calls `planner.torch.parallelize`."""
    warnings.warn(message, stacklevel=5)
