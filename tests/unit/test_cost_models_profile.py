"""Profiles: every packaged one loads and is sourced; every defect is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.accuracy.profiles import lent_values
from planner.cost_models import (
    CollectiveModel,
    GroupShape,
    ProfileError,
    UnknownProfileError,
    alpha_beta_profile,
    load_profile,
    profile_names,
)
from planner.cost_models.profile import parse_profile

MACHINE = """
name = "toy"
description = "a machine of round numbers"
[device]
memory_bytes = 1_000
memory_bandwidth_bytes_per_s = 1.0e12
memory_efficiency = 1.0
matmul_flops_per_s = {fp32 = 1.0e12}
vector_flops_per_s = {fp32 = 1.0e11}
matmul_efficiency = 1.0
convolution_efficiency = 1.0
attention_efficiency = 1.0
vector_efficiency = 1.0
matrix_launch_latency_s = 1.0e-6
vector_launch_latency_s = 1.0e-6
compute_units = 10
tile_rows = 10
tile_columns = 10
tile_depth = 10
[allocator]
reserve_bytes = 100
[server]
devices = 4
topology = "switch"
bandwidth_bytes_per_s = 1.0e10
[network]
bandwidth_bytes_per_s = 1.0e9
[[protocols]]
name = "only"
algorithms = ["ring"]
base_latency_s = 0.0
server_step_latency_s = 1.0e-6
network_step_latency_s = 1.0e-5
bandwidth_fraction = 1.0
[sources]
device = "assumed: round"
allocator = "assumed: round"
server = "assumed: round"
network = "assumed: round"
protocols = "assumed: round"
"""

ISLAND = """
[island]
devices = 3
topology = "switch"
bandwidth_bytes_per_s = 1.0
"""


@pytest.mark.parametrize("name", profile_names())
def test_packaged_profiles_load(name: str) -> None:
    profile = load_profile(name)
    assert profile.name == name
    assert profile.description
    assert all(len(note) > 10 for note in profile.sources.values())
    assert profile is load_profile(name)


def test_the_machines_asked_for_are_packaged() -> None:
    assert {"a100-80", "h100", "ascend-910a", "ascend-910b", "alpha-beta"} <= set(profile_names())
    assert {"h20", "h800", "a800", "rtx-4090", "rtx-5090", "l4", "a10g", "l40s", "mi300x"} <= set(profile_names())


def test_machines_of_one_silicon_differ_in_their_links_alone() -> None:
    """H800 and A800 are H100 and A100 with 8 NVLinks; H20 has all of H200's."""
    for cut, whole, links in (("h800", "h100", 8 / 18), ("a800", "a100-80", 8 / 12), ("h20", "h200", 1)):
        few, all_of_them = load_profile(cut), load_profile(whole)
        assert few.server is not None
        assert all_of_them.server is not None
        bandwidth, most = few.server.bandwidth_bytes_per_s, all_of_them.server.bandwidth_bytes_per_s
        assert bandwidth == pytest.approx(most * links)
        assert few.device is not None
        assert all_of_them.device is not None
        if cut != "h20":
            assert few.device.matmul_flops_per_s["bf16"] == all_of_them.device.matmul_flops_per_s["bf16"]
            assert few.device.memory_bandwidth_bytes_per_s == all_of_them.device.memory_bandwidth_bytes_per_s


def test_all_reduces_of_an_mi300x_server_are_those_that_were_measured() -> None:
    """Bus bandwidths of 4 GiB over two and eight devices, stas00/ml-engineering@744d01e1:network/README.md."""
    model, size = CollectiveModel(load_profile("mi300x")), float(4 << 30)
    for ranks, measured in ((2, 47.671e9), (8, 312.912e9)):
        seconds = float(model.seconds("all_reduce", size, GroupShape(ranks)))
        assert 2 * (ranks - 1) / ranks * size / seconds == pytest.approx(measured, rel=0.01)


def test_machines_without_measured_steps_have_wide_intervals_and_are_lent_none() -> None:
    fits = {"h100": {"device.memory_efficiency": 0.6, "prediction.spread": 0.05}}
    assert lent_values("h200", fits)["prediction.spread"] == pytest.approx(0.05)
    for name in ("h800", "h20", "rtx-5090"):
        assert load_profile(name).prediction.spread == 0.15
        assert lent_values(name, fits) == {"device.memory_efficiency": pytest.approx(0.6)}
    assert lent_values("mi300x", fits) == {}


