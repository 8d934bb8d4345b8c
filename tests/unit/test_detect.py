"""The machine at hand, as programs in a folder of the test describe it: profiles, links, what is missing or broken."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.cli.commands import search
from planner.cost_models import load_profile
from planner.detect.amd import cards
from planner.detect.ascend import table
from planner.detect.found import Device
from planner.detect.machine import detect
from planner.detect.nvidia import topology
from planner.detect.profiles import profile_name
from planner.detect.tools import ask
from planner.requests.cluster import cluster_of
from tests.cli.command import run
from tests.unit.smi_outputs import MI300X, NO_DRIVER, NO_FIELD, RTX_5090, V100, npus, switched

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts a program on a PATH that has no other accelerator's: what it prints by its first argument, or a script."""
    for variable in ("CUDA_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin{os.pathsep}/bin")

    def put(name: str, script: str = "", **printed: str) -> None:
        lines = ["#!/bin/sh"]
        for word, text in printed.items():
            file = tmp_path / f"{name}.{word}"
            file.write_text(text)
            lines.append(f'case "$*" in *{word}*) exec cat "{file}";; esac')
        (tmp_path / name).write_text("\n".join([*lines, script, ""]))
        (tmp_path / name).chmod(0o755)

    return put


def gpus(count: int, name: str, mebibytes: int, driver: str = "550.54.15", *rest: str) -> str:
    return "".join(f"{', '.join([name, f'{mebibytes} MiB', driver, *rest])}\n" for _ in range(count))


