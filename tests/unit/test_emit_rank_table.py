"""Rank tables and launch scripts: what HCCL takes, the order of ranks, and what the scripts start."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from planner.emit.hosts import read_hosts
from planner.emit.launch import Hosts
from planner.emit.mindspore.launch import launch_scripts
from planner.emit.mindspore.rank_table import check_counts, check_servers, rank_table, read_rank_table
from planner.errors import InputError


def hosts(tmp_path: Path, text: str) -> Any:
    path = tmp_path / "hosts"
    path.write_text(text, encoding="utf-8")
    return read_hosts(path)


def line(server: str, net: int, count: int = 8, first: int = 0) -> str:
    devices = (f"{first + i}:192.{net}.{i}.6" if first else f"192.{net}.{i}.6" for i in range(count))
    return f"{server} {' '.join(devices)}\n"


def test_ranks_follow_the_servers_in_the_order_of_their_addresses_as_text(tmp_path: Path) -> None:
    servers = hosts(tmp_path, "# two servers\n" + line("10.0.0.9", 1) + "\n" + line("10.0.0.11", 2))
    table = rank_table(servers)
    assert table["version"] == "1.0"
    assert table["server_count"] == "2"
    assert [s["server_id"] for s in table["server_list"]] == ["10.0.0.11", "10.0.0.9"]  # "1" before "9"
    ranks = [d["rank_id"] for s in table["server_list"] for d in s["device"]]
    assert ranks == [str(r) for r in range(16)]
    path = tmp_path / "table.json"
    path.write_text(json.dumps(table), encoding="utf-8")
    assert {s.server_id for s in read_rank_table(path)} == {"10.0.0.9", "10.0.0.11"}


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_one_server_takes_a_power_of_two(tmp_path: Path, count: int) -> None:
    assert len(hosts(tmp_path, line("10.0.0.1", 1, count))[0].devices) == count


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "names no server"),
        (line("10.0.0.1", 1, 3), "has 3 devices; one server takes 1, 2, 4 or 8"),
        (line("10.0.0.1", 1, 4) + line("10.0.0.2", 2, 4), "each of several servers takes 8"),
        (line("10.0.0.1", 1) + line("10.0.0.1", 2), "server 10.0.0.1 is named twice"),
        (line("10.0.0.1", 1) + line("10.0.0.2", 1), "device 192.1.0.6 is named twice"),
        ("host 192.1.0.6\n", "hosts:1: expected an IP address, found 'host'"),
        (line("10.0.0.1", 1, 4, first=6), "expected distinct devices 0 to 7"),
    ],
)
def test_what_hccl_would_refuse_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_servers(hosts(tmp_path, text), "hosts")


@pytest.mark.parametrize("count", [3, 5, 6, 7])
def test_counts_that_hccl_refuses_are_refused_without_hosts_too(count: int) -> None:
    with pytest.raises(InputError, match=f"for 1 server of {count} Ascend devices; HCCL takes 1, 2, 4 or 8 devices"):
        check_counts(Hosts(count, count))


def test_several_servers_take_all_their_devices() -> None:
    for hosts in (Hosts(1, 1), Hosts(2, 2), Hosts(4, 4), Hosts(8, 8), Hosts(16, 16), Hosts(64, 8), Hosts(32, 16)):
        check_counts(hosts)
    with pytest.raises(InputError, match="for 4 servers of 4 Ascend devices; HCCL takes all 8 devices of each"):
        check_counts(Hosts(16, 4))


def test_devices_of_a_910a_stay_in_one_half(tmp_path: Path) -> None:
    servers = hosts(tmp_path, line("10.0.0.1", 1, 2, first=3))
    check_servers(servers, "x")
    with pytest.raises(InputError, match="both halves of an Ascend 910A"):
        check_servers(servers, "x", halves=True)
    check_servers(hosts(tmp_path, line("10.0.0.1", 1, 4, first=4)), "x", halves=True)
    check_servers(hosts(tmp_path, line("10.0.0.1", 1, 8)), "x", halves=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": "1.1"}, "expected version 1.0"),
        ({"status": "initializing"}, "expected status completed"),
        ({"server_count": "3"}, "does not count server_list"),
        ({"server_list": [{}, {}]}, "expected servers with a list of devices"),
    ],
)
def test_malformed_tables_are_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    table = rank_table(hosts(tmp_path, line("10.0.0.9", 1) + line("10.0.0.11", 2)))
    path = tmp_path / "table.json"
    path.write_text(json.dumps({**table, **change}), encoding="utf-8")
    with pytest.raises(InputError, match=message):
        read_rank_table(path)


def test_ranks_out_of_order_are_refused(tmp_path: Path) -> None:
    table = rank_table(hosts(tmp_path, line("10.0.0.9", 1) + line("10.0.0.11", 2)))
    first, second = table["server_list"]
    first["device"], second["device"] = second["device"], first["device"]
    path = tmp_path / "table.json"
    path.write_text(json.dumps(table), encoding="utf-8")
    with pytest.raises(InputError, match="has rank 8, expected 0"):
        read_rank_table(path)


def scripts(devices: int, addresses: Sequence[str] = (), gpu: bool = False) -> Any:
    hosts = Hosts(devices, min(8, devices), tuple(addresses))
    return launch_scripts(hosts, numbers=range(hosts.per_host), gpu=gpu, table=bool(addresses) and not gpu)


def test_scripts_are_those_that_the_cluster_needs() -> None:
    assert set(scripts(8)) == {"run_msrun.sh", "run_mpirun.sh"}
    assert set(scripts(8, ["10.0.0.1"])) == {"run_msrun.sh", "run_mpirun.sh", "run_rank_table.sh", "hostfile"}
    assert "run_cluster.sh" in scripts(16, ["10.0.0.1", "10.0.0.2"])
    gpu = scripts(16, ["10.0.0.1", "10.0.0.2"], gpu=True)
    assert set(gpu) == {"run_msrun.sh", "run_mpirun.sh", "hostfile"}
    assert "-H 10.0.0.1:8,10.0.0.2:8" in gpu["run_mpirun.sh"]
    assert "btl_tcp_if_include" in gpu["run_mpirun.sh"]
    assert "GRAPH_OP_RUN=1" in scripts(8)["run_mpirun.sh"]


def started(tmp_path: Path, files: Mapping[str, str], **more: str) -> subprocess.CompletedProcess[str]:
    """run_mpirun.sh, with an mpirun that tells what it was told."""
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    mpirun = tmp_path / "bin" / "mpirun"
    mpirun.parent.mkdir(exist_ok=True)
    mpirun.write_text('#!/bin/bash\nprintf "%s\\n" "$@"\n', encoding="utf-8")
    mpirun.chmod(0o755)
    (tmp_path / "train.py").touch()
    environment = {**os.environ, "PATH": f"{mpirun.parent}:{os.environ['PATH']}", "NCCL_SOCKET_IFNAME": "en5"}
    command = ["bash", "run_mpirun.sh", "train.py", "a b"]
    return subprocess.run(
        command, check=False, env=environment | more, cwd=tmp_path, capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize("gpu", [False, True])
def test_mpirun_reads_ipv6_addresses_from_the_hostfile(tmp_path: Path, gpu: bool) -> None:
    files = scripts(16, ["fe80::1", "fe80::2"], gpu)
    assert files["hostfile"] == "fe80::1 slots=8\nfe80::2 slots=8\n"
    told = started(tmp_path, files).stdout.splitlines()
    assert told[4:6] == ["--hostfile", str(tmp_path / "hostfile")]
    assert "-H" not in told


def test_mpirun_on_several_unknown_hosts_has_to_be_told_them(tmp_path: Path) -> None:
    done = started(tmp_path, scripts(16))
    assert done.returncode != 0
    assert "HOSTFILE: name a file of the hosts" in done.stderr
    assert "-H" not in started(tmp_path, scripts(8)).stdout.splitlines()


@pytest.mark.parametrize("gpu", [False, True])
@pytest.mark.parametrize("hostfile", [False, True])
def test_mpirun_is_told_the_hosts_or_the_hostfile(tmp_path: Path, gpu: bool, hostfile: bool) -> None:
    more = {"HOSTFILE": "my hosts"} if hostfile else {}
    told = started(tmp_path, scripts(16, ["10.0.0.1", "10.0.0.2"], gpu), **more).stdout.splitlines()
    expected = ["--hostfile", str(tmp_path / "my hosts")] if hostfile else ["-H", "10.0.0.1:8,10.0.0.2:8"]
    assert told[: 4 + len(expected)] == ["-n", "16", "-x", "PATH", *expected]
    assert told[-3:] == ["python", str(tmp_path / "train.py"), "a b"]
    assert ("NCCL_SOCKET_IFNAME=en5" in told) == gpu
    assert ("GRAPH_OP_RUN" in told) != gpu


def test_gpus_of_one_host_need_no_interface(tmp_path: Path) -> None:
    done = started(tmp_path, scripts(8, gpu=True), NCCL_SOCKET_IFNAME="")
    assert done.returncode == 0
    assert done.stdout.splitlines()[:4] == ["-n", "8", "-x", "PATH"]
    assert "btl_tcp_if_include" not in done.stdout
    assert "NCCL_SOCKET_IFNAME=en5" in started(tmp_path, scripts(8, gpu=True)).stdout.splitlines()
    several = started(tmp_path, scripts(16, ["a", "b"], gpu=True), NCCL_SOCKET_IFNAME="")
    assert several.returncode != 0
    assert "name the network interface" in several.stderr


def test_a_hostfile_counts_devices(tmp_path: Path) -> None:
    servers = hosts(tmp_path, "node-a slots=8\n192.168.0.1 slots=8 # the other\n")
    assert [(s.server_id, len(s.devices), s.addressed) for s in servers] == [
        ("node-a", 8, False),
        ("192.168.0.1", 8, False),
    ]
    with pytest.raises(InputError, match="needs the address of each device's NIC"):
        check_servers(servers, "hosts")
    for text, message in (
        ("a slots=0", "expected 1 to 1024"),
        ("a slots=x", "expected 1 to 1024"),
        ("a;rm slots=8", "expected a host's name or address"),
        ("-x slots=8", "expected a host's name or address"),
        ("fe80::1%$(id) slots=8", "expected a host's name or address"),
        ("fe80::1%`id` 192.1.0.6", "expected an IP address"),
        ("a slots=2\na slots=2", "named twice"),
    ):
        with pytest.raises(InputError, match=message):
            hosts(tmp_path, text)


@pytest.mark.parametrize("gpu", [False, True])
def test_scripts_are_bash(tmp_path: Path, gpu: bool) -> None:
    for name, text in scripts(16, ["10.0.0.1", "10.0.0.2"], gpu).items():
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        assert subprocess.run(["bash", "-n", path], check=False).returncode == 0


def test_the_loop_starts_every_device_with_its_rank(tmp_path: Path) -> None:
    (tmp_path / "run_rank_table.sh").write_text(scripts(4, ["10.0.0.1"])["run_rank_table.sh"], encoding="utf-8")
    (tmp_path / "train.py").write_text(
        "import os, sys\n"
        "print(os.environ['RANK_ID'], os.environ['DEVICE_ID'], os.environ['RANK_SIZE'], sys.argv[1],"
        " os.path.basename(os.environ['RANK_TABLE_FILE']))\n",
        encoding="utf-8",
    )
    environment = {**os.environ, "RANK_START": "8"}
    command = ["bash", str(tmp_path / "run_rank_table.sh"), "train.py", "--data=x y"]
    subprocess.run(command, check=True, env=environment, timeout=60, cwd=tmp_path)
    found = [(tmp_path / f"device{i}" / "train.log").read_text(encoding="utf-8").strip() for i in range(4)]
    assert found == [f"{8 + i} {i} 4 --data=x y rank_table.json" for i in range(4)]
    # From another folder the script is where the caller says, not where the scripts lie.
    caller = tmp_path / "caller"
    caller.mkdir()
    (caller / "own.py").write_text("print('own')\n", encoding="utf-8")
    subprocess.run(["bash", "../run_rank_table.sh", "own.py"], check=True, timeout=60, cwd=caller)
    assert (tmp_path / "device0" / "train.log").read_text(encoding="utf-8") == "own\n"


def test_the_loop_fails_where_a_rank_fails(tmp_path: Path) -> None:
    (tmp_path / "run_rank_table.sh").write_text(scripts(2, ["10.0.0.1"])["run_rank_table.sh"], encoding="utf-8")
    (tmp_path / "train.py").write_text("import os, sys\nsys.exit(3 * int(os.environ['RANK_ID']))\n", encoding="utf-8")
    done = subprocess.run(["bash", "run_rank_table.sh", "train.py"], check=False, timeout=60, cwd=tmp_path)
    assert done.returncode == 3
