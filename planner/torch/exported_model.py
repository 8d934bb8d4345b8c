"""`planner.torch.load_exported`: a plan that was made of a module's ONNX export, for the module.

Everything is matched by name: a parameter of the graph is the module's parameter of that name, or of that name less the
path of a wrapper that was exported around it.  The order of parameters, and shapes alone, decide nothing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from onnx import numpy_helper
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.utils import _pytree as pytree

from planner.errors import InputError
from planner.frontends.file.beside import with_data
from planner.ir import Graph, Role
from planner.library.model import Model, model_of
from planner.library.plan import Plan, load_plan
from planner.requests.values import plan_file
from planner.torch.capture import BufferUpdate
from planner.torch.capture.returned import Returned
from planner.torch.capture.writer import as_array
from planner.torch.planning import ModulePlan
from planner.verify.model_file import ModelFile

__all__ = ["ExportedStep", "load_exported"]

_AGAIN = (
    "export the module again with torch.onnx.export(…, dynamo=True, optimize=False), which keeps names, or plan it "
    "with planner.torch.plan"
)


@dataclass(frozen=True)
class ExportedStep:
    """A step of a module as its ONNX export has it; a `planner.torch.step.Step`.

    named   parameter of the graph → the module's name of the parameter or buffer
    """

    model: bytes = field(repr=False)
    name: str
    inputs: tuple[str, ...]
    parameters: tuple[str, ...]
    frozen: tuple[str, ...]
    aliases: Mapping[str, str]
    constants: Mapping[str, Tensor] = field(repr=False)
    named: Mapping[str, str] = field(repr=False)
    mode_matters: bool = False
    training: bool = True
    returned: Returned = field(default_factory=Returned)
    updates: tuple[BufferUpdate, ...] = ()
    kept: tuple[str, ...] = ()

    def fed(self, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> list[Tensor]:
        """Keywords are inputs by name; positional tensors are the others in the graph's order."""
        given = {k: v for k, v in keywords.items() if v is not None}
        unknown = sorted(given.keys() - set(self.inputs))
        if unknown:
            raise InputError(
                f"{self.name}: the exported step has no input {unknown[0]!r}; it reads {', '.join(self.inputs)}: call "
                "the module with these"
            )
        listed = [x for x in pytree.tree_leaves(arguments) if isinstance(x, Tensor)]
        left = [n for n in self.inputs if n not in given]
        if len(listed) != len(left):
            raise InputError(
                f"{self.name}: the exported step reads {len(self.inputs)} tensors ({', '.join(self.inputs)}), and is "
                f"called with {len(listed) + len(given)}; give it all, in this order or by name"
            )
        given |= dict(zip(left, listed, strict=True))
        return [given[n] for n in self.inputs]

    def paths(self, graph: Graph) -> dict[str, str]:
        """Parameter of the graph → the module's name of the parameter or buffer."""
        return dict(self.named)


