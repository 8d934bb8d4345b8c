"""Files without their weights import as the very same graph."""

from __future__ import annotations

import random
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from planner.cli.main import main
from planner.errors import InputError
from planner.frontends import Limits, import_bytes
from planner.frontends.file.sandbox import run_limited
from planner.frontends.file.strip import strip_file, strip_model
from planner.ir import Role
from tests.unit.frontends_models import BOOL, assert_same, constant, node, serialised, transformer, value
from tests.unit.test_frontends_corpus import FILES, sizes_for, valid

SAMPLES = sorted((Path(__file__).parents[2] / "sample_graphs").glob("*.onnx"))
MOST_BYTES = 4 << 20  # of one tensor that gets data


def stored(t: TensorProto) -> TensorProto:
    """The tensor with data of its own: ones, in the field that its name picks."""
    kind = helper.tensor_dtype_to_np_dtype(t.data_type)
    array = np.ones(tuple(t.dims), dtype=kind)
    if t.data_type == TensorProto.FLOAT and len(t.name) % 2:
        return helper.make_tensor(t.name, t.data_type, list(t.dims), array.ravel().tolist())
    return numpy_helper.from_array(array, t.name)


def size(t: TensorProto) -> int:
    return int(np.prod(t.dims, dtype=np.float64)) * 8


def inside(data: bytes) -> bytes:
    """External weights inside the file."""
    model = onnx.load_from_string(data)
    for t in model.graph.initializer:
        if t.data_location == TensorProto.EXTERNAL and size(t) <= MOST_BYTES:
            t.CopyFrom(stored(t))
    return model.SerializeToString()


def as_constants(data: bytes) -> bytes:
    """Initializers as `Constant` nodes."""
    model = onnx.load_from_string(inside(data))
    kept = [t for t in model.graph.initializer if t.data_location == TensorProto.EXTERNAL]
    nodes = [
        helper.make_node("Constant", [], [t.name], value=t)
        for t in model.graph.initializer
        if t.data_location != TensorProto.EXTERNAL
    ]
    inputs = [i for i in model.graph.input if all(i.name not in n.output for n in nodes)]
    nodes += list(model.graph.node)
    del model.graph.initializer[:], model.graph.node[:], model.graph.input[:]
    model.graph.input.extend(inputs)
    model.graph.initializer.extend(kept)
    model.graph.node.extend(nodes)
    return model.SerializeToString()


def in_function(data: bytes) -> bytes:
    """The whole graph as the body of one local function, its weights as `Constant` nodes in there."""
    model = onnx.load_from_string(as_constants(data))
    graph = model.graph
    fed = [*(i.name for i in graph.input), *(t.name for t in graph.initializer)]
    body = helper.make_function(
        "own", "body", list(dict.fromkeys(fed)), [o.name for o in graph.output], list(graph.node), model.opset_import
    )
    call = helper.make_node("body", list(dict.fromkeys(fed)), [o.name for o in graph.output], domain="own")
    del graph.node[:]
    graph.node.append(call)
    model.functions.append(body)
    model.opset_import.add(domain="own", version=1)
    return model.SerializeToString()


