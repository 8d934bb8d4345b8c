"""Laws of the import, over generated models."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

from planner.frontends import import_bytes
from planner.frontends.file.export import to_model
from planner.frontends.resized.rebind import rebind
from planner.frontends.resized.reshape_factors import reshaped

from .frontends_models import constant, node, serialised, transformer, value

UNARY = ("Relu", "Neg", "Abs", "Identity", "Sign")
BINARY = ("Add", "Mul", "Sub", "Max")


@st.composite
def models(draw):
    """A random graph over one input, scalars and shape arithmetic, of rank-2 tensors with equal shape."""
    known = ["x", "k"]
    nodes = [node("Shape", "x", "s"), node("ConstantOfShape", "s", "z")]
    known.append("z")
    for i in range(draw(st.integers(1, 12))):
        if draw(st.booleans()):
            nodes.append(node(draw(st.sampled_from(UNARY)), draw(st.sampled_from(known)), f"t{i}"))
        else:
            a, b = draw(st.sampled_from(known)), draw(st.sampled_from(known))
            nodes.append(node(draw(st.sampled_from(BINARY)), f"{a} {b}", f"t{i}"))
        known.append(f"t{i}")
    nodes.append(node("Add", f"x {known[-1]}", "y"))
    return serialised(nodes, [value("x", ["rows", 3])], ["y"], [constant("k", 2.0, "float32")])


@settings(max_examples=60, deadline=None)
@given(models(), st.integers(1, 4))
def test_folding_preserves_outputs(data, rows):
    graph = import_bytes(data, bind={"rows": rows})
    x = np.arange(rows * 3, dtype=np.float32).reshape(rows, 3) - 4
    expected = ReferenceEvaluator(onnx.ModelProto.FromString(data)).run(None, {"x": x})[0]
    model = to_model(graph)
    feeds = {i.name: x for i in model.graph.input}
    np.testing.assert_array_equal(ReferenceEvaluator(model).run(None, feeds)[0], expected)
    assert graph.tensors["y"].shape == expected.shape


@settings(max_examples=30, deadline=None)
@given(models(), st.integers(1, 4))
def test_digest_ignores_names(data, rows):
    model = onnx.ModelProto.FromString(data)

    def renamed(name):
        return name if name in ("x", "y", "") else f"other/{name}"

    for n in model.graph.node:
        n.name = f"node {n.output[0]}"
        n.input[:] = [renamed(t) for t in n.input]
        n.output[:] = [renamed(t) for t in n.output]
    for t in model.graph.initializer:
        t.name = renamed(t.name)
    other = import_bytes(model.SerializeToString(), bind={"rows": rows})
    assert other.digest == import_bytes(data, bind={"rows": rows}).digest


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 4), st.integers(2, 6), st.integers(1, 5), st.integers(1, 7))
def test_rebinding_twice_is_rebinding_once(batch, sequence, between, final):
    graph = import_bytes(transformer(1, batch=batch, sequence=sequence))

    def to(g, n):
        return rebind(g, {(t, 0): n for t in g.inputs})

    shapes = [
        {n: t.shape for n, t in g.tensors.items() if "@" not in n}
        for g in (to(to(graph, between), final), to(graph, final))
    ]
    assert {n: s for n, s in shapes[0].items() if n in shapes[1]} == {
        n: s for n, s in shapes[1].items() if n in shapes[0]
    }


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=1, max_size=4), st.data())
def test_reshaping_preserves_elements(dims, data):
    """Merging neighbours and taking them apart again gives the dimensions there were."""
    cuts = [
        0,
        *sorted(data.draw(st.sets(st.integers(1, len(dims) - 1)) if len(dims) > 1 else st.just(set()))),
        len(dims),
    ]
    merged_old = [int(np.prod([o for o, _ in dims[a:b]])) for a, b in itertools.pairwise(cuts)]
    merged = reshaped([((o, n),) for o, n in dims], merged_old)
    assert merged is not None
    total = int(np.prod([n for f in merged for _, n in f]))
    assert total == int(np.prod([n for _, n in dims]))
    if all(o > 1 for o, _ in dims):
        apart = reshaped(merged, [o for o, _ in dims])
        assert apart is not None
        assert [int(np.prod([n for _, n in f])) for f in apart] == [n for _, n in dims]
