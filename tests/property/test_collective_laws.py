"""Laws that prices of collectives and operators keep, whatever the machine, group and size."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.cost_models import (
    COLLECTIVES,
    KINDS,
    Collective,
    CollectiveModel,
    GroupShape,
    HardwareProfile,
    OperatorKind,
    compute_seconds,
    group_on_mesh,
    load_profile,
    profile_names,
)

MODELS = {name: CollectiveModel(load_profile(name)) for name in profile_names()}
LINKED = [name for name, model in MODELS.items() if model.profile.axes is None]
SWITCHED = [
    name
    for name in LINKED
    if (server := MODELS[name].profile.server) is not None
    and server.topology in ("switch", "shared")
    and MODELS[name].profile.island is None
]
# Examples of each machine, where a law is tried on all of them: the same faults show as with a hundred.
EACH = settings(max_examples=60)
# What NCCL adds to a Simple ring's latency on an all-reduce across nodes, and not on its two halves.
PLATEAU = 1.9

models = st.sampled_from(sorted(MODELS)).map(MODELS.__getitem__)
kinds: st.SearchStrategy[Collective] = st.sampled_from(COLLECTIVES)
sizes = st.floats(1, 1e13)
powers = st.sampled_from([1, 2, 4, 8, 16])


@st.composite
def meshes_and_axes(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two-dimensional meshes, which the alpha-beta profile prices too, and some of their axes."""
    shape = (draw(powers), draw(powers))
    return shape, draw(st.sampled_from([(0,), (1,), (0, 1)]))


@given(models, kinds, meshes_and_axes(), sizes, sizes)
def test_more_bytes_never_cost_less(
    model: CollectiveModel,
    kind: Collective,
    where: tuple[tuple[int, ...], tuple[int, ...]],
    a: float,
    b: float,
) -> None:
    group = model.group(*where)
    less, more = model.seconds(kind, np.array(sorted((a, b))), group)
    assert 0 <= less <= more < math.inf


@given(models, kinds, meshes_and_axes(), sizes, sizes)
def test_one_message_never_costs_more_than_its_parts(
    model: CollectiveModel,
    kind: Collective,
    where: tuple[tuple[int, ...], tuple[int, ...]],
    a: float,
    b: float,
) -> None:
    group = model.group(*where)
    whole, first, second = model.seconds(kind, np.array([a + b, a, b]), group)
    assert whole <= (first + second) * (1 + 1e-12)


@given(models, meshes_and_axes(), sizes)
def test_all_reduce_never_costs_more_than_reduce_scatter_and_all_gather(
    model: CollectiveModel, where: tuple[tuple[int, ...], tuple[int, ...]], size: float
) -> None:
    """On NCCL across servers up to the latency it adds to rings there: its tuner never composes the two."""
    group = model.group(*where)
    parts = model.seconds("reduce_scatter", size, group) + model.seconds("all_gather", size, group)
    slack = PLATEAU if model.profile.nccl is not None and group.servers > 1 else 1 + 1e-12
    assert model.seconds("all_reduce", size, group) <= parts * slack


@given(models, meshes_and_axes(), sizes)
def test_gathering_is_never_dearer_than_all_reducing(
    model: CollectiveModel, where: tuple[tuple[int, ...], tuple[int, ...]], size: float
) -> None:
    """Half the traffic, half the steps; only offsets of a thousandth to a tenth of published cases differ."""
    if model.profile.server is not None and model.profile.server.in_switch_all_reduce_bytes_per_s is not None:
        return  # the switch reduces but does not gather
    if model.profile.nccl is not None or any("tree" in p.algorithms for p in model.profile.protocols):
        return  # latency of a tree is logarithmic, of a gathering ring linear
    group = model.group(*where)
    if group.servers > 1 and any("halving_doubling" in p.algorithms for p in model.profile.protocols):
        return  # a gather keeps the order of shards and so sends all of them beyond the server, an all-reduce does not
    slack = 0.2 if model.profile.axes is not None else 0.0
    assert model.seconds("all_gather", size, group) <= model.seconds("all_reduce", size, group) + slack


