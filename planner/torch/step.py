"""What running a plan needs to know of the step that was planned, however the step was found.

`capture.Capture` is a step that torch.export followed, `exported_model.ExportedStep` one of an ONNX file.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from planner.ir import Graph
from planner.library.model import Model
from planner.requests.model import ModelSource
from planner.torch.capture import BufferUpdate
from planner.torch.capture.returned import Returned

__all__ = ["Step", "model_of_step"]


class Step(Protocol):
    """A step of a module, and its graph.

    model       the serialised ModelProto
    name        the module's class
    inputs      names of the graph's inputs, in the order in which `fed` has them
    parameters  trained parameters, as the module names them, and those that are `frozen`; `aliases`: further names of
                the same ones
    updates     buffers that the step changes
    constants   tensors of the graph that are known, by the graph's name
    kept        buffers whose numbers the graph has or is given once, as the module names them
    training    whether the module was in training mode; `mode_matters`: whether the step has operators to which that
                makes a difference
    returned    where the loss is in what the module returns
    """

    @property
    def model(self) -> bytes: ...
    @property
    def name(self) -> str: ...
    @property
    def inputs(self) -> tuple[str, ...]: ...
    @property
    def parameters(self) -> tuple[str, ...]: ...
    @property
    def frozen(self) -> tuple[str, ...]: ...
    @property
    def aliases(self) -> Mapping[str, str]: ...
    @property
    def updates(self) -> tuple[BufferUpdate, ...]: ...
    @property
    def constants(self) -> Mapping[str, Tensor]: ...
    @property
    def kept(self) -> tuple[str, ...]: ...
    @property
    def training(self) -> bool: ...
    @property
    def mode_matters(self) -> bool: ...
    @property
    def returned(self) -> Returned: ...

    def fed(self, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> list[Tensor]:
        """The tensors that a call of the parallel module reads, in the order of `inputs`.

        InputError where they are not those of the step.
        """

    def paths(self, graph: Graph) -> dict[str, str]:
        """Parameter of the graph → the module's name of the parameter or buffer."""


def model_of_step(step: Step) -> Model:
    """The step as `planner.search` reads a model."""
    return Model(ModelSource(Path(f"{step.name}.onnx"), step.model))