def load_exported(
    path: str | os.PathLike[str], module: nn.Module, *, model: str | os.PathLike[str] | None = None
) -> ModulePlan:
    """A plan that was searched for the ONNX export of a module, or of a wrapper that returns its loss.

    The parallel module is called with the inputs of the graph in their order, or by their names, and returns the loss;
    an object with `loss` in it where the graph has other outputs, too, as those of Hugging Face's models have.

    Args:
        path: plan.json, or its folder.
        module: what was exported, with its parameters; or the module inside of it whose names end alike.
        model: the ONNX file; default: the one beside the plan.

    Raises:
        InputError: the plan is for another model, the graph has no loss, or a name or shape of the graph's parameters
            is not the module's.
    """
    plan = load_plan(path)
    found = plan.model if model is None else model_of(model)
    if found is None:
        raise InputError(
            f"plan {os.fspath(path)}: no model.onnx lies beside it; give the file that was planned: model=…"
        )
    about, kind = plan.document.model, type(module).__name__
    graph = found.source.load(bind=about.bind, batch=about.batch)
    if graph.digest != about.digest:
        raise InputError(
            f"plan {os.fspath(path)}: it is for another model than {found.name} (digest {about.digest[:12]}, the "
            f"model's is {graph.digest[:12]}); give the file that was planned: model=…"
        )
    if plan.document.schedule.mode != "training" or graph.loss is None:
        raise InputError(
            f"plan {os.fspath(path)}: the graph of {about.name} ends in no loss, or is not planned for training; "
            f"export a module that returns its loss, or plan {kind} with planner.torch.plan(…, loss=…)"
        )
    names = _Names(module, graph)
    named = names.named()
    _check_modes(module, graph)
    data = found.source.data
    data = Path(found.source.path).read_bytes() if data is None else data
    stored = _Stored(ModelFile(data), plan_file(os.fspath(path)).parent if model is None else found.source.path.parent)
    first = {id(names.held[n]): n for n in reversed(named.values())}
    trained = {n: p for n, p in module.named_parameters(remove_duplicate=False) if p.requires_grad}
    step = ExportedStep(
        data,
        kind,
        tuple(graph.inputs),
        tuple(n for n in named.values() if n in trained),
        tuple(named[t.name] for t in graph.parameters if t.frozen and t.name in named),
        {n: first[id(p)] for n, p in _parameters(module).items() if id(p) in first and first[id(p)] != n},
        _constants(names, stored),
        named,
        mode_matters=any(op.type == "Dropout" for op in graph.ops),
        training=module.training,
        returned=Returned("loss" if len(graph.outputs) > 1 else None),
    )
    return ModulePlan(Plan(plan.text, Model(found.source, dict(about.bind), _batch(plan))), step)


def _batch(plan: Plan) -> int | None:
    requested = plan.document.search.request
    return None if requested is None else requested.batch


def _parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    return dict(module.named_parameters(remove_duplicate=False))