@pytest.mark.parametrize("name", SWITCHED)
@EACH
@given(kind=st.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "broadcast"]), size=sizes)
def test_behind_a_switch_more_ranks_never_cost_less(name: str, kind: Collective, size: float) -> None:
    """Not so in three cases, all of them physical.

    In a full mesh (910B) every further rank brings its links; an all-reduce in the switch is only done for more
    than a few ranks (NVLS: from 5 or 6 on, and cheaper there than the ring of 4); a broadcast moves the whole
    message whatever the ranks, and pairs of A100 reach less of their links than larger rings do.
    """
    profile = MODELS[name].profile
    assert profile.server is not None
    counts = [1, 2, 4, 8]
    if kind == "all_reduce" and profile.server.in_switch_least_ranks > 2:
        counts = [n for n in counts if n < profile.server.in_switch_least_ranks]
    if kind == "broadcast" and len(profile.measured.bandwidth_fraction_by_ranks) > 1:
        return
    prices = [float(MODELS[name].seconds(kind, size, GroupShape(n))) for n in counts]
    assert all(a <= b * (1 + 1e-12) for a, b in pairwise(prices))


@given(sizes)
def test_in_a_full_mesh_a_larger_group_gathers_faster(size: float) -> None:
    """Each rank takes B/k from each of k - 1 others over links of their own, all at once."""
    prices = [float(MODELS["ascend-910b"].seconds("all_gather", size, GroupShape(k))) for k in (2, 4, 8)]
    assert prices == sorted(prices, reverse=True)


@given(models, kinds, meshes_and_axes(), sizes, sizes)
def test_prices_are_the_least_of_affine_functions(
    model: CollectiveModel,
    kind: Collective,
    where: tuple[tuple[int, ...], tuple[int, ...]],
    a: float,
    b: float,
) -> None:
    """So they are concave: the price half way is at least the mean of the prices at both ends."""
    group = model.group(*where)
    if group.ranks == 1:
        return
    low, middle, high = model.seconds(kind, np.array([a, (a + b) / 2, b]), group)
    assert middle >= (low + high) / 2 * (1 - 1e-12)
    terms = model.terms(kind, group)
    assert middle == pytest.approx(min(t + per_byte * (a + b) / 2 for t, per_byte in terms), rel=1e-12)


@pytest.mark.parametrize("name", LINKED)
@EACH
@given(kind=kinds, where=meshes_and_axes(), size=sizes, faster=st.floats(1, 100))
def test_faster_links_never_cost_more(
    name: str, kind: Collective, where: tuple[tuple[int, ...], tuple[int, ...]], size: float, faster: float
) -> None:
    profile = MODELS[name].profile
    assert profile.server is not None
    assert profile.network is not None
    group = MODELS[name].group(*where)
    server = profile.server
    if server.bandwidth_bytes_per_s is not None:
        server = replace(server, bandwidth_bytes_per_s=server.bandwidth_bytes_per_s * faster)
    network = replace(profile.network, bandwidth_bytes_per_s=profile.network.bandwidth_bytes_per_s * faster)
    better = CollectiveModel(replace(profile, server=server, network=network))
    assert better.seconds(kind, size, group) <= MODELS[name].seconds(kind, size, group) * (1 + 1e-12)


@pytest.mark.parametrize("name", LINKED)
@EACH
@given(kind=kinds, where=meshes_and_axes(), size=sizes, few=st.integers(1, 8), more=st.integers(0, 8))
def test_more_groups_at_once_never_cost_less(
    name: str, kind: Collective, where: tuple[tuple[int, ...], tuple[int, ...]], size: float, few: int, more: int
) -> None:
    model = MODELS[name]
    group = model.group(*where)
    alone, crowded = (model.seconds(kind, size, group, concurrent=c) for c in (few, few + more))
    assert alone <= crowded * (1 + 1e-12)


@pytest.mark.parametrize("name", LINKED)
@EACH
@given(kind=st.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "broadcast", "permute"]), size=sizes)
def test_more_servers_never_cost_less(name: str, kind: Collective, size: float) -> None:
    """Beyond the first, which needs no network: a group of one rank per server has no other bandwidth."""
    for m in (1, 2, 4, 8):
        prices = [float(MODELS[name].seconds(kind, size, GroupShape(m, s))) for s in (2, 4, 8, 16, 64)]
        assert all(a <= b * (1 + 1e-12) for a, b in pairwise(prices))


