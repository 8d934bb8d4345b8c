"""A step by PyTorch's own ONNX exporter: symbolic dimensions, any operator set, and whatever operators it knows."""

from __future__ import annotations

import contextlib
import io
import json
import re
import warnings
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import onnx
import torch
from torch import nn
from torch.export import Dim
from torch.utils import _pytree as pytree

from planner.errors import InputError, UsageError
from planner.frontends.facts.stated import ALIASES_KEY, FROZEN_KEY, LOSS_KEY, PARAMETERS_KEY
from planner.torch.capture.exported import Loss, exported_step
from planner.torch.capture.names import input_names
from planner.torch.capture.unallocated import has_numbers

__all__ = ["exported_by_torch", "is_installed"]

_STEP = "module."
_NO_DATA = "weights-left-out"


def is_installed() -> bool:
    """Whether the exporter has what it is made of."""
    return find_spec("onnxscript") is not None


def exported_by_torch(
    module: nn.Module,
    inputs: Sequence[Any],
    kwargs: Mapping[str, Any],
    targets: Sequence[Any],
    loss: Loss | None,
    *,
    opset: int | None = None,
    dynamic: Mapping[tuple[str, int], str] | None = None,
) -> bytes:
    """The serialised ModelProto, with the module's names of parameters and inputs; `dynamic`: (input, axis) → name.

    Raises:
        UsageError: onnxscript is missing, or a dimension is of no input.
        InputError: torch.export or the exporter cannot follow the module, where the operator is named, or the exporter
            wrote something else than it was given.
    """
    if not is_installed():
        raise UsageError(
            "PyTorch's exporter needs onnxscript, which is not installed; install the extra: "
            "pip install '.[export]' in the repository"
        )
    given = (tuple(inputs), dict(kwargs), tuple(targets))
    names = list(input_names(module, given))
    shapes = _dynamic_shapes(given, names, dynamic or {})
    program, _ = exported_step(module, inputs, kwargs, targets, loss, dynamic_shapes=shapes, whole=True)
    chosen: dict[str, Any] = {} if opset is None else {"opset_version": opset}
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            exported = torch.onnx.export(program, (), dynamo=True, optimize=False, verbose=False, **chosen)
    except Exception as error:  # whatever the exporter raises
        raise InputError(
            f"{type(module).__name__}: torch.onnx.export cannot write it: {_cause(error)}; plan it from Python with "
            "planner.torch.plan, whose operators planner.torch.capture.aten adds to, or replace the operator"
        ) from error
    assert exported is not None
    model = _without_data(exported.model)
    _check(model, module, names, opset)
    _rename(model, module, names)
    _name_dimensions(model, dynamic or {})
    _state(model, module)
    return bytes(model.SerializeToString(deterministic=True))


def _check(model: onnx.ModelProto, module: nn.Module, inputs: Sequence[str], opset: int | None) -> None:
    """InputError where the exporter gave up half-way, of which it says nothing but in its log."""
    written = next((o.version for o in model.opset_import if not o.domain), None)
    if opset is not None and written != opset:
        raise InputError(
            f"--opset {opset}: torch.onnx.export cannot write {type(module).__name__} in it and wrote operator set "
            f"{written} instead; give --opset {written} or a later one"
        )
    fed = [v.name for v in model.graph.input]
    if len(fed) != len(inputs):
        raise InputError(
            f"{type(module).__name__}: torch.onnx.export wrote {len(fed)} inputs ({', '.join(fed)[:200]}) where the "
            f"module reads {len(inputs)} ({', '.join(inputs)[:200]}); try --exporter planner, or another --opset"
        )


