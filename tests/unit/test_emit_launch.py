"""Scripts that start PyTorch jobs, run with launchers that tell what they were told."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from planner.cli.main import main
from planner.emit.hosts import Device, Server
from planner.emit.launch import Hosts, hosts_of, launch_scripts
from planner.errors import InputError
from planner.planning import write_plan
from tests.unit.launcher_plans import plan

TELL = '#!/bin/bash\nprintf "%s\\n" "$@"\n'

# Starts one process of each of two hosts as OpenMPI would, which have no more of the environment than -x names.
MPIRUN = """#!/bin/bash
printf "%s\\n" "$@"
forward=()
while [ "$1" != bash ]; do
    if [ "$1" = -x ]; then case "$2" in *=*) forward+=("$2") ;; *) forward+=("$2=${!2}") ;; esac; fi
    shift
done
for rank in 0 2; do
    env -i "${forward[@]}" OMPI_COMM_WORLD_RANK=$rank OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=$((rank % 2)) \\
        OMPI_COMM_WORLD_LOCAL_SIZE=2 "$@"
done
"""
PYTHON = """#!/bin/bash
echo "rank $RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE, at $MASTER_ADDR:$MASTER_PORT: $*"
for name in TITAN_MODEL CUDA_DEVICE_MAX_CONNECTIONS PYTHONPATH; do
    if [ -n "${!name:-}" ]; then echo "$name=${!name}"; fi
