"""Hosts that devices share, rails, super-nodes, and algorithms that work level by level: closed forms."""

from __future__ import annotations

import dataclasses

import pytest

from planner.cost_models import CollectiveModel, GroupShape, ProfileError, group_on_mesh, load_profile
from planner.cost_models.levels import bus_bandwidth, levels_of
from planner.cost_models.machine import Algorithm, HardwareProfile, LinkSpec, MeasuredSpec, NetworkSpec, ProtocolSpec
from planner.cost_models.profile import parse_profile
from tests.unit.test_cost_models_profile import MACHINE

B = 1e6
SWITCH = LinkSpec(8, "switch", 100.0)
MESH = LinkSpec(8, "full_mesh", 10.0)


def machine(
    *algorithms: Algorithm,
    server: LinkSpec = SWITCH,
    network: NetworkSpec | None = None,
    supernode: LinkSpec | None = None,
    measured: MeasuredSpec | None = None,
) -> CollectiveModel:
    """10 B/s per device into the network; 1 s + 0.1 s and 0.5 s per step."""
    profile = load_profile("cpu")
    protocol = ProtocolSpec("only", algorithms or ("ring",), 1.0, 0.1, 0.5, 1.0)
    return CollectiveModel(
        dataclasses.replace(
            profile,
            server=server,
            network=network or NetworkSpec(10.0),
            supernode=supernode,
            protocols=(protocol,),
            measured=measured or MeasuredSpec(),
        )
    )


def seconds(model: CollectiveModel, kind: str, group: GroupShape, **options: int) -> float:
    return float(model.seconds(kind, B, group, **options))  # type: ignore[arg-type]


# --- a host whose devices share it -------------------------------------------------------------------


def test_devices_share_their_host() -> None:
    """Each has 100 B/s of its own; the host moves 400 B/s: a group of eight gets 50 each."""
    model = machine(server=LinkSpec(8, "shared", 100.0, host_bandwidth_bytes_per_s=400.0))
    assert [bus_bandwidth(model.profile, GroupShape(k)) for k in (2, 4, 8)] == [100, 100, 50]
    # Two groups of four at once fill it as one of eight does.
    assert seconds(model, "all_gather", GroupShape(4), concurrent=2) == pytest.approx(1 + 0.3 + 3 / 4 * B / 50)
    assert seconds(model, "all_gather", GroupShape(4), concurrent=1) == pytest.approx(1 + 0.3 + 3 / 4 * B / 100)
    assert seconds(model, "permute", GroupShape(4), concurrent=2) == pytest.approx(1 + 0.1 + B / 50)


def test_all_groups_of_a_mesh_work_at_once() -> None:
    model = machine(server=LinkSpec(8, "shared", 100.0, host_bandwidth_bytes_per_s=400.0))
    group = model.group((2, 4), (1,))
    assert group.concurrent == 2
    assert seconds(model, "all_gather", group) == seconds(model, "all_gather", GroupShape(4), concurrent=2)
    assert model.group((4,), (0,)).concurrent == 1
    assert group_on_mesh((4, 8), (0,), 8).concurrent == 8


def test_links_of_their_own_do_not_mind_other_groups() -> None:
    for model in (machine(), machine(server=MESH)):
        prices = {seconds(model, "all_reduce", GroupShape(2, 2), concurrent=c) for c in (1, 4)}
        assert len(prices) == 1


# --- rails -------------------------------------------------------------------------------------------


def test_rails_are_shared_by_the_groups_of_a_server() -> None:
    """Four rails of 10 B/s to a server of eight."""
    network = NetworkSpec(10.0, rails_per_server=4)
    assert [network.group_bandwidth(m) for m in (1, 2, 4, 8)] == [10, 20, 40, 40]
    # Eight groups of one device each: half a rail for each.
    assert network.group_bandwidth(1, 8) == 5
    assert network.group_bandwidth(4, 2) == 20
    model = machine(network=network)
    assert seconds(model, "all_gather", GroupShape(1, 4), concurrent=8) == pytest.approx(1 + 0.5 * 3 + 3 / 4 * B / 5)