def _dynamic_shapes(given: Any, names: Sequence[str], dynamic: Mapping[tuple[str, int], str]) -> Any:
    """As torch.export takes them: a tree like the arguments, with what is symbolic of each tensor."""
    if not dynamic:
        return None
    unknown = sorted({n for n, _ in dynamic} - set(names))
    if unknown:
        raise UsageError(f"--dynamic {unknown[0]}: there is no such input; there are {', '.join(names)}")
    dims = {name: Dim(name) for name in dynamic.values()}
    left = iter(names)

    def of(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return None
        name = next(left)
        found = {axis: dims[d] for (n, axis), d in dynamic.items() if n == name}
        far = [axis for axis in found if axis >= leaf.ndim]
        if far:
            raise UsageError(f"--dynamic {name}.{far[0]}: the input has {leaf.ndim} dimensions; they count from 0")
        return found

    return pytree.tree_map(of, given)


def _without_data(model: Any) -> onnx.ModelProto:
    """The exporter's model as a ModelProto; what has no numbers points to a file that need not exist."""
    import onnx_ir as ir

    for name, value in model.graph.initializers.items():
        held = value.const_value
        raw = getattr(held, "raw", None)
        if isinstance(raw, nn.Parameter) or (isinstance(raw, torch.Tensor) and not has_numbers(raw)):
            value.const_value = ir.ExternalTensor(
                _NO_DATA, offset=None, length=None, dtype=held.dtype, shape=held.shape, name=name
            )
    found: onnx.ModelProto = ir.to_proto(model)
    return found


def _rename(model: onnx.ModelProto, module: nn.Module, inputs: Sequence[str]) -> None:
    """Names of the module for its parameters, the first of those that are tied, and of its arguments for inputs."""
    graph = model.graph
    taken = {o for n in graph.node for o in n.output}
    every = dict(module.named_parameters(remove_duplicate=False))
    first = {id(p): n for n, p in reversed(every.items())}
    own = {t.name: t.name.removeprefix(_STEP) for t in graph.initializer if t.name.startswith(_STEP)}
    names = {old: first[id(every[new])] if new in every else new for old, new in own.items()}
    names |= dict(zip((v.name for v in graph.input), inputs, strict=True))
    names = {old: new for old, new in names.items() if old != new and new not in taken}
    for stored in (graph.initializer, graph.input, graph.value_info, graph.output):
        for v in stored:
            v.name = names.get(v.name, v.name)
    for node in graph.node:
        for i, name in enumerate(node.input):
            node.input[i] = names.get(name, name)
        for entry in list(node.metadata_props):
            if entry.key == "namespace":
                # Without the wrapper of module and loss, whose path is empty.
                links = [
                    link.replace(f"{_STEP}", "", 1) if link.startswith(_STEP) else link
                    for link in entry.value.split("/")
                    if not link.startswith("module: ") and not link.startswith(": ")
                ]
                entry.value = "/".join(links)
            else:
                node.metadata_props.remove(entry)  # the module's source, which nothing reads


def _name_dimensions(model: onnx.ModelProto, dynamic: Mapping[tuple[str, int], str]) -> None:
    """The names that were asked for, in place of those that torch.export has made up."""
    dims = {v.name: v.type.tensor_type.shape.dim for v in model.graph.input}
    names = {dims[n][axis].dim_param: name for (n, axis), name in dynamic.items() if dims[n][axis].dim_param}
    for v in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        for d in v.type.tensor_type.shape.dim:
            if d.dim_param:
                d.dim_param = re.sub(r"\w+", lambda m: names.get(m[0], m[0]), d.dim_param)


def _state(model: onnx.ModelProto, module: nn.Module) -> None:
    """What a module knows and a graph does not: its parameters, those that are tied, and that its first output is its
    loss."""
    stored = {t.name for t in model.graph.initializer}
    own = dict(module.named_parameters(remove_duplicate=False))
    first = {id(p): n for n, p in own.items() if n in stored}
    facts = {PARAMETERS_KEY: json.dumps([n for n, p in own.items() if n in stored and p.requires_grad])}
    frozen = [n for n, p in own.items() if n in stored and not p.requires_grad]
    if frozen:
        facts[FROZEN_KEY] = json.dumps(frozen)
    aliases = {n: first[id(p)] for n, p in own.items() if n not in stored and id(p) in first}
    if aliases:
        facts[ALIASES_KEY] = json.dumps(aliases)
    output = model.graph.output[0]
    dims = output.type.tensor_type.shape.dim
    if all(d.dim_value == 1 for d in dims) and output.type.tensor_type.elem_type in (
        onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16, onnx.TensorProto.DOUBLE,
    ):  # fmt: skip
        facts[LOSS_KEY] = output.name
    for key, value in facts.items():
        model.metadata_props.add(key=key, value=value)


def _cause(error: BaseException) -> str:
    """The last of the errors that led to this one, in a line."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"