@pytest.mark.parametrize("name", LINKED)
@EACH
@given(kind=kinds, size=sizes, n=st.sampled_from([2, 4, 8]))
def test_leaving_the_server_never_pays(name: str, kind: Collective, size: float, n: int) -> None:
    """The same ranks, all on one server or each on its own."""
    together, apart = (MODELS[name].seconds(kind, size, g) for g in (GroupShape(n), GroupShape(1, n)))
    assert together <= apart


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
def test_a_group_has_the_ranks_of_its_axes(shape: list[int], data: st.DataObject) -> None:
    axes = tuple(data.draw(st.lists(st.integers(0, len(shape) - 1), unique=True, max_size=len(shape))))
    per_server = data.draw(st.sampled_from([1, 2, 4, 8]))
    island = data.draw(st.sampled_from([None, *(d for d in (1, 2, 4) if per_server % d == 0)]))
    group = group_on_mesh(tuple(shape), axes, per_server, island)
    assert group.ranks == math.prod(shape[a] for a in axes)
    assert group.ranks_per_server <= per_server
    assert group.servers <= max(1, math.ceil(math.prod(shape) / per_server))
    assert group.ranks_per_server * group.servers <= group.ranks
    assert group.ranks_per_island is None or island is not None


@pytest.mark.parametrize("name", LINKED)
@EACH
@given(
    kind=st.sampled_from(KINDS),
    flops=st.just(0.0) | st.floats(1, 1e18),
    moved=st.just(0.0) | st.floats(1, 1e13),
    parts=st.integers(1, 64),
    dtype=st.sampled_from(["fp32", "bf16", "fp16"]),
)
def test_splitting_an_operator_never_gains_more_than_its_share(
    name: str, kind: OperatorKind, flops: float, moved: float, parts: int, dtype: str
) -> None:
    profile = MODELS[name].profile
    amounts = np.array([1, parts])
    whole, part = compute_seconds(profile, kind=kind, flops=flops / amounts, bytes_moved=moved / amounts, dtype=dtype)
    assert part <= whole
    assert whole <= parts * part * (1 + 1e-12)


OPERATORS = {
    "kind": st.sampled_from(KINDS),
    "flops": st.just(0.0) | st.floats(1, 1e18),
    "moved": st.just(0.0) | st.floats(1, 1e13),
}


def overlapping(name: str, overlap: float) -> HardwareProfile:
    profile = MODELS[name].profile
    assert profile.device is not None
    return replace(profile, device=replace(profile.device, arithmetic_traffic_overlap=overlap))


@pytest.mark.parametrize("name", LINKED)
@EACH
@given(**OPERATORS)
def test_with_full_overlap_only_the_longer_of_arithmetic_and_traffic_counts(
    name: str, kind: OperatorKind, flops: float, moved: float
) -> None:
    """Bit for bit: the price is that of one of the two alone."""
    profile = overlapping(name, 1.0)
    both, arithmetic, traffic = (
        float(compute_seconds(profile, kind=kind, flops=f, bytes_moved=b, dtype="fp32"))
        for f, b in ((flops, moved), (flops, 0.0), (0.0, moved))
    )
    assert both == max(arithmetic, traffic)


@pytest.mark.parametrize("name", LINKED)
@EACH
@given(overlaps=st.tuples(st.floats(0, 1), st.floats(0, 1)), **OPERATORS)
def test_less_overlap_never_costs_less_and_twice_at_most(
    name: str, overlaps: tuple[float, float], kind: OperatorKind, flops: float, moved: float
) -> None:
    less, more = (
        float(compute_seconds(overlapping(name, x), kind=kind, flops=flops, bytes_moved=moved, dtype="fp32"))
        for x in sorted(overlaps)
    )
    assert more <= less * (1 + 1e-12)
    assert less <= 2 * more * (1 + 1e-12)


@pytest.mark.parametrize("name", LINKED)
def test_pooling_is_priced_as_a_reduction_where_the_machine_does_not_tell_them_apart(name: str) -> None:
    profile, moved = MODELS[name].profile, np.logspace(0, 10, 11)
    assert profile.device is not None
    assert not {"pooling", "reduction"} & set(profile.device.memory_efficiency_by_kind)
    pooling, reduction = (
        compute_seconds(profile, kind=kind, flops=moved / 4, bytes_moved=moved, dtype="fp32").tolist()
        for kind in ("pooling", "reduction")
    )
    assert pooling == reduction