FORMS: dict[str, Callable[[bytes], bytes]] = {
    "outside": bytes,
    "inside": inside,
    "constants": as_constants,
    "function": in_function,
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("path", SAMPLES, ids=lambda p: p.stem)
def test_a_stripped_sample_imports_as_the_same_graph_and_stripping_again_changes_nothing(path, form):
    data = FORMS[form](path.read_bytes())
    stripped = strip_model(data)
    assert strip_model(stripped) == stripped
    assert_same(import_bytes(data), import_bytes(stripped))
    assert len(stripped) <= 4 * path.stat().st_size


@pytest.mark.corpus
@pytest.mark.skipif(not FILES, reason="no corpus beside the checkout")
@pytest.mark.parametrize("path", valid(FILES), ids=lambda p: p.stem)
def test_a_stripped_model_of_the_corpus_imports_as_the_same_graph(path):
    bind = sizes_for(path)
    for form in (bytes, inside, as_constants):
        data = form(path.read_bytes())
        stripped = strip_model(data)
        assert strip_model(stripped) == stripped
        assert_same(import_bytes(data, bind=bind), import_bytes(stripped, bind=bind))


def test_weights_go_and_what_shapes_and_meaning_need_stays():
    rng = np.random.default_rng(0)
    model = serialised(
        [
            node("MatMul", "x w", "h", module="m"),
            node("Reshape", "h target", "r"),
            node("Clip", "r low high", "c"),
            node("Gather", "c places", "g"),
        ],
        [value("x", [4, 64])],
        ["g"],
        [
            numpy_helper.from_array(rng.random((64, 96), dtype=np.float32), "w"),
            constant("target", [4, 3, 32]),
            constant("low", 0.0, "float32"),
            constant("high", 6.0, "float32"),
            constant("places", np.arange(1000) % 4),
        ],
    )
    kept = {t.name: t for t in onnx.load_from_string(strip_model(model)).graph.initializer}
    assert not kept["w"].raw_data
    assert kept["w"].data_location == TensorProto.EXTERNAL
    assert (list(kept["w"].dims), kept["w"].data_type) == ([64, 96], TensorProto.FLOAT)
    assert all(kept[n].raw_data for n in ("target", "low", "high", "places"))
    assert_same(import_bytes(model), import_bytes(strip_model(model)))


def test_a_table_beside_data_is_no_weight_for_having_been_inside_the_file():
    """Stored outside, the same table counts as a learned token."""
    table = numpy_helper.from_array(np.ones((16, 32), dtype=np.float32), "table")

    def model(t: TensorProto) -> bytes:
        return serialised([node("Concat", "x table", "y", axis=0)], [value("x", [2, 32])], ["y"], [t])

    graph = import_bytes(strip_model(model(table)))
    assert graph.tensors["table"].role is Role.CONSTANT
    assert_same(import_bytes(model(table)), graph)
    outside = TensorProto(name="table", data_type=1, dims=[16, 32], data_location=TensorProto.EXTERNAL)
    outside.external_data.add(key="location", value="elsewhere")
    assert import_bytes(strip_model(model(outside))).tensors["table"].role is Role.PARAMETER


def test_sub_graphs_stay_as_they_are_as_the_digest_holds_them():
    branches = []
    for name in ("then", "else"):
        w = numpy_helper.from_array(np.full((32, 32), len(name), dtype=np.float32), f"{name}_w")
        body = [helper.make_node("MatMul", ["x", w.name], [name])]
        branches.append(helper.make_graph(body, name, [], [value(name, None)], [w]))
    choice = helper.make_node("If", ["which"], ["y"], then_branch=branches[0], else_branch=branches[1])
    data = serialised([choice], [value("x", [4, 32]), value("which", [], BOOL)], [value("y", [4, 32])])
    assert strip_model(data) == data
    assert_same(import_bytes(data), import_bytes(strip_model(data)))


def test_sparse_initializers_keep_their_dimensions_alone():
    values = numpy_helper.from_array(np.ones(500, dtype=np.float32), "w")
    indices = numpy_helper.from_array(np.arange(500), "places")
    model = onnx.load_from_string(serialised([node("MatMul", "x w", "y", module="m")], [value("x", [4, 64])], ["y"]))
    model.graph.sparse_initializer.append(onnx.SparseTensorProto(values=values, indices=indices, dims=[64, 64]))
    data = model.SerializeToString()
    assert len(strip_model(data)) < 400 < len(data)
    assert strip_model(strip_model(data)) == strip_model(data)
    assert_same(import_bytes(data), import_bytes(strip_model(data)))


def test_documentation_and_stack_traces_of_nodes_are_left_out_and_module_paths_stay():
    n = node("Relu", "x", "y", module="layers.0", doc_string="d" * 5000)
    n.metadata_props.add(key="pkg.torch.onnx.stack_trace", value="File …" * 500)
    data = serialised([n], [value("x", [4])], ["y"])
    stripped = strip_model(data)
    assert len(stripped) < 300
    assert import_bytes(stripped).ops[0].module == "layers.0"
    assert_same(import_bytes(data), import_bytes(stripped))


def test_a_transformer_with_weights_becomes_small():
    data = inside(transformer(4, hidden=256))
    assert len(data) > 1 << 20
    assert len(strip_model(data)) < 1 << 14
    assert_same(import_bytes(data, batch=8), import_bytes(strip_model(data), batch=8))


def damaged(data: bytes, count: int) -> Iterator[bytes]:
    draw = random.Random(7)
    for _ in range(count):
        spoilt = bytearray(data)
        for _ in range(draw.randint(1, 4)):
            spoilt[draw.randrange(len(spoilt))] = draw.randrange(256)
        yield bytes(spoilt[: draw.randrange(len(spoilt))]) if draw.random() < 0.3 else bytes(spoilt)


def test_damaged_files_are_input_errors_or_strip_to_what_stripping_again_keeps():
    refused = 0
    for data in damaged(inside(SAMPLES[0].read_bytes())[:60_000], 200):
        try:
            stripped = strip_model(data)
        except InputError:
            refused += 1
        else:
            assert strip_model(stripped) == stripped
    assert refused > 20


@pytest.mark.parametrize("path", sorted((Path(__file__).parents[1] / "hostile").glob("*.onnx")), ids=lambda p: p.stem)
def test_hostile_files_strip_or_are_input_errors_within_limits(path):
    def work() -> int:
        return len(strip_file(path))

    try:
        length = run_limited(work, limits=Limits(256 << 20, 10, 20.0), what=f"stripping {path.name}")
    except InputError:
        return
    assert length <= path.stat().st_size + 1000


def test_a_message_nested_in_itself_is_not_descended_into():
    inner = b""
    for _ in range(5000):
        inner = b"\x32" + _length(len(inner)) + inner  # attribute `g` in attribute `g`, …
    node_bytes = b"\x22\x08Constant\x2a" + _length(len(inner)) + inner
    graph = b"\x0a" + _length(len(node_bytes)) + node_bytes
    data = b"\x3a" + _length(len(graph)) + graph
    assert strip_model(data) == data


def _length(n: int) -> bytes:
    out = b""
    while n > 127:
        out, n = out + bytes([n & 127 | 128]), n >> 7
    return out + bytes([n])


def test_more_nodes_than_any_import_accepts_are_refused_at_once():
    with pytest.raises(InputError, match="nodes"):
        strip_model(b"\x3a" + _length(2_000_000) + b"\x0a\x00" * 1_000_000)


@pytest.mark.parametrize("text", [b"", b"\x00\x01", b"{'graph': 1}", b"\x3a\xff\xff\xff\xff\x0f", b"\xff" * 20])
def test_other_files_are_refused_by_name(tmp_path, text):
    file = tmp_path / "odd.onnx"
    file.write_bytes(text)
    with pytest.raises(InputError, match=r"odd\.onnx"):
        strip_file(file)


def test_missing_files_and_folders_are_refused_by_name(tmp_path):
    for path in (tmp_path / "none.onnx", tmp_path):
        with pytest.raises(InputError, match=path.name):
            strip_file(path)


def test_the_file_is_never_held_in_memory(tmp_path):
    """200 MB of weights, stripped by a child that may map the file and little else."""
    path = tmp_path / "large.onnx"
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[50_000_000])
    head = weight.SerializeToString() + b"\x4a" + _length(200_000_000)
    graph = b"\x2a" + _length(len(head) + 200_000_000) + head
    with path.open("wb") as file:
        file.write(b"\x3a" + _length(len(graph) + 200_000_000) + graph)
        file.truncate(file.tell() + 200_000_000)

    def work() -> tuple[int, int]:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return len(strip_file(path)), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before

    length, grown = run_limited(work, limits=Limits(300 << 20), what="stripping")
    assert length < 100
    assert grown < 20_000  # KiB


def test_a_stripped_model_is_searched_to_the_same_plan(tmp_path):
    data = inside((SAMPLES[0].parent / "gpt_tiny.onnx").read_bytes())
    plans = []
    for content in (data, strip_model(data)):
        (tmp_path / "model.onnx").write_bytes(content)
        arguments = ["--devices", "4", "--no-cache", "--out", str(tmp_path / "out")]
        assert main(["search", str(tmp_path / "model.onnx"), *arguments]) == 0
        plans.append((tmp_path / "out" / "plan.json").read_bytes())
    assert plans[0] == plans[1]
