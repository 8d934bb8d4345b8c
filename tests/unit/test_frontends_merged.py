"""Transposes between a Reshape that merges dimensions and one that takes them apart."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.clock import Configuration
from planner.cost_models import load_profile
from planner.evaluate import program_of_configuration
from planner.frontends import import_bytes
from planner.frontends.resized.batch import of_batch
from planner.verify.check import verify_program

from .exported_attention import exported
from .frontends_models import constant, imported, node, value


def graph_of(whole, merged, order, result, outputs=("z",)):
    """x → Reshape → Transpose → Reshape → z."""
    nodes = [
        node("Reshape", "x merged", "flat"),
        node("Transpose", "flat", "turned", perm=list(order)),
        node("Reshape", "turned result", "z"),
    ]
    shapes = [constant(name, np.array(shape, np.int64)) for name, shape in (("merged", merged), ("result", result))]
    return imported(nodes, [value("x", list(whole))], list(outputs), shapes)


@st.composite
def merges(draw, smallest=1):
    """Dimensions, how they are merged, the order they are brought into, and what they are taken apart into there."""
    groups = draw(st.lists(st.lists(st.integers(smallest, 4), min_size=1, max_size=3), min_size=1, max_size=3))
    order = draw(st.permutations(range(len(groups))))
    whole = [d for g in groups for d in g]
    return whole, [int(np.prod(g)) for g in groups], order, [d for m in order for d in groups[m]]


@given(merges(), st.data())
def test_what_stands_for_three_operators_computes_the_same(case, data):
    whole, merged, order, apart = case
    result = data.draw(st.one_of(st.just(apart), st.permutations(apart)))
    graph = graph_of(whole, merged, order, result)
    if len(graph.ops) == 1:
        x = np.arange(np.prod(whole)).reshape(whole)
        z = x.reshape(merged).transpose(order).reshape(result)
        np.testing.assert_array_equal(x.transpose(graph.ops[0].attributes["perm"]), z)


@given(merges(smallest=2).filter(lambda case: len(case[1]) < len(case[0])))
def test_dimensions_that_are_taken_apart_as_they_were_merged_are_transposed_unmerged(case):
    assert [op.type for op in graph_of(*case).ops] == ["Transpose"]


@pytest.mark.parametrize("read", ["flat", "turned"])
def test_what_others_read_stays(read):
    graph = graph_of([2, 3, 4, 5], [6, 4, 5], [0, 2, 1], [2, 3, 5, 4], outputs=("z", read))
    assert [op.type for op in graph.ops] == ["Reshape", "Transpose", "Reshape"]


def test_dimensions_that_are_taken_apart_otherwise_stay_merged():
    graph = graph_of([2, 3, 4, 5], [6, 4, 5], [0, 2, 1], [3, 2, 5, 4])
    assert [op.type for op in graph.ops] == ["Reshape", "Transpose", "Reshape"]


def test_the_order_holds_for_any_number_of_samples():
    graph = import_bytes(exported(1, 2, merged=True), name="exported")
    assert [op.attributes["perm"] for op in graph.ops if op.name.endswith("keys")] == [(0, 1, 3, 2)] * 2
    assert of_batch(graph, 6).tensors["block0.keys"].shape[0] == 6


def test_tensor_parallel_ranks_of_several_samples_do_not_gather_keys():
    """Each has its heads of its samples, which are no block of samples and heads as one dimension."""
    c = Configuration(dp=2, tp=2, micro_batch=2, zero=1)
    program = program_of_configuration(
        import_bytes(exported(4, 4, merged=True), name="exported"), c, load_profile("h100")
    )
    assert not [i for i in program.redistributions() if ".k" in i.tensor and not i.gradient]
    assert verify_program(program).ok
