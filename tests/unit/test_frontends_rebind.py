"""Other sizes for static graphs: structure, and numbers against ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from planner.cli.main import main
from planner.errors import InputError, UsageError
from planner.frontends import import_bytes, load_model
from planner.frontends.facts.sizes import handle
from planner.frontends.file.export import to_model
from planner.frontends.importer import import_with_own
from planner.frontends.resized import rebind as rebinding
from planner.frontends.resized.batch import of_batch
from planner.frontends.resized.rebind import batch_axes, named_alike, rebind
from planner.frontends.resized.resize import resize_value
from planner.frontends.resized.siblings import cut_layers
from planner.ir import Graph
from planner.planning import read_plan
from planner.planning.pipeline import global_batch
from planner.requests.model import ModelSource
from tests.mutation.written import Model

from .frontends_models import INT64, assert_same, constant, external, imported, node, serialised, transformer, value

SAMPLES = Path(__file__).parents[2] / "sample_graphs"


def feeds_of(graph: Graph, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        i.name: rng.standard_normal(t.shape).astype(t.dtype)
        if t.is_float
        else rng.integers(0, 2, t.shape).astype(t.dtype)
        for i in to_model(graph).graph.input
        for t in [graph.tensors[i.name]]
    }


def run(graph: Graph, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    session = onnxruntime.InferenceSession(to_model(graph).SerializeToString(), providers=["CPUExecutionProvider"])
    return dict(zip(graph.outputs, session.run(None, feeds), strict=True))


def leading(feeds: dict[str, np.ndarray], graph: Graph) -> dict[str, np.ndarray]:
    return {n: v[tuple(slice(s) for s in graph.tensors[n].shape or ())] for n, v in feeds.items()}


@pytest.mark.parametrize("batch", [1, 3, 5])
def test_samples_do_not_see_the_batch(batch):
    small = import_bytes(transformer(2, batch=2))
    large = rebind(small, batch_axes(small, 2 + batch))
    feeds = feeds_of(large)
    whole, part = run(large, feeds), run(small, leading(feeds, small))
    assert large.tensors["logits"].shape == (2 + batch, 6, 32)
    np.testing.assert_allclose(whole["logits"][:2], part["logits"], rtol=1e-5, atol=1e-5)


def test_batch_of_one_grows():
    small = import_bytes(transformer(1, batch=1))
    large = rebind(small, batch_axes(small, 3))
    feeds = feeds_of(large)
    feeds["attention_mask"][1:, 2:] = 1 - feeds["attention_mask"][:1, 2:]  # samples whose masks differ
    for k in range(3):
        one = {n: v[k : k + 1] if n in small.inputs else v for n, v in feeds.items()}
        np.testing.assert_allclose(
            run(large, feeds)["logits"][k : k + 1], run(small, one)["logits"], rtol=1e-4, atol=1e-5
        )


def test_causal_models_do_not_see_what_follows():
    whole = import_bytes(transformer(2, batch=2, sequence=6))
    sizes = {(n, 1): 4 for n in whole.inputs} | {(n, 0): 1 for n in whole.inputs}
    short = rebind(whole, sizes)
    feeds = feeds_of(whole)
    got, expected = run(short, leading(feeds, short)), run(whole, feeds)
    assert got["logits"].shape == (1, 4, 32)
    np.testing.assert_allclose(got["logits"], expected["logits"][:1, :4], rtol=1e-5, atol=1e-5)


def test_rebinding_equals_exporting_with_that_size():
    g = import_bytes(transformer(2, batch=2), batch=7)
    other = import_bytes(transformer(2, batch=7))
    assert {t.name: t.shape for t in g.tensors.values() if t.name in other.tensors} == {
        t.name: t.shape for t in other.tensors.values() if t.name in g.tensors
    }


class _Forgetful(dict):
    def __setitem__(self, key, value):
        pass


@pytest.mark.parametrize(
    "graph", [import_bytes(transformer(3)), *(load_model(path) for path in sorted(SAMPLES.glob("*.onnx")))],
    ids=lambda graph: graph.name,
)  # fmt: skip
def test_what_a_walk_does_not_change_is_not_looked_at_again(graph, monkeypatch):
    """And the result is that of walks over all operators that remember nothing."""
    looked = []
    monkeypatch.setattr(rebinding, "handle", lambda c, op: (looked.append(op.name), handle(c, op)))
    found = rebind(graph, batch_axes(graph, 6))
    few = len(looked)
    looked.clear()
    original = rebinding.Carrier.__init__

    def forgetful(self, *args):
        original(self, *args)
        self.done = _Forgetful()

    monkeypatch.setattr(rebinding.Carrier, "__init__", forgetful)
    monkeypatch.setattr(rebinding.Carrier, "stale", property(lambda c: None, lambda c, _: None), raising=False)
    other = rebind(graph, batch_axes(graph, 6))
    assert other.digest == found.digest
    assert {t.name: t.shape for t in other.tensors.values()} == {t.name: t.shape for t in found.tensors.values()}
    walked_once = len(looked) <= len(graph.ops)
    assert few == len(looked) if walked_once else few < 1.2 * len(graph.ops) < len(looked)


@pytest.mark.parametrize("path", sorted(SAMPLES.glob("*.onnx")), ids=lambda path: path.stem)
def test_graphs_that_are_named_alike_differ_in_names_alone(path):
    graph = load_model(path)
    for batch in (6, 40):
        rebound = rebind(graph, batch_axes(graph, batch))
        found = named_alike(rebound, graph)
        assert all(name == t.name for name, t in found.tensors.items())
        for op, other in zip(found.ops, rebound.ops, strict=True):
            assert (op.name, op.type, op.outputs) == (other.name, other.type, other.outputs)
            for t, o in zip(op.inputs, other.inputs, strict=True):
                assert (t == o == "") or found.tensors[t].value is rebound.tensors[o].value


def test_constants_that_all_readers_rewrite_alike_keep_their_names():
    nodes = [node("Reshape", "x shape", "a"), node("Reshape", "b shape", "y"), node("Relu", "a", "b")]
    g = imported(nodes, [value("x", [2, 2, 3])], ["y"], [constant("shape", [2, 6])])
    rebound = rebind(g, batch_axes(g, 4))
    assert "shape" not in rebound.tensors
    found = named_alike(rebound, g)
    assert found.tensors.keys() == g.tensors.keys()
    assert found.tensors["shape"].value.tolist() == [4, 6]
    assert found.tensors["y"].shape == (4, 6)


def test_a_constant_that_is_still_read_gives_its_name_to_no_other():
    model = Model()
    shape = model.constant([2, 6])
    first, second = model.add("Reshape", "x", shape), model.add("Reshape", "y", shape)
    graph = import_bytes(model.bytes({"x": (2, 2, 3), "y": (2, 2, 3)}, first, second))
    rebound = rebind(graph, {("x", 0): 4})
    assert named_alike(rebound, graph) is rebound
    both = named_alike(rebind(rebound, {("y", 0): 8}), graph)
    assert [both.tensors[t].shape for t in both.outputs] == [(4, 6), (8, 6)], "two took the place of one"


def test_rebinding_to_the_same_size_is_identity():
    g = import_bytes(transformer(1))
    assert rebind(g, batch_axes(g, 2)) is g


def test_rebinding_there_and_back_is_identity():
    g = import_bytes(transformer(1))
    there = rebind(g, batch_axes(g, 6))
    back = rebind(there, batch_axes(there, 2))
    assert back.digest == g.digest


def test_batch_merged_with_channels_is_told_apart():
    nodes = [node("Reshape", "x merged", "m"), node("Relu", "m", "r"), node("Reshape", "r split", "y")]
    targets = [constant("merged", [12, 5]), constant("split", [4, 3, 5])]
    g = imported(nodes, [value("x", [4, 3, 5])], ["y"], targets, batch=6)
    assert (g.tensors["m"].shape, g.tensors["y"].shape) == ((18, 5), (6, 3, 5))


def test_a_batch_of_one_between_others_grows_where_it_stands():
    """As recurrent models have it: time, batch, features."""
    nodes = [node("Transpose", "x", "t", perm=[3, 0, 1, 2]), node("Reshape", "t shape", "m"), node("Relu", "m", "y")]
    g = imported(nodes, [value("x", [1, 5, 1, 12])], ["y"], [constant("shape", [12, 1, 5])], batch=3)
    assert g.tensors["y"].shape == (12, 3, 5)


@pytest.mark.parametrize("batch", [1, 2, 6])
def test_positions_that_are_repeated_for_the_batch_become_those_of_any_other(batch):
    # A batch of one beside four positions would pass for one that is repeated, until the mask comes.
    nodes = [
        node("Expand", "places as_many", "p"),
        node("Gather", "table.weight p", "e"),
        node("Add", "x e", "h"),
        node("Attention", "h h h mask", "y", q_num_heads=1, kv_num_heads=1),
    ]
    constants = [constant("places", [[0, 1, 2]]), constant("as_many", [4, 3]), external("table.weight", [3, 5])]
    inputs = [value("x", [4, 3, 5]), value("mask", [4, 1, 3, 3])]
    g = imported(nodes, inputs, ["y"], constants, batch=batch, opset=23)
    assert [g.tensors[t].shape for t in ("p", "h", "y")] == [(batch, 3), (batch, 3, 5), (batch, 3, 5)]


@pytest.mark.parametrize("batch", [1, 2, 8])
def test_relative_positions_are_shifted_in_any_batch(batch):
    # As many heads as samples; 7 × 4 elements of a head become 4 × 7, which no dimension is made of.
    nodes = [node("Reshape", "x shifted", "s"), node("Slice", "s start end axis", "c"), node("Reshape", "c back", "y")]
    constants = [constant("shifted", [4, 4, 4, 7]), constant("back", [4, 4, 28]), constant("start", [0])]
    constants += [constant("end", [7]), constant("axis", [3])]
    g = imported(nodes, [value("x", [4, 4, 7, 4])], ["y"], constants, batch=batch)
    assert [g.tensors[t].shape for t in ("s", "c", "y")] == [(batch, 4, 4, 7), (batch, 4, 4, 7), (batch, 4, 28)]


@pytest.mark.parametrize("batch", [1, 2, 8])
def test_products_of_what_is_repeated_for_the_batch_become_those_of_any_other(batch):
    # As XLNet multiplies the embeddings of relative positions, repeated for each sample.
    nodes = [
        node("Einsum", "x q.weight", "h", equation="ibh,hnd->ibnd"),
        node("Expand", "places as_many", "p"),
        node("Einsum", "p r.weight", "k", equation="ibh,hnd->ibnd"),
        node("Einsum", "h k", "y", equation="ibnd,jbnd->bnij"),
    ]
    constants = [constant("places", np.arange(6 * 5).reshape(6, 1, 5), "float32"), constant("as_many", [6, 4, 5])]
    constants += [external("q.weight", [5, 4, 2]), external("r.weight", [5, 4, 2])]
    g = import_bytes(serialised(nodes, [value("x", [3, 4, 5])], ["y"], constants))
    g = rebind(g, {("x", 1): batch})
    assert [g.tensors[t].shape for t in ("p", "k", "y")] == [(6, batch, 5), (6, batch, 4, 2), (batch, 4, 3, 6)]


def test_a_constant_that_stops_it_is_named():
    nodes = [node("Add", "x table", "y")]
    table = constant("table", [[3, 1, 4], [1, 5, 9]])
    with pytest.raises(InputError, match=r"constant 'table' .* stops the new size"):
        imported(nodes, [value("x", [2, 3], INT64)], ["y"], [table], batch=5)
    g = imported(nodes, [value("x", [2, 3], INT64)], ["y"], [table], batch=1)
    assert g.tensors["table"].value.tolist() == [[3, 1, 4]]


def test_a_parameter_that_stops_it_is_named():
    nodes = [node("Add", "x table.weight", "y")]
    with pytest.raises(InputError, match=r"parameter 'table\.weight' .* stops the new size"):
        imported(nodes, [value("x", [2, 30])], ["y"], [external("table.weight", [2, 30])], batch=5)


def test_places_that_do_not_exist_are_usage_errors():
    g = import_bytes(transformer(1))
    for sizes in ({("nothing", 0): 2}, {("ids", 2): 2}, {("ids", 0): 0}):
        with pytest.raises(UsageError, match="cannot rebind"):
            rebind(g, sizes)


def test_siblings_of_fewer_layers_and_smaller_sizes_run():
    g = import_bytes(transformer(5))
    cut, origin = cut_layers(rebind(g, batch_axes(g, 3)), 2)
    assert cut.tensors["logits"].shape == (3, 6, 32)
    assert set(origin) == {op.name for op in cut.ops}
    assert np.isfinite(run(cut, feeds_of(cut))["loss"])


def test_resizing_values():
    assert resize_value(np.arange(4), 0, 2).tolist() == [0, 1]
    assert resize_value(np.arange(3), 0, 5).tolist() == [0, 1, 2, 3, 4]
    assert resize_value(np.array([[True, False]] * 2), 0, 3).tolist() == [[True, False]] * 3
    assert resize_value(np.array([3.0, 1.0]), 0, 3) is None
    assert resize_value(np.array([7]), 0, 2).tolist() == [7, 7]


def test_a_constant_rewritten_once_is_not_lost_when_it_is_rewritten_again():
    # Two readers of one shape, of which the first is changed before the second: each keeps its own copy.
    model = Model()
    shape = model.constant([2, 6])
    first, second = model.add("Reshape", "x", shape), model.add("Reshape", "y", shape)
    graph = import_bytes(model.bytes({"x": (2, 2, 3), "y": (2, 2, 3)}, first, second))
    both = rebind(rebind(graph, {("x", 0): 4}), {("y", 0): 8})
    assert [both.tensors[t].shape for t in both.outputs] == [(4, 6), (8, 6)]
    assert [v.shape for v in run(both, feeds_of(both)).values()] == [(4, 6), (8, 6)]


@pytest.mark.parametrize("name", ["gpt_tiny", "resnet18_tiny"])
def test_a_file_read_for_its_own_batch_gives_the_graph_of_any_other(name):
    data = (SAMPLES / f"{name}.onnx").read_bytes()
    graph, own = import_with_own(data, name=name)
    assert own is not None
    other = 2 * global_batch(graph)
    assert_same(of_batch(own, other), import_bytes(data, name=name, batch=other))


def test_a_symbolic_batch_that_was_bound_gives_no_graph_of_another():
    data = serialised([node("Relu", "x", "y")], [value("x", ("n", 4))], ["y"])
    assert import_with_own(data, bind={"n": 8})[1] is None


def test_a_micro_batch_is_made_of_the_graph_that_was_read(monkeypatch, tmp_path, capsys):
    """Of a file whose own batch is the whole one; reading it again would take as long again."""
    read, load = [], ModelSource.load_with_file
    monkeypatch.setattr(ModelSource, "load_with_file", lambda self, **of: read.append(of) or load(self, **of))
    words = ["search", str(SAMPLES / "gpt_tiny.onnx"), "--devices", "2", "--strategy", "megatron:dp=2,micro_batch=1"]
    assert main([*words, "--no-cache", "--json", "--out", str(tmp_path)]) == 0
    assert read_plan(tmp_path / "plan.json").schedule.micro_batches > 1
    assert len(read) == 1