done
"""


def launchers(folder: Path) -> Path:
    folder.mkdir()
    for name, text in (("torchrun", TELL), ("deepspeed", TELL), ("mpirun", MPIRUN), ("python", PYTHON)):
        (folder / name).write_text(text, encoding="utf-8")
        (folder / name).chmod(0o755)
    return folder


def run(folder: Path, script: str, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    tools = folder / "tools"
    path = launchers(tools) if not tools.exists() else tools
    return subprocess.run(
        ["bash", str(folder / script), *words],
        env={"PATH": f"{path}:{os.environ['PATH']}", **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd=folder.parent,
    )


def write(folder: Path, hosts: Hosts) -> Path:
    folder.mkdir(exist_ok=True)
    for name, content in launch_scripts(hosts).items():
        (folder / name).write_bytes(content)
    return folder


def test_mpirun_on_one_host_needs_nothing(tmp_path: Path) -> None:
    out = run(write(tmp_path / "o", Hosts(4, 4)), "run_mpirun.sh", "train.py", "a b").stdout.splitlines()
    assert out[:2] == ["-n", "4"]
    assert not {"-H", "--hostfile", "-mca"} & {*out}
    assert out[-2:] == [
        "rank 0 of 4, 0 of 2, at 127.0.0.1:29500: train.py a b",
        "rank 2 of 4, 0 of 2, at 127.0.0.1:29500: train.py a b",
    ]


def test_several_hosts_that_are_not_known_need_the_address_where_they_meet(tmp_path: Path) -> None:
    """Law: where each would meet by itself, at 127.0.0.1, none waits for others until a time is out."""
    from planner.emit.mindspore.launch import launch_scripts as of_mindspore

    folder = write(tmp_path / "o", Hosts(24, 8))
    scripts = of_mindspore(Hosts(24, 8), numbers=range(8), gpu=False, table=False)
    (folder / "run_msrun.sh").write_text(scripts["run_msrun.sh"], encoding="utf-8")
    launchers(folder / "tools")
    (folder / "tools" / "msrun").write_text(TELL, encoding="utf-8")
    (folder / "tools" / "msrun").chmod(0o755)
    for script, flag in (("run_torchrun.sh", "--master-addr"), ("run_msrun.sh", "--master_addr")):
        refused = run(folder, script, "train.py")
        assert refused.returncode != 0
        assert "MASTER_ADDR: set it to the address of the first host" in refused.stderr
        assert f"{flag}=10.0.0.9" in run(folder, script, "train.py", MASTER_ADDR="10.0.0.9").stdout.splitlines()


def test_mpirun_on_known_hosts_lists_their_slots_and_meets_at_the_first(tmp_path: Path) -> None:
    folder = write(tmp_path / "o", Hosts(4, 2, ("node-a", "10.0.0.2")))
    assert (folder / "hostfile").read_text(encoding="utf-8") == "node-a slots=2\n10.0.0.2 slots=2\n"
    done = run(folder, "run_mpirun.sh", "-m", "job", NCCL_SOCKET_IFNAME="eth 0")
    out = done.stdout.splitlines()
    assert out[out.index("-H") + 1] == "node-a:2,10.0.0.2:2"
    assert out[out.index("--map-by") + 1] == "slot"
    assert "NCCL_SOCKET_IFNAME=eth 0" in out
    assert out[out.index("-mca") + 1 : out.index("-mca") + 3] == ["btl_tcp_if_include", "eth 0"]
    assert out[-1] == "rank 2 of 4, 0 of 2, at node-a:29500: -m job"
    told = run(folder, "run_mpirun.sh", "x.py", NCCL_SOCKET_IFNAME="e", MASTER_ADDR="m", MASTER_PORT="1").stdout
    assert told.splitlines()[-1] == "rank 2 of 4, 0 of 2, at m:1: x.py"


def test_a_hostfile_takes_the_place_of_known_hosts(tmp_path: Path) -> None:
    hosts = tmp_path / "my hosts"
    hosts.write_text("# mine\n\n  h1 slots=2\nh2 slots=2\n", encoding="utf-8")
    for number, known in enumerate((Hosts(4, 2, ("a", "b")), Hosts(4, 2))):
        folder = write(tmp_path / str(number), known)
        out = run(folder, "run_mpirun.sh", "x.py", NCCL_SOCKET_IFNAME="e", HOSTFILE=str(hosts)).stdout.splitlines()
        assert out[out.index("--hostfile") + 1] == str(hosts)
        assert "-H" not in out
        assert out[-1].endswith("at h1:29500: x.py")


def test_an_ipv6_address_is_read_from_the_hostfile(tmp_path: Path) -> None:
    folder = write(tmp_path / "o", Hosts(4, 2, ("fd00::1", "fd00::2")))
    out = run(folder, "run_mpirun.sh", "x.py", NCCL_SOCKET_IFNAME="e").stdout.splitlines()
    assert out[out.index("--hostfile") + 1] == str(folder / "hostfile")


@pytest.mark.parametrize(
    ("hosts", "environment", "message"),
    [
        (Hosts(4, 2), {"NCCL_SOCKET_IFNAME": "e"}, "HOSTFILE: name a file of the hosts"),
        (Hosts(4, 2, ("a", "b")), {}, "NCCL_SOCKET_IFNAME: name the network interface"),
    ],
)
def test_several_hosts_need_their_names_and_the_network(
    tmp_path: Path, hosts: Hosts, environment: dict[str, str], message: str
) -> None:
    done = run(write(tmp_path / "o", hosts), "run_mpirun.sh", "x.py", **environment)
    assert done.returncode != 0
    assert message in done.stderr
    assert done.stdout == ""


def test_ranks_are_those_of_mpirun_alone(tmp_path: Path) -> None:
    done = run(write(tmp_path / "o", Hosts(4, 4)), "mpi_rank.sh", "true")
    assert done.returncode != 0
    assert "run_mpirun.sh starts this script" in done.stderr


def test_torchrun_meets_at_the_first_host(tmp_path: Path) -> None:
    folder = write(tmp_path / "o", Hosts(4, 2, ("a", "b")))
    out = run(folder, "run_torchrun.sh", "x.py", "a b", NODE_RANK="1").stdout.splitlines()
    assert out == ["--nnodes=2", "--nproc-per-node=2", "--node-rank=1", "--master-addr=a", "--master-port=29500",
                   "x.py", "a b"]  # fmt: skip
    folder = write(tmp_path / "p", Hosts(4, 4))
    out = run(folder, "run_torchrun.sh", "x.py").stdout.splitlines()
    assert out[:4] == ["--nnodes=1", "--nproc-per-node=4", "--node-rank=0", "--master-addr=127.0.0.1"]


def server(name: str, devices: int) -> Server:
    return Server(name, tuple(map(Device, range(devices))))


def test_devices_fill_hosts() -> None:
    made = plan("data")
    assert hosts_of(made, ()) == Hosts(8, 8)
    assert hosts_of(made, [server("a", 4), server("b", 4)]) == Hosts(8, 4, ("a", "b"))
    with pytest.raises(InputError, match="for 8 devices, the servers hold 12"):
        hosts_of(made, [server("a", 6), server("b", 6)])
    with pytest.raises(InputError, match="different numbers"):
        hosts_of(made, [server("a", 6), server("b", 2)])
    odd = made.model_copy(update={"cluster": made.cluster.model_copy(update={"devices_per_server": 3})})
    with pytest.raises(InputError, match="8 devices do not fill hosts of 3"):
        hosts_of(odd, ())
    unknown = made.model_copy(update={"cluster": made.cluster.model_copy(update={"devices_per_server": None})})
    assert hosts_of(unknown, ()) == Hosts(8, 8)


def test_stages_have_hosts_too() -> None:
    made = plan("data")
    staged = made.model_copy(update={"stages": [made.stages[0]] * 2})
    assert hosts_of(staged, ()) == Hosts(16, 8)


def emitted(folder: Path, target: str, name: str, *options: str) -> Path:
    folder.mkdir()
    write_plan(plan(name), folder / "plan.json")
    out = folder / "out"
    assert main(["emit", str(folder / "plan.json"), "--target", target, "--out", str(out), *options]) == 0
    return out


@pytest.fixture
def hosts(tmp_path: Path) -> Path:
    path = tmp_path / "hosts"
    path.write_text("node-a slots=4\nnode-b slots=4\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("target", ["dtensor", "torchtitan", "deepspeed", "megatron"])
def test_torch_targets_take_hosts(tmp_path: Path, target: str, hosts: Path) -> None:
    out = emitted(tmp_path / "p", target, "zero", "--hosts", str(hosts))
    assert (out / "hostfile").read_text(encoding="utf-8") == "node-a slots=4\nnode-b slots=4\n"
    for path in out.glob("*.sh"):
        assert subprocess.run(["bash", "-n", path], check=False).returncode == 0
    told = run(out, "run_torchrun.sh", "x.py").stdout.splitlines()
    assert "--master-addr=node-a" in told


def test_onnx_has_no_hosts(tmp_path: Path, hosts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_plan(plan("zero"), tmp_path / "plan.json")
    arguments = ["emit", str(tmp_path / "plan.json"), "--target", "onnx", "--model", "x", "--out", str(tmp_path / "o")]
    assert main([*arguments, "--hosts", str(hosts)]) == 2
    assert "megatron would); leave it out" in capsys.readouterr().err


def test_megatrons_script_gets_the_plans_arguments_before_the_users(tmp_path: Path) -> None:
    out = emitted(tmp_path / "p", "megatron", "tensor")
    told = run(out, "run_megatron.sh", "pretrain_gpt.py", "--num-layers", "2").stdout.splitlines()
    at = told.index("pretrain_gpt.py")
    assert told[at + 1 : at + 3] == ["--tensor-model-parallel-size", "4"]
    assert told[-2:] == ["--num-layers", "2"]
    told = run(out, "run_megatron.sh", "p.py", LAUNCHER="run_mpirun.sh").stdout.splitlines()
    assert told[-2].startswith("rank 2 of 4, 0 of 2, at 127.0.0.1:29500: p.py --tensor-model-parallel-size 4")
    assert told[-1] == "CUDA_DEVICE_MAX_CONNECTIONS=1"
    assert "pretraining script" in run(out, "run_megatron.sh").stderr


def test_torchtitans_script_starts_its_trainer_with_the_planned_job(tmp_path: Path) -> None:
    out = emitted(tmp_path / "p", "torchtitan", "zero")
    told = run(out, "run_torchtitan.sh", "--x", TITAN_MODEL="llama3", TITAN_CONFIG="llama3_8b").stdout.splitlines()
    assert told[-7:] == ["-m", "torchtitan.train", "--module", "planner_torchtitan", "--config", "planned", "--x"]
    mpi = {"LAUNCHER": "run_mpirun.sh", "TITAN_MODEL": "llama3", "TITAN_CONFIG": "llama3_8b"}
    assert run(out, "run_torchtitan.sh", **mpi).stdout.splitlines()[-2:] == ["TITAN_MODEL=llama3", f"PYTHONPATH={out}"]
    assert "TITAN_MODEL: name a model" in run(out, "run_torchtitan.sh").stderr


def test_deepspeeds_script_starts_its_launcher(tmp_path: Path, hosts: Path) -> None:
    out = emitted(tmp_path / "p", "deepspeed", "zero")
    told = run(out, "run_deepspeed.sh", "train.py", "--x").stdout.splitlines()
    assert told == ["--num_gpus", "8", "--master_port", "29500", "train.py", "--deepspeed", "--deepspeed_config",
                    str(out / "ds_config.json"), "--x"]  # fmt: skip
    out = emitted(tmp_path / "q", "deepspeed", "zero", "--hosts", str(hosts))
    told = run(out, "run_deepspeed.sh", "train.py").stdout.splitlines()
    assert told[:6] == ["--num_gpus", "4", "--hostfile", str(out / "hostfile"), "--num_nodes", "2"]
