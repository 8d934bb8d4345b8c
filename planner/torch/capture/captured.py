"""A module's step as an ONNX model without weights, with what leads back from it to the module."""

from __future__ import annotations

import inspect
import json
import operator
import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Node
from torch.utils import _pytree as pytree

from planner.errors import InputError
from planner.frontends.facts.stated import ALIASES_KEY, FROZEN_KEY, LOSS_KEY, PARAMETERS_KEY
from planner.torch.capture.drawn import Drawn, made_of
from planner.torch.capture.exported import FLOW_ADVICE, Loss, exported_step
from planner.torch.capture.known import computed, once
from planner.torch.capture.names import argument_names, fixed_arguments, input_leaves, input_names, module_path
from planner.torch.capture.registry import Translator, translator
from planner.torch.capture.result import BufferUpdate, Capture, Fixed, plain_of
from planner.torch.capture.returned import Returned
from planner.torch.capture.unallocated import has_numbers
from planner.torch.capture.writer import Value, Writer

__all__ = ["NoTranslationError", "capture"]

_STEP = "module."
_OF_MEMORY = frozenset({"layout", "device", "pin_memory", "memory_format", "non_blocking", "copy"})
_OF_TYPE = _OF_MEMORY | {"dtype"}


class NoTranslationError(InputError):
    """An `operator` of ATen that no translator knows, or not with these arguments."""

    def __init__(self, message: str, operator: str) -> None:
        super().__init__(message)
        self.operator = operator


def capture(
    module: nn.Module,
    inputs: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    targets: Sequence[Any] = (),
    loss: Loss | None = None,
    fixed: Collection[str] = (),
) -> Capture:
    """The step `loss(module(*inputs, **kwargs), *targets)` as a graph; without a loss, what the module returns as one.

    No weight is read: the module may lie on the meta device.  Arguments that `fixed` names have the same values in
    every step; what depends on them alone is computed once, and the flow of the module may depend on them.

    Raises:
        InputError: torch.export cannot follow the module, an operator has no translation, or what is fixed is no
            argument, or has no numbers.
    """
    kwargs = dict(kwargs or {})
    given = tuple(inputs), kwargs, tuple(targets)
    held = fixed_arguments(module, given, fixed)
    numbers = {f.leaf: f.numbers for f in held}
    program, returned = exported_step(module, inputs, kwargs, targets, loss, fixed=numbers)
    return _Walk(module, program, given, held, returned).captured()


