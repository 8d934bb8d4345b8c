"""A step of a module as torch.export sees it: forward and loss, without a weight being touched.

The module may lie on any device, the meta device included.  What torch.export leaves is functional (no operator writes
into its operand) and of high-level ATen operators (`linear`, `scaled_dot_product_attention`, `cross_entropy_loss`),
which say more about layouts than what they are made of; those that no translator knows are decomposed.
"""

from __future__ import annotations

import io
import re
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr
from functools import partial
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from planner.errors import InputError
from planner.torch.capture.checks import checks_left_out
from planner.torch.capture.fixed import FixedValues
from planner.torch.capture.followed import DetachUnfollowed
from planner.torch.capture.masked_rows import MaskedRows
from planner.torch.capture.own_gradients import compare_own_gradients
from planner.torch.capture.places import place_of_frames
from planner.torch.capture.registry import is_known
from planner.torch.capture.returned import Returned
from planner.torch.capture.unallocated import stood_in

__all__ = ["FLOW_ADVICE", "Exported", "Loss", "exported_step"]

Loss = Callable[..., Tensor]

FLOW_ADVICE: Final = (
    "\nIf such values are those of an argument that is the same in every step, such as the sizes of images, name it: "
    "planner.torch.plan(…, fixed=(…,)).  Otherwise the module must be written so that its flow does not depend on them "
    "(torch.where)"
)

_OF_VALUES = ("data-dependent", "datadependent", "dynamiccontrolflow", "control flow", "unbacked", "bool()")


class Exported(NamedTuple):
    """The program of a step, and where the module has its own loss in what it returns."""

    program: ExportedProgram
    returned: Returned


class _Step(nn.Module):
    """The module and its loss as one: what is exported."""

    def __init__(
        self, module: nn.Module, loss: Loss | None, fixed: Mapping[int, Tensor], unchecked: list[str],
        returned: list[Returned],
    ) -> None:  # fmt: skip
        super().__init__()
        self.module, self.loss, self.fixed = module, loss, dict(fixed)
        # torch.export gives a module other lists than it had.
        self.checks, self.returns = partial(checks_left_out, unchecked), returned.append

    def forward(self, inputs: tuple[Any, ...], kwargs: dict[str, Any], targets: tuple[Any, ...]) -> Any:
        name = type(self.module).__name__
        leaves = pytree.tree_leaves((inputs, kwargs, targets))
        fixed = FixedValues((leaves[i], numbers) for i, numbers in self.fixed.items())
        known = fixed if self.fixed else nullcontext()
        with compare_own_gradients(name), DetachUnfollowed(name), MaskedRows(name) as masked, self.checks(), known:
            with _written_buffers(self.module):
                found = self.module(*inputs, **kwargs)
            if self.loss is None:
                own = Returned.of(found)
                self.returns(own)
                result = own.taken(found)
            else:
                result = self.loss(found, *targets)
            masked.check(result)
            return result


@contextmanager
def _written_buffers(module: nn.Module) -> Iterator[None]:
    """A module that gives a buffer another tensor (`self.mean = 0.9 * self.mean + x.mean(0)`) writes into it behind the
    call, which torch.export follows; it forgets the other tensor.

    InputError where that has another shape or type.
    """
    before = [(m, n, b) for m in module.modules() for n, b in m._buffers.items() if b is not None]
    yield
    for owner, name, buffer in before:
        now = owner._buffers.get(name)
        if now is buffer or now is None:
            continue
        if now.shape != buffer.shape or now.dtype != buffer.dtype:
            path = next(p for p, m in module.named_modules() if m is owner)
            raise InputError(
                f"{type(module).__name__}: the step gives the buffer {f'{path}.{name}'.lstrip('.')} another shape or "
                f"type, {list(now.shape)} {now.dtype} for {list(buffer.shape)} {buffer.dtype}; keep them"
            )
        with torch.no_grad():
            buffer.copy_(now.detach())
        owner._buffers[name] = buffer