def test_facts_of_the_ascend_servers() -> None:
    a, b = load_profile("ascend-910a"), load_profile("ascend-910b")
    assert (a.devices_per_server, a.devices_per_island) == (8, 4)
    assert b.devices_per_island is None
    assert b.server is not None
    # 7 links of 28 GB/s: a pair has one of them, all eight devices seven.
    assert [b.server.bus_bandwidth(k) for k in (2, 4, 8)] == [28e9, 84e9, 196e9]


def test_bandwidth_by_ranks_is_a_step_function() -> None:
    server = load_profile("v100").server
    assert server is not None
    assert [server.bus_bandwidth(k) for k in (2, 4, 8, 16)] == [22.55e9, 85.36e9, 134.5e9, 134.5e9]


def test_alpha_beta_has_no_machine() -> None:
    profile = load_profile("alpha-beta")
    assert profile.compute_is_free
    assert profile.heavy_operators_must_split
    assert profile.memory_bytes is None
    assert profile.devices_per_server is None
    assert alpha_beta_profile([1, 1], [1, 0.1]).digest == profile.digest


def test_the_digest_of_a_profile_stays_where_it_prices_as_before() -> None:
    """Plans name the digest of the profile that they were made with."""
    assert load_profile("a100-80").digest == "d65c70ce72049b6678fb8e333e29d5dccb4c75a09df0a7d71538e956cd544356"


def test_digest_is_of_the_values_alone() -> None:
    toy = parse_profile(MACHINE)
    assert parse_profile(MACHINE.replace("assumed: round", "assumed: still round")).digest == toy.digest
    assert parse_profile(MACHINE.replace("1.0e9", "1_000_000_000")).digest == toy.digest
    assert parse_profile(MACHINE.replace("1.0e9", "2.0e9")).digest != toy.digest


OLD = {
    "reserve_bytes = 100": "[allocator]\nreserve_bytes = 100",
    "allocator_slack = 0.1": "[allocator]\nslack = 0.1",
    "collective_interference = 0.5": "[framework]\ncollective_interference = 0.5",
    "dispatch_interval_s = 1e-5": "[host]\ndispatch_interval_s = 1e-5",
    "step_overhead_s = 1e-3": "[host]\nstep_overhead_s = 1e-3",
    "handover_s = 1e-4": "[host]\nhandover_s = 1e-4",
    "host_link_bytes_per_s = 1e9": "[host]\nlink_bytes_per_s = 1e9",
    "prediction_spread = 0.2": "[prediction]\nspread = 0.2",
}


@pytest.mark.parametrize("old", OLD)
@pytest.mark.parametrize("noted", [True, False])
def test_files_that_put_everything_into_the_device_read_as_before(old: str, noted: bool) -> None:
    """`noted`: the value has a note of its own, and is not covered by that of its table."""
    bare = MACHINE.replace("[allocator]\nreserve_bytes = 100\n", "").replace('allocator = "assumed: round"\n', "")
    if not old.startswith("reserve"):
        bare = bare.replace("memory_bytes = 1_000\n", "memory_bytes = 1_000\nreserve_bytes = 100\n")
    key, new = old.split(" ")[0], OLD[old]
    place, name = new.partition("]")[0][1:], new.split("\n")[1].split(" ")[0]
    before = bare.replace("memory_bytes = 1_000\n", f"memory_bytes = 1_000\n{old}\n")
    after = bare.replace("[server]", f"{new}\n[server]")
    before += f'"device.{key}" = "derived: here"\n' if noted else ""
    after += f'"{place}.{name}" = "{"derived: here" if noted else "assumed: round"}"\n'
    assert parse_profile(before) == parse_profile(after)
    assert parse_profile(before).digest == parse_profile(after).digest
    assert parse_profile(before).sources == parse_profile(after).sources
    twice = after.replace("memory_bytes = 1_000\n", f"memory_bytes = 1_000\n{old}\n")
    with pytest.raises(ProfileError, match=rf"device\.{key}"):
        parse_profile(twice)


