"""Smaller dimensions for graphs that are too large to execute."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from onnx import TensorProto, numpy_helper

from planner.frontends import import_bytes
from planner.ir import DeviceMesh, Graph, Layout
from planner.rules.strategy import REPLICATE, AxisRole
from planner.verify.data import random_tensors
from planner.verify.reference import run_ops, run_whole
from planner.verify.shrink import LEAST_WEIGHT, Shrinker

from .frontends_models import external, node, serialised, value


def layers() -> Graph:
    """Two products over a hidden layer of 768 = 3·256, and a table of 640 rows on top."""
    weights = [external("up", [256, 768]), external("down", [768, 256]), external("head", [256, 640])]
    nodes = [
        node("MatMul", "x up", "a"), node("Relu", "a", "b"), node("MatMul", "b down", "c"), node("Add", "x c", "d"),
        node("MatMul", "d head", "y"),
    ]  # fmt: skip
    return import_bytes(serialised(nodes, [value("x", [32, 64, 256])], ["y"], weights))


def roles(graph: Graph, **split: str) -> dict[str, tuple[AxisRole, ...]]:
    return {op.name: (AxisRole("split", split[op.name]),) if op.name in split else (REPLICATE,) for op in graph.ops}


def last(shrinker: Shrinker, graph: Graph) -> Graph:
    for smaller, _ in shrinker.steps(graph):
        graph = smaller
    return graph


def test_every_long_dimension_becomes_small() -> None:
    graph = layers()
    small = last(Shrinker(DeviceMesh.of(2), roles(graph), {}), graph)
    shapes = {t: small.tensors[t].shape for t in ("x", "up", "down", "head")}
    assert shapes == {"x": (1, 16, 16), "up": (16, 64), "down": (64, 16), "head": (16, 64)}
    values = random_tensors(small, 0)
    np.testing.assert_allclose(run_ops(small, values)["y"], run_whole(small, values)["y"], rtol=1e-4, atol=1e-5)


def test_a_vocabulary_keeps_the_words_that_the_graph_names() -> None:
    """A decoder begins with a word of its own, which is stored in the graph."""
    nodes = [
        node("Concat", "begin ids", "words", axis=1), node("Gather", "table words", "found"),
        node("MatMul", "found head", "y"),
    ]  # fmt: skip
    weights = [external("table", [1024, 64]), external("head", [64, 8])]
    for word, least in ((40, LEAST_WEIGHT), (200, 256), (1023, 1024)):
        begin = numpy_helper.from_array(np.full((4, 1), word, np.int64), "begin")
        graph = import_bytes(serialised(nodes, [value("ids", [4, 7], TensorProto.INT64)], ["y"], [*weights, begin]))
        small = last(Shrinker(DeviceMesh.of(2), roles(graph), {}), graph)
        assert (small.tensors["table"].shape or ())[0] == least
        run_whole(small, random_tensors(small, 0))


def test_what_a_strategy_splits_still_divides() -> None:
    graph = layers()
    small = last(Shrinker(DeviceMesh.of(3), roles(graph, a="n", b="d2", c="k"), {}), graph)
    hidden = (small.tensors["up"].shape or ())[1]
    assert hidden % 3 == 0
    assert LEAST_WEIGHT <= hidden < 768


def test_what_a_tensor_is_cut_into_on_its_way_still_divides() -> None:
    """No operator splits the batch, but between two of them the hidden layer lies in sixths."""
    graph = layers()
    mesh = DeviceMesh.of(2, 3)
    sixths = Layout(((), (), ("x", "y")))
    whole = {op.name: (REPLICATE, REPLICATE) for op in graph.ops}
    small = last(Shrinker(mesh, whole, {"b": frozenset({Layout.replicated(3), sixths})}), graph)
    hidden = (small.tensors["b"].shape or ())[2]
    assert hidden % 6 == 0
    assert LEAST_WEIGHT <= hidden < 768


def test_each_step_is_smaller_and_says_what() -> None:
    graph = layers()
    sizes = [math.inf]
    for smaller, note in Shrinker(DeviceMesh.of(2), roles(graph), {}).steps(graph):
        sizes.append(sum(t.elements for t in smaller.tensors.values()))
        assert "dimension" in note
    assert sizes == sorted(sizes, reverse=True)
    assert len(sizes) == len(set(sizes))


def test_an_image_is_never_used_up() -> None:
    """It was: the mean of no pixels is not a number."""
    weights = [external("w", [4, 3, 3, 3])]
    pools = [node("AveragePool", f"p{k}", f"p{k + 1}", kernel_shape=[2, 2], strides=[2, 2]) for k in range(5)]
    nodes = [node("Conv", "x w", "p0", pads=[1, 1, 1, 1]), *pools, node("GlobalAveragePool", "p5", "y")]
    graph = import_bytes(serialised(nodes, [value("x", [4, 3, 224, 224])], ["y"], weights))
    small = last(Shrinker(DeviceMesh.of(2), roles(graph), {}), graph)
    assert (small.tensors["x"].shape or ())[2] < 224
    rows, columns = (small.tensors["x"].shape or ())[2:]
    assert min(rows, columns) >= 32
    assert np.isfinite(run_ops(small, random_tensors(small, 0))["y"]).all()


def test_operands_that_no_longer_fit_each_other_are_no_smaller_graph() -> None:
    """A dimension became smaller, and the scale that a normalisation applies along it did not."""
    weights = [external("w", [256, 768]), external("scale", [768])]
    nodes = [node("MatMul", "x w", "a"), node("LayerNormalization", "a scale", "y", axis=-1)]
    graph = import_bytes(serialised(nodes, [value("x", [4, 64, 256])], ["y"], weights))
    torn = {
        name: dataclasses.replace(graph.tensors[name], shape=shape)
        for name, shape in {"w": (256, 64), "a": (4, 64, 64), "y": (4, 64, 64)}.items()
    }
    smaller = dataclasses.replace(graph, tensors={**graph.tensors, **torn})
    shrinker = Shrinker(DeviceMesh.of(2), roles(graph), {})
    assert shrinker._admits(graph, graph)
    assert not shrinker._admits(smaller, graph)
