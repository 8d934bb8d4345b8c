"""DeepSpeed itself on processes of a CPU: we read what it saves, and it goes on from what we write, on other numbers of
processes and under other stages of ZeRO."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner.checkpoint.source import Checkpoint, open_checkpoint
from planner.stored.arrays import Files
from planner.stored.copying import read_block
from planner.stored.moves import Held, without_repeats
from tests.checkpoint.test_transforming import moved

torch = pytest.importorskip("torch")
pytest.importorskip("deepspeed")
pytestmark = [pytest.mark.peer, pytest.mark.slow]

SCRIPT = Path(__file__).with_name("deepspeed_checkpoints.py")
ENVIRONMENT = {**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


def processes(folder: Path, count: int, **case: Any) -> tuple[list[int], str]:
    """(exit codes, what rank 0 printed) of a training on so many processes."""
    folder.mkdir(parents=True, exist_ok=True)
    told = folder / "case.json"
    told.write_text(json.dumps({"truth": str(folder / "truth.pt"), **case}), encoding="utf-8")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    running = []
    for rank in range(count):
        own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "MASTER_PORT": port}
        with (folder / f"log{rank}").open("w") as log:
            running.append(
                subprocess.Popen(
                    [sys.executable, str(SCRIPT), str(told)], stdout=log, stderr=log,
                    env={**ENVIRONMENT, "MASTER_ADDR": "127.0.0.1", **{k: str(v) for k, v in own.items()}},
                )
            )  # fmt: skip
    try:
        codes = [p.wait(400) for p in running]  # the first builds a library
    finally:
        for p in running:
            p.kill()
    return codes, (folder / "log0").read_text()


def trained(folder: Path, count: int, **case: Any) -> dict[str, Any]:
    codes, log = processes(folder, count, **case)
    assert codes == [0] * count, log[-4000:]
    found: dict[str, Any] = torch.load(folder / "truth.pt", weights_only=False)
    return found


def opened(place: Path) -> tuple[Checkpoint, dict[str, np.ndarray[Any, Any]]]:
    found = open_checkpoint(place, None)
    with Files() as files:
        return found, {
            n: read_block(Held(without_repeats(h.pieces), h.arrays, h.dtype, h.order), [(0, k) for k in h.shape], files)
            for n, h in found.tensors.items()
        }


def check_same(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Every bit of all that is wanted."""
    for name, value in wanted.items():
        assert found[name].shape == tuple(value.shape), name
        assert np.asarray(found[name]).tobytes() == value.detach().contiguous().numpy().tobytes(), name


