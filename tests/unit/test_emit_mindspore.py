"""MindSpore's strategy files: what every rank holds, both forms, files that MindSpore saved, and hostile ones."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from planner.emit.mindspore.arrangement import Arrangement, arranged, common_mesh, layouts_of
from planner.emit.mindspore.strategy import merged
from planner.emit.mindspore.strategy_map import (
    OperatorStrategy,
    ParameterLayout,
    StrategyMap,
    from_bytes,
    read_strategy_map,
    to_json,
    to_protobuf,
)
from planner.errors import InputError
from planner.ir import DeviceMesh, Layout

SAVED = Path(__file__).parent / "mindspore"
SHARED = Path(__file__).parents[3] / "shared" / "oracles" / "mindspore"


def held(a: Arrangement, shape: tuple[int, ...], rank: int) -> tuple[tuple[int, int], ...]:
    """(begin, end) of every dimension that a rank holds, read off MindSpore's own rules one coordinate at a time."""
    place, rest = [], rank
    for size in reversed(a.device_matrix):
        rest, at = divmod(rest, size)
        place.append(at)  # counted from the right, as tensor maps count
    sizes = a.device_matrix[::-1]
    out, used = [], set()
    for d, axes in enumerate(a.tensor_map):
        begin, size = 0, shape[d]
        for axis in axes if isinstance(axes, tuple) else (axes,):
            if axis >= 0:
                used.add(axis)
                size //= sizes[axis]
                begin += place[axis] * size
        out.append([begin, size])
    index, parts = 0, 1
    for axis, size in enumerate(sizes):  # the innermost idle axes cut dimension 0 once more
        if axis in used or parts >= a.optimizer_shards:
            continue
        taken = min(size, a.optimizer_shards // parts)
        index += (place[axis] % taken) * parts
        parts *= taken
    if parts > 1:
        begin, size = out[0]
        out[0] = [begin + index * (size // parts), size // parts]
    return tuple((b, b + n) for b, n in out)


@st.composite
def cases(draw: st.DrawFn) -> tuple[DeviceMesh, Layout, Layout]:
    mesh = DeviceMesh.of(*draw(st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=3)))
    axes = draw(st.permutations(mesh.names))
    rank = draw(st.integers(1, 3))
    dims: list[list[str]] = [[] for _ in range(rank)]
    for name in axes:
        d = draw(st.integers(-1, rank - 1))
        if d >= 0:
            dims[d].append(name)
    compute = Layout(tuple(map(tuple, dims)))
    idle = [n for n in mesh.names if n not in compute.split_axes and mesh.sizes[n] > 1]
    beyond = idle[draw(st.integers(0, len(idle))) :]
    stored = Layout(((*compute.dims[0], *beyond), *compute.dims[1:]))
    scattered = [d for d in compute.dims if arranged_apart(d, mesh)]
    assume(rank > 1 or not scattered)  # refused: a test of its own
    return mesh, compute, stored


def arranged_apart(dim: tuple[str, ...], mesh: DeviceMesh) -> bool:
    """Whether the axes are no neighbours in mesh order, those of size one aside."""
    order = [n for n in mesh.names if mesh.sizes[n] > 1]
    at = [order.index(n) for n in dim if n in order]
    return any(b != a + 1 for a, b in itertools.pairwise(at))


def lying(mesh: DeviceMesh, compute: Layout, stored: Layout) -> Arrangement:
    """With the shards that `stored` has beyond `compute`."""
    return arranged(compute, mesh).divided(mesh.size(stored.split_axes) // mesh.size(compute.split_axes))


@settings(max_examples=300, deadline=None)
@given(cases())
def test_every_rank_holds_what_the_plan_stores_there(case: tuple[DeviceMesh, Layout, Layout]) -> None:
    mesh, compute, stored = case
    a = lying(mesh, compute, stored)
    assert a.ranks == mesh.devices
    shape = tuple(math.prod(mesh.shape) * 5 for _ in compute.dims)
    for rank in range(mesh.devices):
        region = stored.region(shape, mesh, rank)
        assert held(a, shape, rank) == tuple((s.start, s.stop) for s in region)


@settings(max_examples=200, deadline=None)
@given(st.lists(cases(), min_size=1, max_size=3))
def test_layouts_read_back_hold_the_same(found: list[tuple[DeviceMesh, Layout, Layout]]) -> None:
    mesh = found[0][0]
    arrangements = [lying(*case) for case in found if case[0] == mesh]
    common = common_mesh(arrangements)
    assert common.devices == mesh.devices
    for a in arrangements:
        compute, stored = layouts_of(a, common)
        shape = tuple(mesh.devices * 5 for _ in a.tensor_map)
        for rank in range(mesh.devices):
            assert held(a, shape, rank) == tuple((s.start, s.stop) for s in stored.region(shape, common, rank))
            whole = Arrangement(a.device_matrix, a.tensor_map)
            assert held(whole, shape, rank) == tuple((s.start, s.stop) for s in compute.region(shape, common, rank))


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.text(min_size=1, max_size=12), cases(), max_size=4), st.integers(0, 3))
def test_both_forms_say_the_same(found: dict[str, tuple[DeviceMesh, Layout, Layout]], stage: int) -> None:
    parameters = {n: ParameterLayout(lying(*case)) for n, case in found.items()}
    operators = {f"MatMul_{n}": OperatorStrategy(stage, ((2, 1), (1, 4))) for n in found}
    strategies = StrategyMap(operators, parameters, stage)
    assert from_bytes(to_protobuf(strategies), "x") == strategies
    nested = any(isinstance(p, tuple) for x in parameters.values() for p in x.arrangement.tensor_map)
    if nested:
        with pytest.raises(ValueError, match="several axes"):
            to_json(strategies)
    else:
        assert from_bytes(to_json(strategies), "x") == strategies


@pytest.mark.parametrize("path", sorted(SAVED.iterdir()), ids=lambda p: p.name)
def test_what_mindspore_saved_is_written_back_byte_by_byte(path: Path) -> None:
    found = read_strategy_map(path)
    assert found.parameters or found.operators
    written = to_json(found) if path.suffix == ".json" else to_protobuf(found)
    assert written == path.read_bytes().rstrip(b"\n" if path.suffix == ".json" else b"")


@pytest.mark.skipif(not SHARED.is_dir(), reason="the wide corpus is not beside the checkout")
@pytest.mark.parametrize("path", sorted(SHARED.iterdir()) if SHARED.is_dir() else [], ids=lambda p: p.name)
def test_all_saved_files_are_read(path: Path) -> None:
    document = json.loads(path.read_bytes()) if path.suffix == ".json" else {}
    if path.suffix == ".json" and "parallel_strategy_item" not in document:
        return  # a record of a search, not a strategy file
    found = read_strategy_map(path)
    written = to_json(found) if path.suffix == ".json" else to_protobuf(found)
    assert from_bytes(written, "again") == found


def test_stages_are_merged_under_their_numbers() -> None:
    a = Arrangement((2,), (0,))
    stages = [
        StrategyMap({f"MatMul_w{i}": OperatorStrategy(0, ((1, 2), (2, 1)))}, {f"w{i}": ParameterLayout(a)}, i)
        for i in range(2)
    ]
    found = merged(stages)
    assert list(found.parameters) == ["0-w0", "1-w1"]
    assert [s.stage for s in found.operators.values()] == [0, 1]


def test_a_vector_split_by_axes_apart_is_refused() -> None:
    with pytest.raises(ValueError, match=r"a vector split by axes y\.x"):
        arranged(Layout((("y", "x"),)), DeviceMesh.of(2, 4))


def group_of(a: Arrangement) -> list[int]:
    """Ranks that compute with the same part as rank 0."""
    whole, shape = Arrangement(a.device_matrix, a.tensor_map), tuple(60 * a.ranks for _ in a.tensor_map)
    return [r for r in range(a.ranks) if held(whole, shape, r) == held(whole, shape, 0)]


@settings(max_examples=200, deadline=None)
@given(cases())
def test_the_step_is_that_of_mindspores_front_end(case: tuple[DeviceMesh, Layout, Layout]) -> None:
    a = lying(*case)
    group = group_of(a)
    assert len(group) == a.replicas
    if a.optimizer_shards:  # (group_devices.back() - group_devices.front()) / (group_devices.size() - 1)
        assert a.optimizer_step == (group[-1] - group[0]) // (len(group) - 1)


@settings(max_examples=200, deadline=None)
@given(cases(), st.integers(1, 24), st.integers(1, 96))
def test_shards_are_taken_where_they_are_even_and_of_whole_axes_or_parts_of_one(
    case: tuple[DeviceMesh, Layout, Layout], shards: int, rows: int
) -> None:
    a = arranged(case[1], case[0])
    if not a.takes(shards, rows):
        return
    assert a.replicas % shards == 0
    assert rows % (a.shards(0) * shards) == 0
    divided, shape = a.divided(shards), (rows, *(60 * a.ranks for _ in a.tensor_map[1:]))
    group = group_of(a)
    parts = [held(divided, shape, r)[0] for r in group]
    assert parts[:shards] == sorted(set(parts)) == parts[:shards]  # the innermost have one part each, in order
    assert sum(end - begin for begin, end in parts[:shards]) * a.shards(0) == rows


@pytest.mark.parametrize(
    ("matrices", "message"),
    [([(2, 3), (3, 2)], "which do not nest"), ([(4,), (8,)], "the same ranks, found 4, 8"), ([], "found none")],
)
def test_matrices_without_a_common_mesh_are_refused(matrices: list[tuple[int, ...]], message: str) -> None:
    with pytest.raises(InputError, match=message):
        common_mesh(Arrangement(m, (-1,)) for m in matrices)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b"\xff" * 40, "neither JSON nor a ParallelStrategyMap"),
        (b"{", "is not JSON"),
        (b'{"parallel_layout_item": []}', "expected an object of objects"),
        (b'{"parallel_layout_item": {"w": {"dev_matrix": [0], "tensor_map": [0]}}}', "device matrix of positive sizes"),
        (b'{"parallel_layout_item": {"w": {"dev_matrix": [2], "tensor_map": [1]}}}', "distinct axes of a matrix of 1"),
        (b'{"parallel_layout_item": {"w": {"dev_matrix": [2, 2], "tensor_map": [0, 0]}}}', "distinct axes"),
        (b'{"parallel_layout_item": {"w": {"dev_matrix": "x", "tensor_map": [0]}}}', "dev_matrix: expected a list"),
        (b'{"parallel_strategy_item": {"m": {"stage": 0, "parallel_strategy": [[0]]}}}', "shards of at least 1"),
        (
            b'{"parallel_layout_item": {"w": {"dev_matrix": [4], "tensor_map": [-1], "opt_weight_shard_size": 3}}}',
            "optimizer shards that divide the 4 ranks",
        ),
    ],
)
def test_hostile_files_are_refused_by_name(data: bytes, message: str) -> None:
    with pytest.raises(InputError, match=f"^file: .*{message}"):
        from_bytes(data, "file")


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_no_bytes_crash_the_reader(data: bytes) -> None:
    with contextlib.suppress(InputError):
        from_bytes(data, "file")


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 215), st.integers(0, 255))
def test_no_flipped_byte_crashes_the_reader(at: int, value: int) -> None:
    data = bytearray((SAVED / "mlp.ckpt").read_bytes())
    data[at % len(data)] = value
    with contextlib.suppress(InputError):
        from_bytes(bytes(data), "file")


@pytest.mark.parametrize("a", [Arrangement((2, 4), (-1, -1), 4, 2), Arrangement((4, 6), (-1, -1), 1, 8)])
def test_optimizer_shards_that_are_no_innermost_ranks_are_refused(a: Arrangement) -> None:
    with pytest.raises(InputError, match="optimizer shards of the innermost ranks"):
        layouts_of(a, common_mesh([a]))


@pytest.mark.parametrize("sizes", list(itertools.product([1, 2, 4], repeat=2)))
def test_one_matrix_is_its_own_mesh(sizes: tuple[int, int]) -> None:
    assert common_mesh([Arrangement(sizes, (1, 0))]).shape == (tuple(n for n in sizes if n > 1) or (1,))