def _held(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers under all of their names."""
    return {**dict(module.named_buffers(remove_duplicate=False)), **_parameters(module)}


class _Names:
    """What the parameters of a graph are called in a module."""

    def __init__(self, module: nn.Module, graph: Graph) -> None:
        self.module, self.graph, self.kind = module, graph, type(module).__name__
        self.held = _held(module)
        self.wrapper = self._wrapper()

    def _wrapper(self) -> str:
        """The path, with a dot behind it, of the module in what was exported: that by which most names are found."""
        found: dict[str, int] = {}
        for t in self.graph.parameters:
            parts = t.name.split(".")
            for k in range(len(parts)):
                value = self.held.get(".".join(parts[k:]))
                if value is not None and tuple(value.shape) == t.shape:
                    path = "".join(f"{p}." for p in parts[:k])
                    found[path] = found.get(path, 0) + 1
        return max(found, key=lambda path: (found[path], -len(path)), default="")

    def local(self, name: str) -> str:
        """A name of the graph as the module would have it; empty where it is outside of the module."""
        return name.removeprefix(self.wrapper) if name.startswith(self.wrapper) else ""

    def named(self) -> dict[str, str]:
        """InputError where one of the graph's is not the module's, or the module trains another one."""
        found = {t.name: self._named(t.name, t.shape or ()) for t in self.graph.parameters}
        owners: dict[int, str] = {}
        for name, path in found.items():
            other = owners.setdefault(id(self.held[path]), name)
            if other != name:
                raise InputError(
                    f"{self.kind}: {other!r} and {name!r} are two parameters of the model that was planned and one of "
                    f"the module; {_AGAIN}"
                )
        for path, p in self.module.named_parameters():
            if p.requires_grad and id(p) not in owners:
                raise InputError(
                    f"{self.kind}: the module trains {path} {list(p.shape)}, and the model that was planned has no "
                    f"parameter of this name: it was folded into others, or the step does not read it; {_AGAIN}; what "
                    "is not trained may be frozen with requires_grad_(False)"
                )
        return found

    def _named(self, name: str, shape: tuple[int, ...]) -> str:
        # Equal weights that an exporter stored as one have the names of their modules again, where these are known.
        for stored in (name, self.graph.origins.get(name, name)):
            path = self.local(stored)
            value = self.held.get(path)
            if value is None:
                continue
            if tuple(value.shape) != shape:
                turned = ", which is that transposed" if tuple(value.shape) == shape[::-1] else ""
                raise InputError(
                    f"{self.kind}: parameter {path} has shape {list(value.shape)}, and {name!r} of the model that was "
                    f"planned {list(shape)}{turned}; give the module that was "
                    f"exported, or {_AGAIN}"
                )
            return path
        readers = ", ".join(op.name for op, _ in self.graph.consumers.get(name, ())[:2])
        raise InputError(
            f"{self.kind}: the model that was planned trains {name!r} of shape {list(shape)} (read by {readers}), and "
            "the module has no parameter or buffer of this name; exporters rename weights that they transpose or fold: "
            f"{_AGAIN}"
        )


def _check_modes(module: nn.Module, graph: Graph) -> None:
    """InputError where the module's training mode does what its export does not, as far as modules show it."""
    kind = type(module).__name__
    drops = any(op.type == "Dropout" for op in graph.ops)
    for path, inner in module.named_modules():
        if isinstance(inner, _BatchNorm) and inner.training and inner.track_running_stats:
            raise InputError(
                f"{kind}: {path} keeps running statistics, and an export does not say how a step changes them; plan "
                "the module with planner.torch.plan, or put that module in evaluation mode"
            )
        if isinstance(inner, _DropoutNd) and inner.training and inner.p > 0 and not drops:
            raise InputError(
                f"{kind}: {path} drops out with p={inner.p}, and the model that was planned does not: it was exported "
                "in evaluation mode; plan the module with planner.torch.plan, or set p to 0"
            )


@dataclass(frozen=True)
class _Stored:
    """Numbers that a model's file has, or another file in its `folder`."""

    file: ModelFile
    folder: Path

    def value(self, name: str) -> np.ndarray[Any, Any] | None:
        """None where there are none."""
        found = self.file.value(name)
        t = next((t for t in self.file.model.graph.initializer if t.name == name), None)
        if found is not None or t is None:
            return found
        held = with_data(t, self.folder)
        return None if held is None else numpy_helper.to_array(held)


def _constants(names: _Names, stored: _Stored) -> dict[str, Tensor]:
    """Values of constants that the graph does not hold: of the module's buffers, or of the file.

    InputError where there are none, or the graph was made with others than the module has now.
    """
    graph, found = names.graph, {}
    for t in graph.tensors.values():
        if t.role is not Role.CONSTANT or t.value is not None or t.name in graph.producers:
            continue
        own = names.held.get(names.local(t.name))
        if own is not None and tuple(own.shape) == t.shape and not own.is_meta:
            found[t.name] = own.detach()
            continue
        value = stored.value(graph.origins.get(t.name, t.name))
        if value is None:
            raise InputError(
                f"{names.kind}: the module has no buffer {t.name!r} of shape {list(t.shape or ())}, and the model's "
                "file no numbers of it; give the file that was planned, with its data: model=…"
            )
        found[t.name] = _tensor(value)
    ours = found.keys() | {t.name for t in graph.parameters}
    for path, own in names.held.items():
        value = None if names.wrapper + path in ours or own.is_meta else stored.value(names.wrapper + path)
        if value is not None and not np.array_equal(as_array(own), value):
            raise InputError(f"{names.kind}: {path} has other values than when it was exported; {_AGAIN}")
    return found


def _tensor(value: np.ndarray[Any, Any]) -> Tensor:
    if value.dtype.name == "bfloat16":
        return torch.from_numpy(value.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(np.array(value))
