"""Answers that Alpa's tests publish for language models, mixtures of experts and convolutions, under its own prices.

As in `test_known_answers`: all-reduces of the scalar loss are ours alone, penalties of replicated parameters Alpa's.
Where the plans differ, Alpa's is pinned and priced here, and what remains between prices is accounted for.
"""

from __future__ import annotations

import math

import pytest

from planner.ir import Graph
from planner.verify.check import verify_program
from tests.unit.alpa_graphs import add_one, dropout_between, expert_products, reshaped
from tests.unit.alpa_images import convolutions, depthwise
from tests.unit.alpa_language import masked_language_bert, mixture_layer, mixture_model, tied_embedding
from tests.unit.alpa_plans import (
    WHOLE,
    alternating_convolutions,
    experts_by_data,
    experts_over_one_axis,
    experts_split_state,
    masked_language_by_weights,
    tied_embedding_by_rows,
)
from tests.unit.known import INFERENCE, Found, Links, counts, inner_counts, paid, pinned, planned

BOTH = [(Links((4, 1)), 0), (Links((1, 4)), 1)]
both_orientations = pytest.mark.parametrize(("links", "axis"), BOTH, ids=["4x1", "1x4"])
SQUARE = Links((2, 2))
SLOW_FIRST = Links((2, 2), beta=(1, 0.1))


def parameter_bytes(graph: Graph, found: Found) -> list[int]:
    return [4 * math.prod(graph.tensors[n].shape or ()) for n in found.stored]


# Language models.


def test_tied_embedding_on_two_axes() -> None:
    """Alpa splits the batch over the first axis and the vocabulary over the second.  The published formula reduces a
    maximum and a sum per token inside the loss; we add the label's logit to the sum, since we compute the value of the
    loss, not its gradient alone.  With the vocabulary over both axes the gradient of the table needs no all-reduce.
    """
    graph = tied_embedding(8, 8, 1024, 8)
    theirs = tied_embedding_by_rows(graph, SQUARE)
    assert counts(theirs) == {"all_reduce": 3}
    logit, scalar = 64 * 4 / 2, SQUARE.cost("all_reduce", 0, 4)
    assert theirs.objective == pytest.approx(18693.05 + logit + scalar)
    assert paid(theirs, SQUARE) == pytest.approx(theirs.objective)

    ours = planned(graph, SQUARE)
    assert ours.stored == {"embed.weight": "[x.y,_]"}
    assert counts(ours) == {"all_reduce": 2}
    assert (ours.gap, ours.objective) == (0, pytest.approx(7308.444))
    assert paid(ours, SQUARE) == pytest.approx(ours.objective)
    assert verify_program(ours.program).ok


@both_orientations
def test_masked_language_bert_with_a_large_batch_is_data_parallel(links: Links, axis: int) -> None:
    """The published formula: an all-reduce of every parameter.  The mean over tokens that have a label needs their
    number, in the forward with the loss, in the backward once more."""
    graph = masked_language_bert(2, 32, 32, 16, 4, 128)
    found = planned(graph, links)
    assert set(found.stored.values()) <= WHOLE
    assert counts(found) == {"all_reduce": 1}
    published = sum(links.cost("all_reduce", axis, size) for size in parameter_bytes(graph, found))
    assert published == pytest.approx(57730.34)
    inside = links.cost("all_reduce", axis, 8)
    assert found.objective == pytest.approx(published + inside)


def test_masked_language_bert_on_two_axes() -> None:
    """Alpa's 13 all-reduces: 8 of the layers, embedding forward, head backward, weights, and 2 inside the loss.

    Its test lets products be repeated along an axis, which the head's transform is.  Our plan is not allowed that, and
    is cheaper by keeping the gradients of the weights off the slow axis.
    """
    graph = masked_language_bert(2, 4, 4, 512, 4, 4096)
    ours_links = Links((2, 2), alpha=(2, 2), beta=(1, 0.1))
    links = Links((2, 2), alpha=(2, 2), beta=(1, 0.1), recompute=True)
    theirs = masked_language_by_weights(graph, links)
    assert counts(theirs) == {"all_reduce": 11, "all_gather": 1}
    inside = theirs.program.strategies["softmaxcrossentropyloss"].inner
    assert sum(c.axes == ("y",) for c in inside) == 2
    assert theirs.objective == pytest.approx(17418906.070)
    assert paid(theirs, links) == pytest.approx(theirs.objective)

    ours = planned(graph, ours_links)
    assert (ours.gap, ours.objective) == (0, pytest.approx(211817.157))
    assert paid(ours, ours_links) == pytest.approx(ours.objective)
    assert verify_program(ours.program).ok