def test_a_rail_for_each_device_is_as_without() -> None:
    every, stated = machine(), machine(network=NetworkSpec(10.0, rails_per_server=8))
    for group in (GroupShape(8, 2), GroupShape(1, 4, concurrent=8), GroupShape(2, 4, concurrent=4)):
        assert seconds(every, "all_reduce", group) == seconds(stated, "all_reduce", group)


def test_the_network_adds_its_latency_to_each_step_across() -> None:
    slow = machine(network=NetworkSpec(10.0, latency_s=2.0))
    assert seconds(slow, "all_gather", GroupShape(8, 4)) - seconds(
        machine(), "all_gather", GroupShape(8, 4)
    ) == pytest.approx(3 * 2.0)


# --- level by level ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "steps"), [("hierarchical_ring", 3), ("halving_doubling", 2), ("nonuniform_ring", 2)]
)
def test_levels_one_after_the_other(algorithm: Algorithm, steps: int) -> None:
    """Eight on each of four servers, a full mesh of 10 B/s inside, 10 B/s per device between."""
    model, group = machine(algorithm, server=MESH), GroupShape(8, 4)
    latency = 1 + 0.1 + steps * 0.5
    # Within the server each of seven links carries B/8 both ways; an eighth of B is reduced across.
    inside, across = B / 8 / 10, 3 / 4 * B / 8 / 10
    assert seconds(model, "all_reduce", group) == pytest.approx(2 * latency - 1 + 2 * inside + 2 * across)
    # A gather makes each server's quarter of B whole, then sends whole quarters.
    gathered = B / 4 / 8 / 10 + 3 / 4 * B / 10
    assert seconds(model, "all_gather", group) == pytest.approx(latency + gathered)
    assert seconds(model, "reduce_scatter", group) == pytest.approx(latency + gathered)


def test_pipelining_overlaps_the_levels() -> None:
    model, group = machine("pipeline", server=MESH), GroupShape(8, 4)
    assert seconds(model, "all_gather", group) == pytest.approx(1 + 0.1 + 3 * 0.5 + 31 / 32 * B / 70)


def test_halving_and_doubling_folds_what_exceeds_a_power_of_two() -> None:
    """Three servers: one hands its piece to another first, and gets the result at last."""
    model, group = machine("halving_doubling", server=MESH), GroupShape(1, 3)
    assert seconds(model, "all_reduce", group) == pytest.approx(1 + 2 * 2 * 0.5 + 2 * (1 / 2 + 1) * B / 10)
    uniform = machine("nonuniform_ring", server=MESH)
    assert seconds(uniform, "all_reduce", group) == pytest.approx(1 + 2 * 2 * 0.5 + 2 * 2 / 3 * B / 10)


# --- super-nodes -------------------------------------------------------------------------------------

SUPER = LinkSpec(32, "switch", 50.0, step_latency_s=0.3)


def test_a_super_node_lies_between_server_and_network() -> None:
    model = machine(supernode=SUPER)
    group = model.group((64,), (0,))
    assert (group.ranks_per_server, group.servers, group.supernodes) == (8, 8, 2)
    found = [(v.kind, v.parts, v.below, v.reached, v.bus_bytes_per_s) for v in levels_of(model.profile, group)]
    assert found == [
        ("server", 8, 1, 8, 100.0),
        ("supernode", 4, 8, 32, 400.0),
        ("network", 2, 32, 64, 320.0),
    ]
    # A ring of 64: 56 hops in servers, 6 in super-nodes, one between them.
    assert seconds(model, "all_gather", group) == pytest.approx(1 + 56 * 0.1 + 6 * 0.3 + 0.5 + 63 / 64 * B / 100)
    assert seconds(model, "permute", group) == pytest.approx(1 + 0.5 + B / 10)
    # Of a rank's B/64, half leaves the super-node at 10 B/s.
    assert seconds(model, "all_to_all", group) == pytest.approx(1 + 3 * 0.1 + 2 * 0.3 + 0.5 + 32 / 64 / 10 * B / 64)