def exported_step(
    module: nn.Module,
    inputs: Sequence[Any],
    kwargs: Mapping[str, Any],
    targets: Sequence[Any],
    loss: Loss | None,
    *,
    dynamic_shapes: Any = None,
    whole: bool = False,
    fixed: Mapping[int, Tensor] = MappingProxyType({}),
) -> Exported:
    """The program of one step, as torch.export has it where it is wanted `whole`, else with operators decomposed that
    no translator knows; `dynamic_shapes` are those of torch.export, and `fixed` the numbers of arguments that have the
    same in every step, by their place among the leaves of inputs, keywords and targets.

    InputError where torch.export cannot follow the module.
    """
    unchecked: list[str] = []
    returned = [Returned()]
    step = _Step(module, loss, fixed, unchecked, returned)
    step.training = module.training
    given = _apart((tuple(inputs), dict(kwargs), tuple(targets)))
    with (
        warnings.catch_warnings(), torch.enable_grad(), _grouped_experts(module), _converted_before(),
        stood_in(module, given) as taken,
    ):  # fmt: skip
        warnings.simplefilter("ignore")
        try:
            with redirect_stderr(io.StringIO()):  # where it prints half a graph when it fails
                program = torch.export.export(step, taken, dynamic_shapes=dynamic_shapes, strict=False)
            found = program if whole else _functional(program)
        except InputError:
            raise
        except Exception as error:  # whatever the module's own code raises
            place = place_of_frames(traceback.extract_tb(error.__traceback__))
            raise InputError(
                f"{type(module).__name__}: torch.export cannot follow it: {_first_lines(error)}{place}{_advice(error)}"
            ) from error
    if unchecked:
        warnings.warn(
            f"{type(module).__name__}: the planned step leaves out checks of values, and does not raise where they "
            f"fail: {', '.join(unchecked)}",
            stacklevel=2,
        )
    return Exported(found, returned[-1])


def _functional(program: ExportedProgram) -> ExportedProgram:
    """Without operators that write into their operands, that no translator knows, or whose results nothing reads but
    checks (`assert lengths.max().item() <= n`)."""
    found = program.run_decompositions(_decompositions())
    found.graph.eliminate_dead_code(lambda node: node.op in ("placeholder", "output"))
    return found


def _apart(given: Any) -> Any:
    """With a tensor of its own in every place: torch.export takes one that is given twice, as token ids that are labels
    as well, for one input, and has all read the last; and it fails on a tensor beside a view of it."""
    seen: set[int] = set()

    def own(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        place = x.untyped_storage()._cdata
        if place not in seen:
            seen.add(place)
            return x
        return x.detach().clone()

    return pytree.tree_map(own, given)


def _decompositions() -> dict[Any, Any]:
    """Those of operators that no translator knows."""
    return {op: how for op, how in torch.export.default_decompositions().items() if not is_known(op)}


@contextmanager
def _grouped_experts(module: nn.Module) -> Iterator[None]:
    """Hugging Face's experts as products whose weight every token chooses: how they compute their sums is a setting."""
    config = getattr(module, "config", None)
    given = getattr(config, "_experts_implementation", None)
    choose = getattr(module, "set_experts_implementation", None)
    if given is None or choose is None:
        yield
        return
    choose("batched_mm")
    try:
        yield
    finally:
        choose(given)


@contextmanager
def _converted_before() -> Iterator[None]:
    """`self.router.to(x.dtype)` in a module's call, for which torch would exchange parameters, changes nothing where
    they have that type and device."""
    apply = nn.Module._apply

    def applied(self: nn.Module, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        held = [*self.parameters(recurse), *self.buffers(recurse)]
        with torch.no_grad():
            same = all((n.dtype, n.device) == (t.dtype, t.device) for t in held for n in (fn(t),))
        return self if same else apply(self, fn, recurse)

    setattr(nn.Module, "_apply", applied)  # noqa: B010  a method, for a while
    try:
        yield
    finally:
        setattr(nn.Module, "_apply", apply)  # noqa: B010


def _first_lines(error: Exception) -> str:
    """What an error says, without what torch adds for those who write operators."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    said = re.split(r"\s+(?:\(unhinted:|Caused by:)", " ".join(lines[:3]))[0]
    return f"{type(error).__name__}: {said[:600]}"


def _advice(error: Exception) -> str:
    """What helps, where the error tells: the flow depends on the values of tensors, of which errors of several kinds
    speak, or something is computed that torch.export does not see."""
    said = f"{type(error).__name__} {error}".lower()
    if "fake tensor in the exported program constant" in said:
        return (
            "\nWhat torch.export does not see must be written otherwise: .data (use .detach()), torch.autograd.grad, "
            "torch.vmap and the other transforms of torch.func"
        )
    if not any(word in said for word in _OF_VALUES):
        return ""
    return FLOW_ADVICE