# Mixtures of experts.


@both_orientations
def test_layer_of_experts_is_expert_parallel(links: Links, axis: int) -> None:
    """Four all-to-alls, and data parallelism of all that is no expert: exactly the published cost."""
    found = planned(mixture_layer(64, 16, 64, 16, 32, 16), links)
    expert = f"[{'xy'[axis]},_,_]"
    assert {n: s for n, s in found.stored.items() if s not in WHOLE} == {"wi": expert, "wo": expert}
    assert counts(found) == {"all_to_all": 4, "all_reduce": 1}
    assert found.gap == 0
    assert found.objective == pytest.approx(893965.094 + links.cost("all_reduce", axis, 4))
    assert paid(found, links) == pytest.approx(found.objective)


@pytest.mark.slow
def test_layer_of_experts_on_two_axes() -> None:
    """Two all-reduces, of experts' gradients over one axis and of all others over both, as published."""
    graph = mixture_layer(64, 16, 64, 16, 32, 16)
    theirs = experts_over_one_axis(graph, SQUARE)
    assert counts(theirs) == {"all_to_all": 4, "all_reduce": 2}
    assert theirs.objective == pytest.approx(1418283.134)
    assert paid(theirs, SQUARE) == pytest.approx(theirs.objective)

    ours = planned(graph, SQUARE)
    assert ours.stored["wi"] == ours.stored["wo"] == "[x.y,_,_]"
    assert ours.gap < 1e-9
    assert ours.objective == pytest.approx(663586.741)
    assert paid(ours, SQUARE) == pytest.approx(ours.objective)
    assert verify_program(ours.program).ok


def language_model() -> Graph:
    return mixture_model(2, 64, 16, 64, 16, 32, 32, 16)


@both_orientations
def test_language_model_of_experts(links: Links, axis: int) -> None:
    """As published: four all-to-alls, and at most four all-reduces (one)."""
    found = planned(language_model(), links)
    expert = f"[{'xy'[axis]},_,_]"
    split = {n: s for n, s in found.stored.items() if s not in WHOLE}
    assert split == {"layer.0.wi": expert, "layer.0.wo": expert}
    assert counts(found) == {"all_to_all": 4, "all_reduce": 1}
    assert (found.gap, found.objective) == (0, pytest.approx(1213291.274))
    assert paid(found, links) == pytest.approx(found.objective)


def test_language_model_of_experts_by_data_parallelism_alone() -> None:
    links, graph = Links((1, 4)), language_model()
    found = experts_by_data(graph, links)
    assert counts(found) == {"all_reduce": 1}
    expected = sum(links.cost("all_reduce", 1, size) for size in parameter_bytes(graph, found))
    assert found.objective == pytest.approx(expected + links.cost("all_reduce", 1, 8))
    assert found.objective == pytest.approx(3572585.29)


def test_language_model_of_experts_with_split_optimizer_state() -> None:
    """One reduce-scatter and four all-to-alls, as published."""
    found = experts_split_state(language_model(), Links((1, 4)))
    assert counts(found) == {"all_to_all": 4, "reduce_scatter": 1, "all_gather": 1}
    assert found.objective == pytest.approx(1213319.640)


@pytest.mark.slow
def test_language_model_of_experts_on_two_axes() -> None:
    """Alpa's four all-to-alls.  Ours is proven best to a part in a thousand."""
    graph = language_model()
    theirs = experts_over_one_axis(graph, SQUARE)
    assert counts(theirs) == {"all_to_all": 4, "all_reduce": 2}
    assert theirs.objective == pytest.approx(1737638.021)
    assert paid(theirs, SQUARE) == pytest.approx(theirs.objective)
    ours = planned(graph, SQUARE)
    assert paid(ours, SQUARE) == pytest.approx(ours.objective)
    assert ours.objective <= 1162400
    assert ours.gap < 1e-3
    assert verify_program(ours.program).ok


# Convolutions.


@both_orientations
def test_convolutions_with_a_large_batch_are_data_parallel(links: Links, axis: int) -> None:
    """The published formula has the sums of each batch normalisation forward and backward apart, four all-reduces; ours
    travel backward in one.  Of its seven all-reduces six are those of batch normalisation, combined by direction."""
    graph = convolutions(3, 16, 16, 4)
    found = planned(graph, links)
    assert set(found.stored.values()) <= WHOLE
    assert counts(found) == {"all_reduce": 1}
    assert inner_counts(found) == {("BatchNormalization", "all_reduce"): 9}
    weights = sum(links.cost("all_reduce", axis, size) for size in parameter_bytes(graph, found))
    statistics = 2 * 6 * links.cost("all_reduce", axis, 16)
    assert weights + statistics == pytest.approx(3045.21)
    packed = 3 * 1.01  # offsets of the second all-reduce backward
    assert found.objective == pytest.approx(3045.21 - packed + links.cost("all_reduce", axis, 4))
    assert paid(found, links) == pytest.approx(found.objective)


