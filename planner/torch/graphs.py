"""`planner.capture`: a PyTorch module as a model that every function of `planner` takes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.errors import OptionError
from planner.library.model import Model
from planner.requests.model import ModelSource

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["capture"]


def capture(
    module: nn.Module,
    *inputs: Any,
    targets: Tensor | tuple[Any, ...] = (),
    loss: Callable[..., Tensor] | None = None,
    name: str | None = None,
    **named: Any,
) -> Model:
    """The graph of one step of a PyTorch module, by the capture of `planner.torch.plan`; needs the extra `torch`.

    No weight is read: the module may lie on the meta device.  The parameters of the graph have the module's names.

    Args:
        module: a torch.nn.Module, in the mode in which it is trained or serves.
        inputs: positional arguments of its call, with the global batch.
        targets: what `loss` reads after the module's result: a tensor, or a tuple.
        loss: called with the module's result and the targets; None where the module returns its own loss, or the graph
            is to be planned for inference.
        name: the name of the model in its plans; default: the module's class.
        named: keyword arguments of the module's call.

    Raises:
        InputError: torch.export cannot follow the module, or an operator has no translation.
        OptionError: the module is none of PyTorch.
    """
    from planner.runtime.extra import require_torch

    require_torch("planner.capture")
    from torch import Tensor, nn

    from planner.torch.capture import capture as captured

    if not isinstance(module, nn.Module):
        raise OptionError(f"module: expected a torch.nn.Module, found {type(module).__name__}")
    if name is not None and (not name or Path(name).name != name):
        raise OptionError(f"name: expected one that a file could have, found {name!r:.60}")
    wanted = (targets,) if isinstance(targets, Tensor) else tuple(targets)
    step = captured(module, inputs, named, wanted, loss)
    return Model(ModelSource(Path(f"{name or step.name}.onnx"), step.model))