def test_a_server_behind_nvswitch(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    listed = gpus(8, "NVIDIA H100 80GB HBM3", 81559, "535.129.03", "Disabled")
    install("nvidia-smi", query=listed, topo=switched(8, "NV18", adapters=9))
    assert run("hardware", "--detect") == 0
    assert capsys.readouterr().out.splitlines() == [
        "8 x NVIDIA H100 80GB HBM3, 79.6 GiB each, driver 535.129.03",
        f"  profile    h100: {load_profile('h100').description}",
        "  links      NVLink (18 links) between all pairs",
        "  network    9 adapters",
        "plan with    planner search MODEL --hardware h100 --devices 8",
    ]


def test_as_json(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install("nvidia-smi", query=gpus(8, "NVIDIA A800-SXM4-80GB", 81920), topo=switched(8, "NV8", adapters=1))
    assert run("hardware", "--detect", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    (device,) = document["devices"]
    assert device["profile"] == "a800"
    assert device["pairs"] == {"NV8": 28}
    assert document["options"] == ["--hardware", "a800", "--devices", "8"]
    assert [t["tool"] for t in document["tools"] if t["installed"]] == ["nvidia-smi"]


def test_an_old_driver_that_does_not_know_mig(install: Install) -> None:
    listed = gpus(8, "Tesla V100-SXM2-32GB", 32510, "418.67")
    refused = f'case "$*" in *mig*) cat <<"END"\n{NO_FIELD}END\nexit 2;; esac'
    install("nvidia-smi", f'{refused}\ncat <<"END"\n{listed}END', topo=V100)
    (kind,) = detect().kinds
    assert (kind.profile, kind.count) == ("v100", 8)
    assert kind.links is not None
    assert dict(kind.links.pairs) == {"NV1": 8, "NV2": 8, "SYS": 12}
    assert kind.notes == ()


def test_what_differs_from_the_profile_is_said(install: Install) -> None:
    install("nvidia-smi", query=gpus(2, "NVIDIA GeForce RTX 5090", 32607), topo=RTX_5090)
    (kind,) = detect().kinds
    assert (kind.profile, kind.notes) == ("rtx-5090", ())
    assert kind.links is not None
    assert kind.links.pairs == (("PHB", 1),)
    install("nvidia-smi", query=gpus(4, "NVIDIA H100 80GB HBM3", 81559, "570.1", "Enabled"), topo=switched(4, "PHB"))
    notes = " ".join(detect().kinds[0].notes)
    assert "MIG divides 4 of the 4 devices" in notes
    assert "this machine has none: communication takes longer" in notes
    install("nvidia-smi", query=gpus(1, "NVIDIA H200", 143771))
    assert "h200-one" in " ".join(detect().kinds[0].notes)


def test_devices_that_programs_are_not_given_are_said(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install("nvidia-smi", query=gpus(4, "NVIDIA L4", 23034), topo=switched(4, "PHB"))
    install("npu-smi", info=npus("25.2.0", "910B2", 2, "3197 / 65536"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,2")
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "0,1")
    gpu, npu = detect().kinds
    assert gpu.notes == ("CUDA_VISIBLE_DEVICES gives programs 2 of the 4 devices: plan with --devices 2",)
    assert npu.notes == ()


def test_several_kinds_of_devices_are_one_cluster(install: Install) -> None:
    listed = gpus(4, "NVIDIA A100-SXM4-80GB", 81920) + gpus(2, "Tesla V100-SXM2-16GB", 16160)
    install("nvidia-smi", query=listed, topo=switched(6, "SYS"))
    machine = detect()
    assert machine.options == ("--hardware", "a100-80:4+v100:2", "--devices", "6", "--memory-limit", "14GiB")
    parser = argparse.ArgumentParser()
    search.configure(parser)
    options = parser.parse_args(["model.onnx", *machine.options])
    cluster = cluster_of(options.hardware, options.devices, options.memory_limit, options.precision)
    assert [kind.devices for kind in cluster.kinds] == [4, 2]
    assert "the profile 31.7 GiB: plan with --memory-limit 14GiB" in " ".join(machine.kinds[1].notes)


def test_a_memory_that_is_not_the_profiles_is_among_the_options(install: Install) -> None:
    install("nvidia-smi", query=gpus(2, "NVIDIA A100-PCIE-40GB", 40960), topo=switched(2, "PHB"))
    machine = detect()
    assert machine.options == ("--hardware", "a100-pcie", "--devices", "2", "--memory-limit", "38GiB")
    assert "plan with --memory-limit 38GiB" in machine.kinds[0].notes[0]


def test_a_lost_device_is_no_device(install: Install) -> None:
    lost = ", ".join(["[GPU is lost]"] * 4)
    install("nvidia-smi", 'echo "no links"; exit 3', query=gpus(2, "NVIDIA L4", 23034) + lost)
    (kind,) = detect().kinds
    assert kind.count == 2
    assert kind.notes == (
        "nvidia-smi says of 1 more devices: GPU is lost",
        "nvidia-smi topo -m says nothing of the links between the devices: it ended with status 3 and said: no links",
    )
    install("nvidia-smi", query=lost)
    assert detect().reports[0].problem == "shows no device, but says: GPU is lost"
    install("nvidia-smi", query='"' + "x" * 200_000)
    assert detect().reports[0].problem == "shows no device"


def test_a_device_without_a_profile(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install("nvidia-smi", query=gpus(1, "NVIDIA GB10", 0).replace("0 MiB", "[N/A]"))
    assert run("hardware", "--detect") == 0
    out = capsys.readouterr().out
    assert "1 x NVIDIA GB10, driver 550.54.15" in out
    assert "planner calibrate" in out
    assert "plan with" not in out


def test_npus_of_three_versions(install: Install) -> None:
    install("npu-smi", info=npus("23.0.5.1", "910B3", 8, "3162 / 65536"))
    machine = detect()
    assert machine.options == ("--hardware", "ascend-910b3", "--devices", "8")
    assert machine.kinds[0].device == Device("ascend", "910B3", 65536 << 20, "23.0.5.1")
    assert machine.kinds[0].notes == ()
    install("npu-smi", info=npus("25.2.0", "910B4-1", 2, "3197 / 65536"))
    assert "the profile 32.0 GiB: plan with --memory-limit" in " ".join(detect().kinds[0].notes)
    install("npu-smi", info=npus("26.0.rc2", "Ascend910", 8, "3419 / 65536", dies=2))
    assert detect().options == ("--hardware", "ascend-910c", "--devices", "16")


def test_gpus_of_amd(install: Install) -> None:
    install("rocm-smi", showproductname=MI300X)
    (kind,) = detect().kinds
    assert kind.device == Device("amd", "AMD Instinct MI300X OAM", 206141652992, "6.8.5")
    assert (kind.profile, kind.count, kind.notes) == ("mi300x", 2, ())


def test_what_is_broken_is_said_with_what_to_do(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install("nvidia-smi", f'cat <<"END"\n{NO_DRIVER}END\nexit 9')
    install("rocm-smi", "echo no")
    assert run("hardware", "--detect") == 1
    out = capsys.readouterr().out
    assert "nvidia-smi ended with status 9 and said: NVIDIA-SMI has failed" in out
    assert "npu-smi    is not on the PATH" in out
    assert "rocm-smi   printed no JSON" in out
    assert "--hardware NAME" in out
    assert run("hardware", "h100", "--detect") == 2


def test_a_program_that_hangs_or_never_ends_is_killed(install: Install) -> None:
    install("hangs", "sleep 600 &\nwait")
    assert ask("hangs", limit_s=0.3).problem == "did not answer within 0.3 s"
    install("floods", "yes")
    assert ask("floods").problem == "printed more than 1 MiB"
    install("closes", "exec >&- 2>&-; sleep 600")
    assert ask("closes", limit_s=0.3).problem == "did not answer within 0.3 s"


@pytest.mark.parametrize(
    ("name", "gibibytes", "profile"),
    [
        ("A100-SXM4-40GB", 40, "a100-40"),  # drivers before 470 leave the maker out
        ("NVIDIA A100 80GB PCIe", 80, "a100-pcie"),
        ("NVIDIA H20-3e", 139, "h20"),
        ("NVIDIA H100 NVL", 94, None),
        ("NVIDIA H100 PCIe", 80, None),
        ("NVIDIA H800", 80, "h800"),
        ("NVIDIA L40S", 45, "l40s"),
        ("NVIDIA L40", 45, None),
        ("NVIDIA L4", 22, "l4"),
        ("NVIDIA A10G", 22, "a10g"),
        ("NVIDIA A10", 22, None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", 16, None),
        ("NVIDIA GeForce RTX 4090 D", 24, "rtx-4090"),
        ("NVIDIA GH200 480GB", 96, None),
        ("NVIDIA GB200", 186, "gb200"),
        ("NVIDIA B200", 180, "b200"),
    ],
)
def test_names_of_nvidia(name: str, gibibytes: int, profile: str | None) -> None:
    assert profile_name(Device("nvidia", name, gibibytes << 30, "550")) == profile


@pytest.mark.parametrize(
    ("name", "gibibytes", "profile"),
    [("910B", 32, "ascend-910a"), ("910ProB", 32, "ascend-910a"), ("910B", 64, "ascend-910b"), ("310P3", 24, None)],
)
def test_names_of_huawei(name: str, gibibytes: int, profile: str | None) -> None:
    assert profile_name(Device("ascend", name, gibibytes << 30, "24")) == profile


def test_npus_of_any_health_and_of_odd_tables() -> None:
    text = npus("25.2.0", "910B3", 2, "3162 / 65536")
    assert len(table(text.replace("OK", "NA", 1))) == 2
    assert table("| 0  " + "1_" * 5_000 + "!") == ()  # quickly


def test_warnings_behind_the_document_of_amd() -> None:
    assert cards("{odd}\n" + MI300X + "\nWARNING: {low} power") == cards(MI300X)


@settings(max_examples=40)
@given(st.text(alphabet='GPU0123XNVSY|/ \t\n{}:"card.AOK+=', max_size=200) | st.text(max_size=100))
def test_any_text_is_read_without_an_exception(text: str) -> None:
    topology(text)
    table(text)
    cards(text)
