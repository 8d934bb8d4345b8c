"""Constraints on a graph: every pin with the one operator or tensor that it bears on, checked before any mesh is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from planner.errors import InputError
from planner.ir import DeviceMesh, Graph, Op
from planner.planning.constraints.batch import Batch, follow_batch, leading
from planner.planning.constraints.select import Selector, counted
from planner.planning.constraints.values import Constraints, Counts, Degrees, LayoutPin, OperatorPin, Rest, StrategyPin
from planner.rules.rule import Dims, Rule
from planner.rules.strategy import AxisRole
from planner.work.activity import fixed_operators

__all__ = ["Kind", "Pins", "Restriction", "resolve"]

Kind = Literal["operator", "layout", "produced", "stored", "compute", "rest"]


@dataclass(frozen=True, slots=True)
class Restriction:
    """One pin as it bears on one operator (`operator`, `rest`), tensor (`layout`, `produced`) or parameter (`stored`,
    `compute`, `rest`).  `pin` is None for the rest, whose text is `text`."""

    kind: Kind
    name: str
    where: str
    pin: StrategyPin | LayoutPin | None
    text: str

    def __str__(self) -> str:
        return f"{self.where}: {self.object} {self.text}"

    @property
    def object_kind(self) -> Literal["operator", "tensor", "parameter"]:
        if self.kind in ("operator", "rest"):
            return "operator"
        return "tensor" if self.kind in ("layout", "produced") else "parameter"

    @property
    def object(self) -> str:
        return self.name if self.kind == "rest" else f"{self.object_kind} {self.name}"


@dataclass(frozen=True, eq=False)
class Pins:
    """`restrictions` in the order of the file; `rest_operators` and `rest_parameters` are under `constraints.rest`,
    which splits the `batch` (None where it plays no part); `taken` are axes that a pin gives to another index."""

    constraints: Constraints
    restrictions: tuple[Restriction, ...]
    rest_operators: frozenset[str]
    rest_parameters: frozenset[str]
    batch: Batch | None = None
    taken: frozenset[str] = frozenset()

    @property
    def rest(self) -> Rest:
        return self.constraints.rest

    def data_axes(self, mesh: DeviceMesh) -> tuple[str, ...]:
        """The axes over which the rest splits the batch: those named, else those that no pin gives to another index,
        else all."""
        if self.rest.axes is not None:
            return tuple(a for a in mesh.names if a in self.rest.axes)
        return tuple(a for a in mesh.names if a not in self.taken) or mesh.names

    def meshes(self, devices: int, given: tuple[DeviceMesh, ...] | None) -> tuple[DeviceMesh, ...]:
        """The meshes that the constraints name, those of them that are `given` where any are.  InputError where none
        has that many devices."""
        named = tuple(DeviceMesh.of(*sizes) for sizes in dict.fromkeys(self.constraints.meshes))
        left = tuple(m for m in named if (m.devices == devices if given is None else m in given))
        if not left:
            wanted = "" if given is None else f" of mesh {counted(map(str, given))}"
            raise InputError(
                f"constraints {self.constraints.source}: mesh {counted(map(str, named))}: none is made of the "
                f"{devices} devices{wanted}; change `mesh`, --mesh or --devices"
            )
        return left


def resolve(constraints: Constraints, graph: Graph, rules: Mapping[str, Rule]) -> Pins:
    """Finds what the pins name.  InputError where a pattern names nothing, or a pin cannot fit what it names."""
    fixed = fixed_operators(graph)
    select = Selector(graph, fixed)
    found: list[Restriction] = []
    pinned: set[str] = set()
    for pin in constraints.operators:
        for op in select.operators(pin):
            _check_operator(pin, op, graph, rules[op.name])
            found.append(Restriction("operator", op.name, pin.where, pin.strategy, f"({op.type}) {pin.strategy}"))
            pinned.add(op.name)
    touched: set[str] = set()
    for tensor in constraints.tensors:
        for name in select.tensors(tensor):
            touched.add(name)
            for kind, layout in (("layout", tensor.layout), ("produced", tensor.produced)):
                if layout is not None:
                    _check_rank(layout, name, graph, tensor.where)
                    found.append(Restriction(_kind(kind), name, tensor.where, layout, f"{kind} {layout}"))
            if tensor.produced is not None and name not in graph.producers:
                raise InputError(
                    f"constraints {tensor.where}: tensor {name} is an input: the loader delivers it as it is read; "
                    f"pin its `layout`"
                )
    if constraints.degrees is not None:
        found += _under(constraints.degrees, graph, rules, fixed)
    weights: set[str] = set()
    for parameter in constraints.parameters:
        for name in select.parameters(parameter):
            for kind, layout in (("stored", parameter.stored), ("compute", parameter.compute)):
                if layout is not None:
                    _check_rank(layout, name, graph, parameter.where)
                    found.append(Restriction(_kind(kind), name, parameter.where, layout, f"{kind} {layout}"))
                    (weights if kind == "stored" else touched).add(name)
    rest = constraints.rest
    if rest.kind == "search":
        return Pins(constraints, tuple(found), frozenset(), frozenset())
    near = {op.name for t in touched for op, _ in graph.consumers.get(t, ())}
    near |= {graph.producers[t].name for t in touched if t in graph.producers}
    operators = frozenset(op.name for op in graph.ops if op.name not in fixed | pinned | near)
    parameters = frozenset(
        t.name
        for t in graph.parameters
        if t.name not in weights | touched and all(op.name in operators for op, _ in graph.consumers.get(t.name, ()))
    )
    batch = None
    if rest.kind in ("data_parallel", "zero"):
        batch = follow_batch(graph, rules, dict(constraints.batch), constraints.source)
        if not batch.dims:
            raise InputError(
                f"constraints {rest.where}: rest: {rest}: no input has a first dimension above 1, so there is no batch "
                f"to split; name it with `batch: {{INPUT: DIMENSION}}`"
            )
    return Pins(constraints, tuple(found), operators, parameters, batch, _taken(found, batch))


def _under(degrees: Degrees, graph: Graph, rules: Mapping[str, Rule], fixed: frozenset[str]) -> Iterator[Restriction]:
    """Degrees of parallelism on meshes data x context x tensor: what carries the batch is split along it by x, and the
    first input, where its samples are sequences, along positions by y."""
    where = degrees.where
    for name, factors in follow_batch(graph, rules, {}, where).factors.items():
        if name not in fixed and len(factors) == 1:
            pin = StrategyPin(roles=(("x", AxisRole("split", factor=next(iter(factors)))),))
            yield Restriction("operator", name, where, pin, f"({graph.producers[name].type}) {pin} (dp)")
    first = next((n for n in leading(graph) if n in graph.consumers), None)
    if first is not None and graph.tensors[first].rank == 2:
        layout = LayoutPin((("x",), ("y",)))
        yield Restriction("layout", first, where, layout, f"layout {layout} (dp, cp)")


def _kind(text: str) -> Kind:
    kinds: dict[str, Kind] = {"layout": "layout", "produced": "produced", "stored": "stored", "compute": "compute"}
    return kinds[text]


def _taken(found: list[Restriction], batch: Batch | None) -> frozenset[str]:
    """Axes that a pin gives to an index that does not count samples.  How parameters are stored takes none."""
    taken: set[str] = set()
    if batch is None:
        return frozenset()
    for r in found:
        if isinstance(r.pin, StrategyPin):
            own = batch.factors.get(r.name, frozenset())
            taken.update(a for f, axes in r.pin.axes_by_factor.items() if f not in own for a in axes)
        elif isinstance(r.pin, LayoutPin) and r.kind != "stored":
            carried = batch.dims.get(r.name, frozenset())
            taken.update(a for d, axes in enumerate(r.pin.dims or ()) if d not in carried for a in axes)
            taken.update(a for a, _ in r.pin.partial)
    return frozenset(taken)


def _check_rank(layout: LayoutPin, name: str, graph: Graph, where: str) -> None:
    shape = graph.tensors[name].shape
    if layout.rank is not None and shape is not None and layout.rank != len(shape):
        raise InputError(
            f"constraints {where}: {name} has {len(shape)} dimensions ({'x'.join(map(str, shape)) or 'a scalar'}), "
            f"the layout {layout} has {layout.rank}; give one entry per dimension"
        )


def _check_operator(pin: OperatorPin, op: Op, graph: Graph, rule: Rule) -> None:
    """The factors that the pin names are the operator's; its tuples have an entry per dimension."""
    at = f"constraints {pin.where}: operator {op.name} ({op.type})"
    known = {*rule.factors, *rule.modes}
    named = {f for f, _ in pin.strategy.factors or ()} | {r.factor for _, r in pin.strategy.roles if r.kind == "split"}
    unknown = sorted(named - known)
    if unknown:
        if not known:
            raise InputError(f"{at} is never split, so it has no factor {counted(unknown)}; leave it out of the pin")
        sizes = ", ".join(f"{f} ({n})" for f, n in rule.factors.items())
        modes = f", and modes {', '.join(rule.modes)}" if rule.modes else ""
        more = "; narrow the pattern with `type`, where only some are meant" if not pin.types else ""
        raise InputError(
            f"{at}: has no factor {counted(unknown)}; its rule is {rule.text!r} with factors {sizes}{modes}{more}"
        )
    groups = [r.group for _, r in pin.strategy.roles if r.kind == "linear" and r.group >= len(rule.linear)]
    if groups:
        raise InputError(f"{at}: has no linear:{groups[0]}; it has {len(rule.linear)} such groups of operands")
    _check_tuples(at, "operand", pin.strategy.shard, op.inputs, rule.operands, graph)
    _check_tuples(at, "result", pin.strategy.shard_out, op.outputs, rule.results, graph)


def _check_tuples(
    at: str,
    side: str,
    tuples: tuple[Counts | None, ...],
    names: tuple[str, ...],
    placed: tuple[Dims | None, ...],
    graph: Graph,
) -> None:
    if len(tuples) > len(names):
        raise InputError(f"{at}: the pin has {len(tuples)} tuples, the operator {len(names)} {side}s; drop some")
    for i, counts in enumerate(tuples):
        if counts is None:
            continue
        name = names[i]
        shape = graph.tensors[name].shape if name else None
        if shape is None or len(counts) != len(shape):
            found = (
                "is absent" if not name else f"({name}) has {'an unknown number of' if shape is None else len(shape)}"
            )
            dimensions = " dimensions" if name else ""
            raise InputError(f"{at}: {side} {i} {found}{dimensions}, the pin's tuple {counts} has {len(counts)}")
        parts = placed[i] if i < len(placed) else None
        if parts is None and any(n > 1 for n in counts):
            raise InputError(f"{at}: {side} {i} ({name}) is never split, the pin's tuple is {counts}; give null for it")