CASES: dict[str, tuple[int, dict[str, Any]]] = {
    "1": (2, {"stage": 1}),
    "1, elastic": (2, {"stage": 1, "zero": {"elastic_checkpoint": True}}),
    "1, bf16, gradients in fp32": (
        2, {"stage": 1, "precision": "bf16", "config": {"data_types": {"grad_accum_dtype": "fp32"}}}
    ),
    "2": (3, {"stage": 2, "groups": 2}),
    "2, alone": (1, {"stage": 2}),
    "2, bf16, in turns": (
        4, {"stage": 2, "precision": "bf16", "groups": 2, "zero": {"round_robin_gradients": True}}
    ),
    "2, fp16": (2, {"stage": 2, "config": {"fp16": {"enabled": True, "initial_scale_power": 4}}}),
    "2, offloaded": (
        2, {"stage": 2, "zero": {"offload_optimizer": {"device": "cpu"}},
            "config": {"zero_force_ds_cpu_optimizer": False}}
    ),
    "3": (2, {"stage": 3}),
    "3, bf16, groups within groups": (3, {"stage": 3, "precision": "bf16", "groups": 2,
                                          "zero": {"sub_group_size": 60}}),
    "0, named": (2, {"stage": 0, "named": True}),
    "0, bf16, named": (2, {"stage": 0, "precision": "bf16", "named": True}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_deepspeed_saves_is_read_bit_by_bit(case: str, tmp_path: Path) -> None:
    count, options = CASES[case]
    told = trained(tmp_path, count, steps=2, save=str(tmp_path / "saved"), **options)
    found, arrays = opened(tmp_path / "saved")
    check_same(arrays, told["weights"])
    check_same(arrays, told["states"])
    seen = {n: v for n, v in told["buffers"].items() if v.dtype != torch.bfloat16}
    check_same(arrays, seen)
    assert {arrays[f"{n}.step"].item() for n in told["weights"]} == {3.0 if case == "0, bf16, named" else 2.0}
    assert arrays["head.weight"].tobytes() == arrays["embedding.weight"].tobytes() or options["stage"] == 0
    frozen = torch.linspace(-1, 1, 35).reshape(5, 7).to(getattr(torch, arrays["frozen"].dtype.name))
    np.testing.assert_array_equal(arrays["frozen"].astype(np.float32), frozen.float().numpy())
    assert (found.values["epoch"], arrays["rng"].shape) == (3, (8,))
    if options["stage"] and "fp32" not in case:  # of which its own tool says that it is none of ZeRO
        from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

        own = get_fp32_state_dict_from_zero_checkpoint(str(tmp_path / "saved"))
        check_same(arrays, {n: own[n] for n in told["weights"]})


@pytest.mark.parametrize("stage", [2, 3])
def test_universal_checkpoints_that_deepspeed_makes_are_read(stage: int, tmp_path: Path) -> None:
    told = trained(tmp_path, 3, stage=stage, steps=2, save=str(tmp_path / "saved"))
    done = subprocess.run(
        [sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal", "--input_folder",
         str(tmp_path / "saved/global_step2"), "--output_folder", str(tmp_path / "universal/step"),
         "--inject_missing_state"],
        env=ENVIRONMENT, capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    _, arrays = opened(tmp_path / "universal")
    check_same(arrays, told["weights"] | told["states"] | told["buffers"])
    assert {arrays[f"{n}.step"].item() for n in told["weights"]} == {2.0}


SOURCES = {"2": CASES["2"], "3": CASES["3, bf16, groups within groups"], "1, bf16": (2, {"stage": 1,
           "precision": "bf16"})}  # fmt: skip
INTO = [(1, 2), (2, 4), (3, 3)]  # stage, processes


@pytest.mark.parametrize("case", SOURCES)
def test_deepspeed_goes_on_from_what_we_write(case: str, tmp_path: Path) -> None:
    count, options = SOURCES[case]
    scheduled = {"scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.02, "warmup_num_steps": 10,
                                                              "warmup_type": "linear"}}}  # fmt: skip
    options = {**options, "config": {**options.get("config", {}), **scheduled}}
    told = trained(tmp_path / "a", count, steps=2, save=str(tmp_path / "saved"), **options)
    wanted = trained(tmp_path / "b", count, steps=3, **options)
    moved(tmp_path / "saved", None, tmp_path / "universal", None, format="deepspeed")
    for stage, processes_then in INTO:
        into = {**options, "stage": stage, "zero": {}}
        found = trained(
            tmp_path / f"into {stage}", processes_then, steps=1, load=str(tmp_path / "universal"), universal=True,
            **into,
        )  # fmt: skip
        for part in ("weights", "states"):
            assert set(found["loaded"][part]) == set(told[part])
            check_same({n: v.numpy() for n, v in found["loaded"][part].items()}, told[part])
        tolerance = 2e-6 if options.get("precision", "fp32") == "fp32" else 1e-2
        assert found["losses"][0] == pytest.approx(wanted["losses"][2], rel=tolerance)
        assert found["steps"] == 3
        assert sorted(set(found["rates"])) == pytest.approx(sorted(set(wanted["rates"])))
        assert found["client"]["epoch"] == 3
        assert found["client"]["rng"].shape == (8,)


def test_what_went_through_other_formats_goes_on_as_well(tmp_path: Path) -> None:
    told = trained(tmp_path / "a", 2, stage=3, steps=2, save=str(tmp_path / "saved"))
    wanted = trained(tmp_path / "b", 2, stage=3, steps=3)
    moved(tmp_path / "saved", None, tmp_path / "c.ckpt", None)  # MindSpore's, which counts steps once
    moved(tmp_path / "c.ckpt", None, tmp_path / "d", None, format="dcp")
    for stage, count, kind in ((2, 3, "deepspeed"), (3, 4, "deepspeed"), (3, 2, "deepspeed-zero3")):
        place = tmp_path / f"{kind} for {count}"
        moved(tmp_path / "d", None, place, None, format=kind)
        found = trained(tmp_path / f"into {count}", count, stage=stage, steps=1, load=str(place), universal=True)
        for part in ("weights", "states"):
            check_same({n: v.numpy() for n, v in found["loaded"][part].items()}, told[part])
        assert found["losses"][0] == pytest.approx(wanted["losses"][2], rel=2e-6)


@pytest.mark.parametrize("stage", [2, 3])
def test_weights_alone_begin_a_training(stage: int, tmp_path: Path) -> None:
    told = trained(tmp_path / "a", 2, stage=2, steps=2, save=str(tmp_path / "saved"))
    skip = ["*.exp_avg", "*.exp_avg_sq", "*.step"]
    moved(tmp_path / "saved", None, tmp_path / "weights", None, format="deepspeed", skip=skip)
    found = trained(
        tmp_path / "b", 2, stage=stage, steps=1, load=str(tmp_path / "weights"), universal=True, weights_only=True
    )
    check_same({n: v.numpy() for n, v in found["loaded"]["weights"].items()}, told["weights"])


def test_a_training_that_takes_it_for_another_kind_stops(tmp_path: Path) -> None:
    trained(tmp_path / "a", 2, stage=2, steps=1, save=str(tmp_path / "saved"))
    moved(tmp_path / "saved", None, tmp_path / "universal", None, format="deepspeed")
    for loose, message in ((False, "Missing key(s)"), (True, "DP world size of 0")):
        codes, log = processes(
            tmp_path / f"b {loose}", 2, stage=2, steps=1, load=str(tmp_path / "universal"), loose=loose
        )
        assert all(codes)
        assert message in log