def test_groups_inside_a_super_node_need_no_network() -> None:
    model = machine(supernode=SUPER)
    group = model.group((2, 32), (1,))
    assert (group.servers, group.supernodes) == (4, 1)
    assert [v.kind for v in levels_of(model.profile, group)] == ["server", "supernode"]
    assert seconds(model, "permute", group) == pytest.approx(1 + 0.3 + B / 50)


def test_facts_of_the_ascend_super_node() -> None:
    profile = load_profile("ascend-910c")
    assert (profile.devices_per_island, profile.devices_per_server, profile.devices_per_supernode) == (2, 16, 768)
    model = CollectiveModel(profile)
    kinds = [v.kind for v in levels_of(profile, model.group((1536,), (0,)))]
    assert kinds == ["island", "server", "supernode", "network"]
    dies, chips, servers = (model.group((3, 48, 8, 2), (axis,)) for axis in (3, 2, 1))
    prices = [seconds(model, "permute", group) for group in (dies, chips, servers)]
    assert prices == sorted(prices)


def test_seventy_two_devices_are_one_server_of_eighteen_hosts() -> None:
    for name in ("gb200", "gb300"):
        profile = load_profile(name)
        assert (profile.devices_per_server, profile.devices_per_host) == (72, 4)
        assert CollectiveModel(profile).group((72,), (0,)).servers == 1
    assert load_profile("b200").devices_per_host == 8


# --- what is measured --------------------------------------------------------------------------------


def test_measured_fractions_and_latency() -> None:
    measured = MeasuredSpec(2.0, 0.0, ((2, 0.5), (4, 0.8)), 0.25)
    model = machine(measured=measured)
    assert [measured.bandwidth_fraction(k) for k in (1, 2, 3, 4, 9)] == [0.5, 0.5, 0.5, 0.8, 0.8]
    assert seconds(model, "all_gather", GroupShape(4)) == pytest.approx(1 + 2 + 0.3 + 3 / 4 * B / 80)
    assert seconds(model, "all_to_all", GroupShape(4)) == pytest.approx(1 + 2 + 0.2 + 3 / 4 * B / 4 / (80 * 0.25))
    assert MeasuredSpec().bandwidth_fraction(8) == 1


def test_in_switch_reduction_from_a_number_of_ranks_on() -> None:
    server = LinkSpec(8, "switch", 10.0, in_switch_all_reduce_bytes_per_s=90.0, in_switch_least_ranks=5)
    model = machine("ring", "in_switch", server=server)
    assert seconds(model, "all_reduce", GroupShape(4)) == pytest.approx(1 + 0.6 + 2 * 3 / 4 * B / 10)
    assert seconds(model, "all_reduce", GroupShape(8)) == pytest.approx(1 + 0.1 + B / 90)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('topology = "switch"', 'topology = "shared"', "host_bandwidth_bytes_per_s goes with"),
        ('topology = "switch"', 'topology = "switch"\nhost_bandwidth_bytes_per_s = 1.0', "host_bandwidth_bytes_per_s"),
        ("[network]", "[measured]\nbandwidth_fraction_by_ranks = [[4, 0.5]]\n[network]", "by rising ranks"),
        ("[network]", "[measured]\nbandwidth_fraction_by_ranks = [[2, 1.5]]\n[network]", "less than or equal to 1"),
        (
            "[network]",
            '[nccl]\ngeneration = "hopper"\nwire = "nvlink"\nhost_cpu = "amd"\nchannels = 1\n[network]',
            "'nccl' or 'protocols', found both",
        ),
        (
            "[network]",
            '[supernode]\ndevices = 6\ntopology = "switch"\nbandwidth_bytes_per_s = 1.0\n[network]',
            "'supernode.devices': expected a multiple of server.devices = 4, found 6",
        ),
    ],
)
def test_defects_of_the_new_tables_are_named(old: str, new: str, message: str) -> None:
    assert old in MACHINE
    with pytest.raises(ProfileError, match=message):
        parse_profile(MACHINE.replace(old, new, 1))


def test_a_machine_needs_links_to_be_looked_at() -> None:
    profile: HardwareProfile = load_profile("alpha-beta")
    with pytest.raises(ValueError, match="expected the links of a machine, found none"):
        levels_of(profile, GroupShape(2))