@both_orientations
def test_wide_convolutions(links: Links, axis: int) -> None:
    """Alpa alternates output and input channels: 3 all-reduces.  Images shrink from layer to layer, so that scattering
    the result of one and splitting the input channels of the next ever after moves less."""
    graph = convolutions(4, 8, 16, 256)
    theirs = alternating_convolutions(graph, links, axis)
    assert counts(theirs) == {"all_reduce": 3}
    images = (8 * 256 * 16 * 4, 8 * 256 * 16 * 4, 8 * 256 * 4)
    assert theirs.objective == pytest.approx(sum(links.cost("all_reduce", axis, size) for size in images))
    assert theirs.objective == pytest.approx(405507.03)

    ours = planned(graph, links)
    assert counts(ours) == {"reduce_scatter": 2, "all_gather": 2, "all_reduce": 1}
    assert (ours.gap, ours.objective) == (0, pytest.approx(258053.212))
    assert paid(ours, links) == pytest.approx(ours.objective)
    assert verify_program(ours.program).ok


@both_orientations
def test_depthwise_convolution_stays_on_its_channels(links: Links, axis: int) -> None:
    found = planned(depthwise(4, 8, 256), links)
    name = "xy"[axis]
    split = {"Conv_0": f"[{name},_,_,_]", "Conv_1": f"[{name},_,_,_]", "Conv_2": f"[_,{name},_,_]"}
    assert found.weights == split
    assert counts(found) == {"all_reduce": 1}
    assert found.objective == pytest.approx(links.cost("all_reduce", axis, 4 * 256 * 64 * 4))
    assert found.objective == pytest.approx(393217.01)


def test_convolutions_on_two_axes() -> None:
    """No figure is published, and the branch that asks for all-to-alls never runs.  Ours has two of them: from images
    to channels before the last layer."""
    graph = convolutions(4, 8, 32, 8)
    found = planned(graph, SLOW_FIRST)
    assert counts(found) == {"all_to_all": 2, "reduce_scatter": 1, "all_gather": 1, "all_reduce": 2}
    assert (found.gap, found.objective) == (0, pytest.approx(5936.367))
    assert paid(found, SLOW_FIRST) == pytest.approx(found.objective)
    batch = pinned(graph, SLOW_FIRST, lambda op: ("n", "n") if op.type == "Conv" else None, lambda _: WHOLE)
    assert counts(batch) == {"all_reduce": 1}
    assert batch.objective == pytest.approx(6070.575)


# Others.


def test_products_by_expert_between_products_of_all() -> None:
    """All-to-alls and all-reduces alone, as published."""
    found = planned(expert_products(256, 4, 16), SLOW_FIRST)
    assert found.stored["wi"] == found.stored["wo"] == "[y,_,_]"
    assert counts(found) == {"all_to_all": 4, "all_reduce": 2}
    assert (found.gap, found.objective) == (0, pytest.approx(11492.779))
    assert paid(found, SLOW_FIRST) == pytest.approx(found.objective)


@pytest.mark.parametrize("links", [Links((4, 1)), Links((1, 4)), SQUARE], ids=["4x1", "1x4", "2x2"])
def test_dropout_is_split_like_its_operand(links: Links) -> None:
    """One all-reduce, of the weights; every rank draws its own numbers, not all of them."""
    graph = dropout_between(32, 32, 16)
    found = planned(graph, links)
    assert counts(found) == {"all_reduce": 1}
    assert found.objective == pytest.approx(3087.33 if links == SQUARE else 3081.03)
    (dropout,) = (op for op in graph.ops if op.type == "Dropout")
    assert found.program.strategies[dropout.name].parallelism == 4


def test_graphs_without_weights_are_free() -> None:
    """Computing is free here, so that splitting an addition and repeating it cost the same: nothing."""
    links = Links((4, 1))
    for factor in ("d0", "d1", "_"):
        found = pinned(add_one(128, 128), links, lambda op, f=factor: (f, None), lambda _: WHOLE, INFERENCE)
        assert (found.objective, counts(found)) == (0, {})
    for mesh in (links, SQUARE):
        found = planned(reshaped(144, 8), mesh, INFERENCE)
        assert (found.objective, counts(found)) == (0, {})