def test_what_a_device_keeps_for_itself_has_to_be_said() -> None:
    """Without it the whole memory would be the limit of plans."""
    bare = MACHINE.replace("[allocator]\nreserve_bytes = 100\n", "").replace('allocator = "assumed: round"\n', "")
    with pytest.raises(ProfileError, match=r"'allocator\.reserve_bytes'.*found nothing"):
        parse_profile(bare)


def test_assumptions_are_listed() -> None:
    assert parse_profile(MACHINE).assumptions == ("device", "allocator", "server", "network", "protocols")


def test_reading_from_a_path(tmp_path: Path) -> None:
    path = tmp_path / "toy.toml"
    path.write_text(MACHINE, encoding="utf-8")
    assert load_profile(path).name == "toy"
    assert load_profile(str(path)) == load_profile(path)


def test_unknown_name_lists_the_known() -> None:
    with pytest.raises(UnknownProfileError, match=r"'a10'.*a100-80.*ascend-910b"):
        load_profile("a10")


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="readable TOML file"):
        load_profile(tmp_path / "none.toml")
    with pytest.raises(ProfileError, match="readable TOML file"):
        load_profile("a\0b.toml")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("devices = 4", "devices = 'four'", r"'server\.devices'.*expected.*integer.*found 'four'"),
        ("devices = 4", "devices = 0", r"'server\.devices'.*greater than or equal to 1.*found 0"),
        ("memory_bytes = 1_000\n", "", r"'device\.memory_bytes'.*found nothing"),
        ("memory_efficiency = 1.0", "memory_efficiency = 1.5", r"'device\.memory_efficiency'.*found 1\.5"),
        ("memory_efficiency = 1.0", "memory_efficiency = nan", r"'device\.memory_efficiency'"),
        ("memory_efficiency = 1.0", "memory_efficiency = '1'", r"'device\.memory_efficiency'"),
        ("fp32 = 1.0e12", "fp31 = 1.0e12", r"matmul_flops_per_s.*fp31"),
        ('topology = "switch"', 'topology = "torus"', r"'server\.topology'.*found 'torus'"),
        ('topology = "switch"', 'topology = "table"', r"bandwidth_by_ranks_bytes_per_s"),
        ("bandwidth_bytes_per_s = 1.0e10\n", "", r"bandwidth_bytes_per_s is required"),
        ("tile_depth = 10", "tile_depth = 10\ncolour = 1", r"colour"),
        ('network = "assumed: round"', "", r"'network\.bandwidth_bytes_per_s'.*source.*found none"),
        ('network = "assumed: round"', 'network = "x"\nnet = "y"', r"'sources\.net'"),
        ("[network]\nbandwidth_bytes_per_s = 1.0e9", "", r"found no 'network'"),
        ('["ring"]', '["tree"]', r"'ring' or 'mesh'"),
        ('["ring"]', '["star"]', r"algorithms"),
        ("[device]", "[device", r"expected TOML"),
        ("[sources]", "[axes]\nalpha=[1]\nbeta=[1]\n[sources]\naxes='x'", r"either the table 'axes' or the links"),
        ("[network]", f"{ISLAND}[network]", r"'island\.devices'.*a divisor of server\.devices = 4, found 3"),
    ],
)
def test_defects_are_named(old: str, new: str, message: str) -> None:
    assert old in MACHINE
    with pytest.raises(ProfileError, match=rf"(?s)hardware profile 'toy'.*{message}"):
        parse_profile(MACHINE.replace(old, new, 1), origin="toy")


def test_hostile_toml_is_refused() -> None:
    with pytest.raises(ProfileError, match="expected TOML"):
        parse_profile("a = " + "[" * 100_000)
    with pytest.raises(ProfileError, match="memory_bytes"):
        parse_profile(MACHINE.replace("memory_bytes = 1_000", f"memory_bytes = 1{'0' * 400}"))
    with pytest.raises(ProfileError, match="bandwidth_bytes_per_s"):
        parse_profile(MACHINE.replace("1.0e9", f"1{'0' * 400}"))


def test_alpha_and_beta_need_one_value_per_axis() -> None:
    with pytest.raises(ProfileError, match="one value per mesh axis each, found 2 and 1"):
        alpha_beta_profile([1, 1], [1])
    with pytest.raises(ProfileError, match=r"axes\.beta"):
        alpha_beta_profile([1], [-1])
