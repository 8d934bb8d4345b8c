"""Layouts along one axis: Megatron's published ones emerge from the rules."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

from planner.cost_models import load_profile
from planner.evaluate import Configuration, workload_of_configuration
from planner.frontends import import_bytes
from planner.ir import DeviceMesh, Graph
from planner.planning.schemes.layout import Along, lay_out
from planner.planning.schemes.model import model_of
from planner.planning.schemes.tensor import TENSOR
from planner.planning.schemes.ways import divided, whole
from planner.work.units import units_of
from tests.unit.evaluate_graphs import A, B, H, S, V, blocks, gpt, graph, llama, sent, traced

BERT = {"layers": 2, "batch": B, "seq": S, "hidden": H, "heads": A, "vocab": V}
VIT = {"layers": 2, "batch": 16, "hidden": H, "heads": A}
MOE = {"layers": 2, "batch": 4, "seq": S, "hidden": H, "heads": A, "kv_heads": 4, "vocab": V, "ffn": 5632}
TRANSFORMERS = {
    "gpt": gpt(2),
    "gpt fused": gpt(2, attention="fused"),
    "llama grouped": llama(2),
    "llama grouped fused": llama(2, attention="fused"),
    "bert": graph("bert", **BERT),
    "vit": graph("vit", **VIT),
}


def along(g: Graph, size: int, **options: Any) -> Along:
    """Of tensor parallelism alone."""
    return lay_out(g, model_of(g), DeviceMesh.of(size), {op.name: () for op in g.ops}, TENSOR, **options)


@pytest.mark.parametrize("name", TRANSFORMERS)
@pytest.mark.parametrize("tp", [2, 4])
def test_tensor_parallel_block_sums_twice_forward_and_twice_backward(name: str, tp: int) -> None:
    # Shoeybi et al. 2019, section 3: f and g around attention and around the feed-forward layer.
    for u in blocks(traced(TRANSFORMERS[name], tp=tp)):
        assert sent(u, "forward") == {("all_reduce", "x", False): 2}
        assert sent(u, "backward") == {("all_reduce", "x", False): 2}
        assert len({t.bytes for t in (*u.sent_forward, *u.sent_backward)}) == 1


@pytest.mark.parametrize("name", [n for n in TRANSFORMERS if n != "vit"])
def test_sequence_parallel_block_gathers_and_scatters_instead(name: str) -> None:
    # Korthikanti et al. 2022, section 4.2.2, and the gathering again for the gradient of the weight.
    pair = {("all_gather", "x", False): 2, ("reduce_scatter", "x", False): 2}
    for u in blocks(traced(TRANSFORMERS[name], tp=4, sequence_parallel=True)):
        assert sent(u, "forward") == pair
        back = {**pair, ("all_gather", "x", True): 2}
        if name == "bert":  # four operators read what a norm leaves, whose gradients meet in one layout (`StarHub`)
            back["all_gather", "x", False] += 1
        assert sent(u, "backward") == back


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_products_alternate_between_columns_and_rows(name: str) -> None:
    g = TRANSFORMERS[name]
    layout, m, units = along(g, 4), model_of(g), units_of(g)
    found = []
    for op in g.ops:
        weight = op.inputs[1] if m.rules[op.name].cost.kind == "matmul" and len(op.inputs) > 1 else ""
        if weight in m.weights and units.repeated[units.of[op.name]]:
            way = layout.ways[op.name]
            result = way.results[0]
            column = whole(way.operands[0]) and divided(result)
            found.append("column" if column else "row" if result is not None and result.partial else "")
    assert "" not in found
    per_block = len(found) // sum(units.repeated)
    assert found == found[:per_block] * sum(units.repeated)
    assert found[:per_block].count("row") == 2
    assert found[0] == "column"
    assert found[per_block - 1] == "row"


@pytest.mark.parametrize("name", ["gpt", "llama grouped", "bert"])
@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_embedding_and_scores_divide_the_vocabulary(name: str, sequence_parallel: bool) -> None:
    g = TRANSFORMERS[name]
    layout = along(g, 4, sequence_parallel=sequence_parallel)
    tables = [p for p in g.parameters if p.shape is not None and len(p.shape) == 2 and V in p.shape]
    assert tables
    assert all(layout.rest[p.name].dims[p.shape.index(V)] for p in tables if p.shape)
    last = traced(g, tp=4, sequence_parallel=sequence_parallel).units[-1]
    scores = 2 * B * S * V
    assert all(t.bytes < scores for t in (*last.sent_forward, *last.sent_backward))  # scores are not gathered
    rows = sorted(t.bytes for t in last.sent_forward if t.kind == "all_reduce")
    assert rows == [4 * B * S, 8 * B * S]  # maximum; sum of exponentials and the label's score, in single precision


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_gpt_weights_of_a_rank_follow_the_published_count(tp: int) -> None:
    # 12 h² + 13 h of a block (Narayanan et al. 2021): products, and the biases of their columns, are divided; norms
    # (4 h) and the biases of rows (2 h) are not.
    w = traced(gpt(2), tp=tp)
    assert {u.weights for u in blocks(w)} == {(12 * H * H + 7 * H) // tp + 6 * H}
    assert w.units[0].weights == V * H // tp + S * H
    assert sum(t.weights for t in w.tied) == V * H // tp
    assert w.parameters == 2 * (12 * H * H + 13 * H) + V * H + S * H + 2 * H


@pytest.mark.parametrize("tp", [2, 4])
def test_llama_weights_of_a_rank_follow_the_published_count(tp: int) -> None:
    block = 2 * H * H + 2 * H * H * 4 // A + 3 * H * 5632
    w = traced(llama(2), tp=tp)
    assert {u.weights for u in blocks(w)} == {block // tp + 2 * H}
    assert sum(u.weights for u in w.units) == (2 * block + 2 * V * H) // tp + 5 * H


@pytest.mark.parametrize("g", [gpt(2), llama(2), llama(2, attention="fused"), gpt(2, attention="fused")])
def test_context_parallel_block_moves_keys_and_values_alone(g: Graph) -> None:
    w, whole = traced(g, cp=4), traced(g)
    heads = 4 if "llama" in g.name else A
    keys = 2 * B * S * H * heads // A
    for u, v in zip(blocks(w), blocks(whole), strict=True):
        assert {t.kind for t in u.sent_forward} <= {"all_gather", "permute"}
        assert {t.bytes for t in u.sent_forward if t.kind == "all_gather"} <= {keys}
        assert (
            sum(t.bytes * n * (1 if t.kind == "all_gather" else 4 / 3) for t, n in u.sent_forward.items()) == 2 * keys
        )
        assert {t.kind for t in u.sent_backward} <= {"all_gather", "reduce_scatter", "permute"}
        assert u.weights == v.weights
    assert [u.weights for u in w.units] == [u.weights for u in whole.units]


@pytest.mark.parametrize("dispatch", ["capacity"])
def test_expert_parallel_layer_exchanges_tokens_twice_each_way(dispatch: str) -> None:
    g = graph("moe", **MOE, dispatch=dispatch)
    expert = 3 * H * 5632
    for u in blocks(traced(g, ep=4, dp=4)):
        assert sent(u, "forward") == {("all_to_all", "x", False): 2}
        assert sent(u, "backward") == {("all_to_all", "x", False): 2}
        assert u.weights == 8 * expert // 4 + 2 * H * H + 2 * H * H * 4 // A + 2 * H + 8 * H  # attention, norms, router


def test_deepseek_exchanges_tokens_twice_each_way() -> None:
    for u in blocks(traced(graph("deepseek", layers=3, batch=4), ep=4, dp=4)):
        assert sent(u, "forward") == sent(u, "backward") == {("all_to_all", "x", False): 2}


def test_experts_under_tensor_parallelism_sum_once_and_keep_the_router_whole() -> None:
    g = graph("moe", **MOE)
    for u in blocks(traced(g, tp=4)):
        assert sent(u, "forward") == {("all_reduce", "x", False): 2}
        assert u.weights == (2 * H * H + 2 * H * H * 4 // A + 8 * 3 * H * 5632) // 4 + 2 * H + 8 * H


def test_latent_projections_before_a_norm_stay_whole() -> None:
    g = graph("deepseek", layers=3, batch=4)
    layout = along(g, 4)
    down = [p.name for p in g.parameters if p.shape in ((5120, 1536), (5120, 576))]
    assert down
    assert all(layout.rest[name].is_replicated for name in down)


def test_perceptron_pairs_columns_and_rows() -> None:
    w = traced(graph("mlp", layers=4, batch=4096), tp=4)
    forward = [sum(sent(u, "forward").values()) for u in w.units]
    assert sum(forward) == 2  # four layers: two pairs
    assert all(set(sent(u, "forward")) <= {("all_reduce", "x", False)} for u in w.units)


def test_residual_network_divides_every_convolution() -> None:
    g = graph("resnet", layers=18, batch=32)
    layout, m = along(g, 4), model_of(g)
    kernels = [op.inputs[1] for op in g.ops if m.rules[op.name].cost.kind == "conv"]
    assert all(divided(layout.rest[name]) for name in kernels)
    total = sum(u.weights for u in traced(g).units)
    assert sum(u.weights for u in traced(g, tp=4).units) < 1.01 * total / 4 + 10_000


def test_layouts_do_not_depend_on_the_size_of_the_batch() -> None:
    for name, g in (("one", gpt(2)), ("four", gpt(2, batch=4))):
        for u in blocks(traced(g, tp=4)):
            assert sent(u, "forward") == {("all_reduce", "x", False): 2}, name


def test_tracing_does_not_keep_a_graph_alive() -> None:
    from planner.builder import build

    g = import_bytes(build("mlp", {"layers": 3}).SerializeToString(), name="mlp")
    workload_of_configuration(g, Configuration(tp=2), load_profile("a100-80"))
    gone = weakref.ref(g)
    del g
    gc.collect()
    assert gone() is None


def test_attention_passes_keys_round_again_when_its_core_is_computed_again() -> None:
    for u in blocks(traced(gpt(2, attention="fused"), cp=4)):
        assert sent(u, "forward") == sent(u, "core") == {("permute", "x", True): 3}
