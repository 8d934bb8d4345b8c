"""bytes → ModelProto that keeps ONNX's rules, as far as they matter for planning.

Checked here: the message parses, operator sets are known, names are defined once and before use (nodes in
another order are sorted), nothing depends on itself, calls of local functions do not recurse or explode.
The rest is left to `onnx.checker`, which sees the model without its external weights (they are declared,
not stored, and must not be looked for) and without operators it has never heard of.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx
import onnx.inliner
from google.protobuf.message import DecodeError

from planner.errors import InputError
from planner.frontends.file.checker import check_rest, first_line, nodes_of, subgraphs
from planner.terminal import quoted, unfit

__all__ = ["MAX_NODES", "MAX_RANK", "captured", "parse"]

MAX_NODES = 200_000  # after inlining; the largest known training graphs have under 50,000
MAX_DEPTH = 32  # of control flow inside control flow
MAX_TENSORS = 1_000_000  # that the graph declares or stores
MAX_FUNCTIONS = 10_000
MAX_OPSETS = 1000
MAX_VERSION = 2**31 - 1  # of an operator set; onnx looks them up as numbers of 32 bits
MAX_OPERANDS = 20_000  # of one operator, and as many results
MAX_ATTRIBUTES = 1000  # of one operator
MAX_ENTRIES = 1_000_000  # of one attribute; tables of tree ensembles have the longest
MAX_RANK = 32  # every dimension may be split, over each axis of a mesh
MAX_NAME = 4096  # characters of a name; names stand in plans, pages and file names


def parse(data: bytes, name: str = "model") -> onnx.ModelProto:
    """A checked model with its local functions inlined and its nodes in topological order.

    Raises InputError naming what is wrong.
    """
    if not data:
        raise InputError(f"{name}: the file is empty; expected a serialised ONNX model.")
    try:
        model = onnx.ModelProto.FromString(data)
    except DecodeError:
        raise InputError(
            f"{name}: not an ONNX model, or a truncated one: the {len(data)} bytes do not parse as a ModelProto. "
            "Give the path of an ONNX model."
        ) from None
    model.DiscardUnknownFields()
    if not model.HasField("graph") or not (model.graph.node or model.graph.output):
        raise InputError(f"{name}: the file parses but holds no graph; expected a serialised ONNX ModelProto.")
    if not model.opset_import:
        model.opset_import.add(domain="", version=1)  # what IR versions below 3 mean by saying nothing
    _check_counts(model, name)
    _check_names(model, name)
    _check_opsets(model, name)
    if model.functions:
        model = _inline(model, name)
    _check_count(name, "nodes", model.graph.node, MAX_NODES)
    _check_inputs(model, name)
    _sort(model.graph, name)
    check_rest(model, name)
    return model


def captured(graphs: Sequence[onnx.GraphProto], depth: int = 0) -> list[str]:
    """Names that sub-graphs read from outside, in order of first use."""
    if depth > MAX_DEPTH:
        raise InputError(f"control flow is nested more than {MAX_DEPTH} deep.")
    outer: dict[str, None] = {}
    for g in graphs:
        own = (
            {i.name for i in g.input} | {i.name for i in g.initializer} | {i.values.name for i in g.sparse_initializer}
        )
        for node in g.node:
            reads = [*node.input, *captured(list(subgraphs(node)), depth + 1)]
            outer.update((r, None) for r in reads if r and r not in own)
            own.update(node.output)
        outer.update((o.name, None) for o in g.output if o.name not in own)
    return list(outer)


def _check_counts(model: onnx.ModelProto, name: str) -> None:
    """Before anything is looked at one by one: a message of empty messages has half as many as it has bytes."""
    graph = model.graph
    _check_count(name, "operator sets", model.opset_import, MAX_OPSETS)
    _check_count(name, "local functions", model.functions, MAX_FUNCTIONS)
    _check_count(name, "nodes", graph.node, MAX_NODES)
    for what, tensors in (
        ("inputs", graph.input),
        ("outputs", graph.output),
        ("initializers", graph.initializer),
        ("sparse initializers", graph.sparse_initializer),
        ("entries of value_info", graph.value_info),
    ):
        _check_count(name, what, tensors, MAX_TENSORS)
    for v in (*graph.input, *graph.output):
        _check_count(name, f"dimensions of {quoted(v.name)}", v.type.tensor_type.shape.dim, MAX_RANK)
    for f in model.functions:
        _check_count(name, f"nodes in the local function {quoted(f.name)}", f.node, MAX_NODES)
    for node in (*nodes_of(graph), *(n for f in model.functions for top in f.node for n in _with_nested(top))):
        if not _keeps_counts(node):
            _check_counts_of(node, name)


def _keeps_counts(node: onnx.NodeProto) -> bool:
    """Of nearly every node; what to say of one that does not takes longer to make up than to find out."""
    return (
        len(node.input) <= MAX_OPERANDS
        and len(node.output) <= MAX_OPERANDS
        and len(node.attribute) <= MAX_ATTRIBUTES
        and (
            node.ByteSize() <= MAX_ENTRIES  # each of which takes a byte
            or not any(len(entries) > MAX_ENTRIES for a in node.attribute for entries in _entries(a))
        )
    )


def _check_counts_of(node: onnx.NodeProto, name: str) -> None:
    owner = f"of the {quoted(node.op_type)} {quoted(node.name)}"
    _check_count(name, f"operands {owner}", node.input, MAX_OPERANDS)
    _check_count(name, f"results {owner}", node.output, MAX_OPERANDS)
    _check_count(name, f"attributes {owner}", node.attribute, MAX_ATTRIBUTES)
    for a in node.attribute:
        for entries in _entries(a):
            _check_count(name, f"entries in the attribute {quoted(a.name)} {owner}", entries, MAX_ENTRIES)


def _entries(a: onnx.AttributeProto) -> tuple[Sequence[object], ...]:
    return a.ints, a.floats, a.strings, a.tensors, a.graphs


def _check_count(name: str, what: str, found: Sequence[object], most: int) -> None:
    if len(found) > most:
        raise InputError(f"{name}: {len(found)} {what}; at most {most} are accepted.")


def _check_names(model: onnx.ModelProto, name: str) -> None:
    """Of operators and tensors, their types and attributes: what can be shown, and is not too long."""
    if _all_plain(model):  # of nearly every model; which name is wrong takes longer to find
        return
    seen: set[str | bytes] = set()  # most stand at both ends of what they name
    for what, given in _names(model.graph, model.functions):
        if given in seen:
            continue
        seen.add(given)
        if isinstance(given, bytes):  # what protobuf hands out for what is not UTF-8
            raise InputError(f"{name}: the name of {what}, {given[:80]!r}, is not UTF-8; rename it.")
        if len(given) > MAX_NAME:
            reason = f"has {len(given)} characters; at most {MAX_NAME} are accepted"
            raise InputError(f"{name}: the name of {what}, {quoted(given)}, {reason}.")
        wrong = unfit(given)
        if wrong is not None:
            raise InputError(
                f"{name}: the name of {what}, {quoted(given)}, holds {wrong!a}, which no name may have; rename it."
            )


def _all_plain(model: onnx.ModelProto) -> bool:
    """Whether no name is wrong, of all that `_names` has."""
    graph, found = model.graph, set[str | bytes]()
    for node in (*nodes_of(graph), *(n for f in model.functions for top in f.node for n in _with_nested(top))):
        found.update(node.input, node.output, (node.name, node.op_type, node.domain))
        found.update([a.name for a in node.attribute])
        found.update([entry.value for entry in node.metadata_props if entry.key == "namespace"])
        for g in subgraphs(node):
            found.update(t.name for t in g.initializer)
    found.update(name for _, name in _names_beside_nodes(graph, model.functions))
    strings = [n for n in found if isinstance(n, str)]
    return (
        len(strings) == len(found) and max(map(len, strings), default=0) <= MAX_NAME and unfit("".join(strings)) is None
    )


def _names(graph: onnx.GraphProto, functions: Sequence[onnx.FunctionProto]) -> Iterator[tuple[str, str | bytes]]:
    yield from _names_beside_nodes(graph, functions)
    for node in (n for f in functions for top in f.node for n in _with_nested(top)):
        yield from _names_of(node)
    for node in nodes_of(graph):
        yield from _names_of(node)
        for t in (t for g in subgraphs(node) for t in g.initializer):
            yield "an initializer", t.name


def _names_beside_nodes(
    graph: onnx.GraphProto, functions: Sequence[onnx.FunctionProto]
) -> Iterator[tuple[str, str | bytes]]:
    for f in functions:
        yield "a local function", f.name
        yield "a domain", f.domain
        for n in (*f.input, *f.output, *f.attribute):
            yield "an operand", n
    for i in graph.initializer:
        yield "an initializer", i.name
    for v in (*graph.input, *graph.output, *graph.value_info):
        yield "a tensor", v.name
        if v.type.WhichOneof("value") == "tensor_type":
            for d in v.type.tensor_type.shape.dim:
                if d.dim_param:
                    yield "a dimension", d.dim_param


def _names_of(node: onnx.NodeProto) -> Iterator[tuple[str, str | bytes]]:
    yield "an operator", node.name
    yield "an operator type", node.op_type
    yield "a domain", node.domain
    for t in node.input:
        yield "a tensor", t
    for t in node.output:
        yield "a tensor", t
    for a in node.attribute:
        yield "an attribute", a.name
    for entry in node.metadata_props:
        if entry.key == "namespace":
            yield "a module", entry.value


def _check_opsets(model: onnx.ModelProto, name: str) -> None:
    newest = onnx.defs.onnx_opset_version()
    for entry in model.opset_import:
        own = entry.domain in ("", "ai.onnx")
        if not int(own) <= entry.version <= MAX_VERSION:
            raise InputError(
                f"{name}: version {entry.version} of the operator set {quoted(entry.domain or 'ai.onnx')}; expected "
                f"{int(own)} to {MAX_VERSION}. Export the model again."
            )
        if own and entry.version > newest:
            raise InputError(f"{name}: operator set {entry.version}; this version of onnx knows up to {newest}.")


def _check_inputs(model: onnx.ModelProto, name: str) -> None:
    if model.ir_version >= 4:
        return
    declared = {i.name for i in model.graph.input}
    for i in model.graph.initializer:
        if i.name not in declared:
            raise InputError(
                f"{name}: initializer '{i.name}' is not among the graph's inputs, which IR version {model.ir_version} "
                "demands (4 and later do not). Add it to the inputs or raise ir_version to 4."
            )


def _inline(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    bodies = {(f.domain, f.name): f for f in model.functions}
    size: dict[tuple[str, str], int] = {}

    def expanded(nodes: Iterator[onnx.NodeProto], path: tuple[tuple[str, str], ...]) -> int:
        total = 0
        for node in nodes:
            key = (node.domain, node.op_type)
            total += 1
            if key in bodies:
                if key in path:
                    raise InputError(f"{name}: local function '{key[1]}' calls itself; functions must not recurse.")
                if key not in size:
                    if len(path) > MAX_DEPTH:
                        raise InputError(f"{name}: local functions are nested more than {MAX_DEPTH} deep.")
                    body = (n for top in bodies[key].node for n in _with_nested(top))
                    size[key] = expanded(body, (*path, key))
                total += size[key]
            if total > MAX_NODES:
                raise InputError(f"{name}: its functions expand to more than {MAX_NODES} nodes.")
        return total

    for key, function in bodies.items():
        if key not in size:
            size[key] = expanded((n for top in function.node for n in _with_nested(top)), (key,))
    expanded(nodes_of(model.graph), ())
    try:
        return onnx.inliner.inline_local_functions(model)
    except (RuntimeError, ValueError) as error:
        raise InputError(f"{name}: its local functions cannot be inlined: {first_line(error)}") from None


def _with_nested(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    yield node
    for g in subgraphs(node):
        yield from nodes_of(g)


def _sort(graph: onnx.GraphProto, name: str) -> None:
    """Topological order, keeping the file's where it is one.  InputError on undefined, double or cyclic names."""
    known = {i.name for i in graph.input} | {i.name for i in graph.initializer}
    known |= {i.values.name for i in graph.sparse_initializer}
    producer: dict[str, int] = {}
    for i, node in enumerate(graph.node):
        for o in node.output:
            if o and (o in producer or o in known):
                raise InputError(f"{name}: '{o}' is defined twice; every tensor must have one source.")
            if o:
                producer[o] = i
    needs: list[list[int]] = []
    for i, node in enumerate(graph.node):
        sources = []
        for t in [*node.input, *captured(list(subgraphs(node)))]:
            if t in producer:
                sources.append(producer[t])
            elif t and t not in known:
                raise InputError(
                    f"{name}: {node.op_type} node '{node.name or (node.output[0] if node.output else i)}' reads '{t}', "
                    "which is no input, initializer or result of the graph."
                )
        needs.append(sources)
    for o in graph.output:
        if o.name not in producer and o.name not in known:
            raise InputError(f"{name}: graph output '{o.name}' is computed by no node.")
    if all(s < i for i, sources in enumerate(needs) for s in sources):
        return
    order = _order(needs)
    if len(order) < len(needs):
        node = graph.node[next(i for i in range(len(needs)) if i not in set(order))]
        raise InputError(f"{name}: the graph is cyclic: {node.op_type} '{node.output[0]}' depends on its own result.")
    nodes = [graph.node[i] for i in order]
    copies = [onnx.NodeProto.FromString(n.SerializeToString()) for n in nodes]
    del graph.node[:]
    graph.node.extend(copies)


def _order(needs: Sequence[Sequence[int]]) -> list[int]:
    """Kahn's algorithm; shorter than `needs` when there is a cycle."""
    waiting = [len(set(sources)) for sources in needs]
    readers: list[list[int]] = [[] for _ in needs]
    for i, sources in enumerate(needs):
        for s in set(sources):
            readers[s].append(i)
    ready = [i for i, n in enumerate(waiting) if n == 0]
    for i in ready:
        for r in readers[i]:
            waiting[r] -= 1
            if waiting[r] == 0:
                ready.append(r)
    return ready