class _Walk:
    def __init__(
        self, module: nn.Module, program: ExportedProgram, given: Any, fixed: tuple[Fixed, ...], returned: Returned
    ) -> None:
        self.fixed, self.returned = fixed, returned
        self.module, self.program, self.given = module, program, given
        self.writer = Writer(type(module).__name__)
        self.structure = pytree.tree_structure(given)
        self.fed, self.leaves = input_names(module, given), input_leaves(module, given)
        self.values: dict[Node, Any] = {}
        self.buffers: dict[str, Value] = {}
        self.parameters: dict[str, bool] = {}
        self.kept: list[str] = []
        self.counts: list[Value] = []
        self.inputs: list[str] = []
        self.bases: dict[tuple[str, str], int] = {}
        self.first = {id(p): name for name, p in reversed(list(module.named_parameters(remove_duplicate=False)))}
        self.shared: dict[str, Value] = {}

    def captured(self) -> Capture:
        signature = self.program.graph_signature
        mutated = set(signature.buffers_to_mutate.values())
        specs = {s.arg.name: s for s in signature.input_specs if hasattr(s.arg, "name")}
        for node in self.program.graph.nodes:
            if node.op == "placeholder":
                self.values[node] = self._source(node, specs.get(node.name), mutated)
            elif node.op == "call_function":
                self._operator(node)
            elif node.op == "get_attr":
                self.values[node] = self._held(getattr(self.program.graph_module, node.target))
        return self._finished()

    # Sources

    def _source(self, node: Node, spec: Any, mutated: set[str]) -> Any:
        if spec is None or "val" not in node.meta or not isinstance(node.meta["val"], Tensor):
            return node.meta.get("val")
        if spec.kind is InputKind.TOKEN:  # of the order of checks, which no plan runs
            return None
        like = node.meta["val"]
        if spec.kind is InputKind.USER_INPUT:
            name, leaf = next(self.fed), next(self.leaves)
            numbers = next((f.numbers for f in self.fixed if f.leaf == leaf), None)
            if numbers is not None:
                return self._held(numbers)
            self.inputs.append(name)
            return self.writer.fed(name, like)
        if spec.kind is InputKind.PARAMETER:
            self._check_owner(spec.target, "parameter")
            return self._parameter(spec.target.removeprefix(_STEP), like)
        if spec.kind is InputKind.BUFFER and not spec.target.startswith(_STEP):
            held = self.program.state_dict.get(spec.target, self.program.constants.get(spec.target))
            if spec.target in mutated or not has_numbers(held):
                self._check_owner(spec.target, "buffer without numbers, or one that changes,")
            return self._held(held)  # the weights of classes, which are what they are
        if spec.kind is InputKind.BUFFER:
            name = spec.target.removeprefix(_STEP)
            held = self.program.state_dict.get(spec.target, self.program.constants.get(spec.target))
            if spec.target not in mutated and has_numbers(held):
                if node.users:
                    self.kept.append(name)
                return self._held(held)
            count = spec.target in mutated and _only_counts(node, like)
            value = Value(name, tuple(like.shape), like.dtype) if count else self.writer.parameter(name, like)
            self.counts += [value] if count else []
            self.buffers[spec.target] = value
            return value
        return self._held(self.program.constants[spec.target])

    def _check_owner(self, target: str, what: str) -> None:
        """InputError for what belongs to the loss: what a step trains and changes belongs to the module."""
        if not target.startswith(_STEP):
            raise InputError(
                f"{type(self.module).__name__}: the loss has a {what} of its own, {target.partition('.')[2]}; make the "
                "loss a part of the module, which is then planned without a loss"
            )

    def _parameter(self, path: str, like: Tensor) -> Value:
        """One value for a parameter of several names, under the first that the module has for it."""
        held = self.module.get_parameter(path)
        name = self.first[id(held)]
        if name not in self.shared:
            self.parameters[name] = held.requires_grad
            self.shared[name] = self.writer.parameter(name, like)
        return self.shared[name]

    def _held(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return Value("", tuple(value.shape), value.dtype, once(value.detach().cpu()))

    # Operators

    def _operator(self, node: Node) -> None:
        if node.target is operator.getitem:
            source, index = node.args
            self.values[node] = self.values[source][index]
            return
        found = node.meta.get("val")
        results = tuple(r for r in (found if isinstance(found, tuple | list) else (found,)) if isinstance(r, Tensor))
        name = str(node.target).removeprefix("aten.")
        if not results:  # a number, of which nothing may be made
            self.values[node] = None
            return
        unwritten = next((n for n in node.all_input_nodes if self.values[n] is None), None)
        if unwritten is not None and unwritten.meta.get("val") is not None:
            if not isinstance(unwritten.meta["val"], Tensor):
                raise self._of_values(node)
            raise self._lacking(node, f" of {unwritten.name}, a result that no translation writes,")
        arguments, keywords = self._mapped(node.args), self._mapped(node.kwargs)
        if self._drawn(node, name, arguments, results):
            return
        known = self._known(node, arguments, keywords, results)
        if known is not None:
            whole = [Value("", tuple(r.shape), k.dtype, k) for r, k in zip(results, known, strict=True)]
            self.values[node] = whole if isinstance(found, tuple | list) else whole[0]
            return
        write = translator(node.target, complex_numbers=_is_complex(arguments, keywords, results))
        w = self.writer
        w.path, w.results, w.operator = module_path(node), results, name
        w.base = self._base(w.path, name.partition(".")[0].strip("_"))
        if self._counts(node, arguments):
            self.values[node] = Value("", (), torch.int64)
            return
        if write is None:
            raise self._lacking(node)
        said = {k: v for k, v in keywords.items() if k not in _OF_MEMORY}
        self._check(node, write, arguments, said)
        try:
            self.values[node] = write(w, *arguments, **said)
        except InputError as error:
            raise NoTranslationError(str(error), str(node.target)) from error

    def _drawn(self, node: Node, name: str, arguments: Any, results: tuple[Tensor, ...]) -> bool:
        """Whether it draws numbers, or reads such that nothing has read yet.

        NoTranslationError where they are more than ones with a probability.
        """
        if name == "rand.default":
            self.values[node] = Drawn(tuple(results[0].shape), results[0].dtype)
            return True
        source = next((n for n in node.all_input_nodes if isinstance(self.values[n], Drawn)), None)
        if source is None:
            return False
        w = self.writer
        w.path, w.results, w.operator = module_path(node), results, name
        w.base = self._base(w.path, name.partition(".")[0].strip("_"))
        # Of numbers that are read twice, two dropouts would draw apart.
        found = made_of(w, name, arguments) if len(source.users) == 1 and not node.kwargs.keys() - _OF_TYPE else None
        if found is None:
            raise self._lacking(self._drawn_by(source))
        self.values[node] = found
        return True

    def _drawn_by(self, node: Node) -> Node:
        """The operator that drew the numbers that this one hands on."""
        while not str(node.target).startswith("aten.rand"):
            node = next(n for n in node.all_input_nodes if isinstance(self.values[n], Drawn))
        return node

    def _check(self, node: Node, write: Translator, arguments: Any, keywords: Any) -> None:
        """NoTranslationError where the translator takes other arguments."""
        try:
            inspect.signature(write).bind(self.writer, *arguments, **keywords)
        except TypeError:
            given = (*map(str, node.args), *(f"{k}={v}" for k, v in node.kwargs.items()))
            raise self._lacking(node, f" with the arguments ({', '.join(given)})") from None

    def _lacking(self, node: Node, said: str = "") -> NoTranslationError:
        path = module_path(node)
        advice = "register one with planner.torch.capture.aten"
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            advice = "draw what is random outside of the step, and give it to the module as an input"
        return NoTranslationError(
            f"{type(self.module).__name__}{f', module {path}' if path else ''}: the operator {node.target}{said} has "
            f"no translation into the planner's operators; {advice}",
            str(node.target),
        )

    def _of_values(self, node: Node) -> NoTranslationError:
        path = module_path(node)
        return NoTranslationError(
            f"{type(self.module).__name__}{f', module {path}' if path else ''}: the operator {node.target} has an "
            f"argument that is a number read from a tensor while the step runs{FLOW_ADVICE}",
            str(node.target),
        )

    def _known(
        self, node: Node, arguments: Any, keywords: Any, results: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...] | None:
        """The results where all operands are known."""
        leaves = pytree.tree_leaves((arguments, keywords))
        values = [v for v in leaves if isinstance(v, Value)]
        if not results or any(v.held is None for v in values):
            return None

        def whole(v: Any) -> Any:
            """On the CPU, wherever the module lies."""
            if isinstance(v, Value):
                return v.whole()
            return torch.device("cpu") if isinstance(v, torch.device) else v

        operands, named = pytree.tree_map(whole, (list(arguments), dict(keywords)))
        return computed(node.target, operands, named, results)

    def _counts(self, node: Node, arguments: Any) -> bool:
        """Whether it adds to a buffer that counts steps, which is done outside of the graph."""
        first = arguments[0] if arguments else None
        return isinstance(first, Value) and any(first is c for c in self.counts)

    def _mapped(self, arguments: Any) -> Any:
        return torch.fx.node.map_arg(arguments, lambda n: self.values[n])

    def _base(self, path: str, name: str) -> str:
        count = self.bases[path, name] = self.bases.get((path, name), -1) + 1
        return f"{path}/{name}{f'_{count}' if count else ''}".lstrip("/")

    # Results

    def _finished(self) -> Capture:
        w, signature = self.writer, self.program.graph_signature
        outputs: list[Value] = []
        updates: list[BufferUpdate] = []
        nodes = {n.name: n for n in self.program.graph.nodes}
        for spec in signature.output_specs:
            node = nodes.get(getattr(spec.arg, "name", ""))
            if node is None:
                continue
            if spec.kind is OutputKind.USER_OUTPUT:
                outputs.append(self.values[node])
            elif spec.kind is OutputKind.BUFFER_MUTATION:
                assert spec.target is not None
                updates.append(self._update(spec.target, node))
            elif spec.kind is OutputKind.PARAMETER_MUTATION:
                raise InputError(
                    f"{type(self.module).__name__}: the step writes into the parameter "
                    f"{str(spec.target).removeprefix(_STEP)}; write into it behind the step, under torch.no_grad(), or "
                    "make it a buffer"
                )
            elif spec.kind is OutputKind.USER_INPUT_MUTATION:
                warnings.warn(
                    f"{type(self.module).__name__}: the module writes into its input {spec.target}, which stays as it "
                    "is under a plan: a batch that is given again is the batch that it was",
                    stacklevel=2,
                )
        if not outputs:
            raise InputError(f"{type(self.module).__name__}: the step returns no tensor; expected a loss")
        w.base = "output"
        results = [self._result(v) for v in outputs]
        first = results[0]
        loss = first.name if first.elements == 1 and first.rank <= 1 and first.dtype.is_floating_point else None
        if loss is not None:
            results = results[:1]
        changed = [Value(u.output, self.buffers[_STEP + u.buffer].shape, self.buffers[_STEP + u.buffer].dtype)
                   for u in updates if u.output]  # fmt: skip
        used = {i for n in w.nodes for i in n.input}
        trained = [name for name, follows in self.parameters.items() if follows]
        frozen = [name for name, follows in self.parameters.items() if not follows and name in used]
        facts = {PARAMETERS_KEY: json.dumps(trained)}
        if frozen:
            facts[FROZEN_KEY] = json.dumps(frozen)
        if loss is not None:
            facts[LOSS_KEY] = loss
        aliases = {
            n: self.first[id(p)]
            for n, p in self.module.named_parameters(remove_duplicate=False)
            if n not in self.parameters
        }
        if aliases:
            facts[ALIASES_KEY] = json.dumps(aliases)
        w.stored = [t for t in w.stored if t.name in used or t.name in self.parameters]
        return Capture(
            w.model([*results, *changed], facts),
            type(self.module).__name__,
            tuple(self.inputs),
            tuple(trained),
            tuple(frozen),
            aliases,
            tuple(updates),
            w.constants,
            self.module.training,
            loss,
            self.structure,
            positional=len(self.given[0]),
            returned=self.returned,
            mode_matters=bool(updates) or any(n.op_type == "Dropout" for n in w.nodes),
            kept=tuple(self.kept),
            plain=plain_of(pytree.tree_leaves(self.given)),
            fixed=self.fixed,
            arguments=argument_names(self.module),
        )

    def _result(self, v: Value) -> Value:
        """An output of its own: what is fed, stored or known is handed on by an operator."""
        if v.name and any(v.name in n.output for n in self.writer.nodes):
            return v
        return self.writer.op("Identity", v, shape=v.shape)

    def _update(self, target: str, node: Node) -> BufferUpdate:
        name, value = target.removeprefix(_STEP), self.values[node]
        if not value.name and value.held is None:
            added = next(a for a in node.args[1:] if isinstance(a, int))
            return BufferUpdate(name, added=added)
        made = next((n for n in self.writer.nodes if value.name in n.output), None)
        momentum = 0.0
        if made is not None and made.op_type == "BatchNormalization":
            momentum = 1.0 - next(a.f for a in made.attribute if a.name == "momentum")
        return BufferUpdate(name, value.name, counted=self.writer.counted.get(value.name, ""), momentum=momentum)


def _only_counts(node: Node, like: Tensor) -> bool:
    """Whether a buffer is a whole number that a step adds one to, and reads nowhere."""
    if like.is_floating_point() or like.ndim:
        return False
    return all(
        getattr(u.target, "__name__", "") == "add.Tensor" and u.args[0] is node and isinstance(u.args[1], int)
        and all(v.op == "output" for v in u.users)
        for u in node.users
    )  # fmt: skip


def _is_complex(arguments: Any, keywords: Any, results: tuple[Tensor, ...]) -> bool:
    """Whether an operand or a result is."""
    values = (v for v in pytree.tree_leaves((arguments, keywords)) if isinstance(v, Value))
    return any(v.dtype.is_complex for v in (*values, *results))
