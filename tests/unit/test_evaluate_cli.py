"""`planner evaluate MODEL --strategy`: text, document, file, refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner.builder import build
from planner.cli.main import main


def written(folder: Path, architecture: str, **sizes: Any) -> str:
    path = folder / f"{architecture}.onnx"
    path.write_bytes(build(architecture, sizes).SerializeToString())
    return str(path)


@pytest.fixture
def gpt(tmp_path: Path) -> str:
    return written(tmp_path, "gpt", layers=4, batch=16, seq=128, hidden=256, heads=4, vocab=1024)


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["evaluate", *arguments, "--json"]) == 0
    return dict(json.loads(capsys.readouterr().out))


def test_document_states_the_configuration_and_adds_up(gpt: str, capsys: pytest.CaptureFixture[str]) -> None:
    d = document(capsys, gpt, "--devices", "8", "--strategy", "megatron:tp=2,pp=2")
    assert (d["schema"], d["devices"], d["batch"], d["hardware"]) == ("planner.evaluation/1", 8, 16, "a100-80")
    assert sum(d["breakdown_s"].values()) == pytest.approx(d["step_time_s"])
    assert sum(d["memory_bytes"].values()) == pytest.approx(d["peak_memory_bytes"], abs=5)
    assert d["samples_per_s"] == pytest.approx(16 / d["step_time_s"])
    low, high = d["step_time_interval_s"]
    assert low <= d["step_time_s"] <= high
    assert d["fits"] is True
    for part in ("dp=2", "tp=2", "pp=2", "sp=true", "micro_batch=1"):
        assert part in d["configuration"]
    assert document(capsys, gpt, "--devices", "8", "--strategy", d["configuration"])["breakdown_s"] == d["breakdown_s"]


def test_text_gives_step_causes_and_memory(gpt: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", gpt, "--devices", "4", "--strategy", "zero3", "--hardware", "h100"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("zero3 on 4 x h100, batch 16\n")
    for word in (
        "configuration",
        "step",
        "80 % between",
        "samples/s",
        "computing",
        "gathered weights",
        "memory",
        "weights",
    ):
        assert word in out


def test_out_writes_the_same_document(gpt: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "a" / "b"
    d = document(capsys, gpt, "--devices", "4", "--strategy", "ddp", "--out", str(folder))
    assert json.loads((folder / "evaluation.json").read_text(encoding="utf-8")) == d


def test_batch_may_differ_from_the_models(gpt: str, capsys: pytest.CaptureFixture[str]) -> None:
    own, twice = (document(capsys, gpt, "--devices", "4", "--strategy", "ddp", "--batch", n) for n in ("16", "32"))
    assert (own["batch"], twice["batch"]) == (16, 32)
    assert twice["step_time_s"] >= own["step_time_s"]  # equal where the host sets the pace
    assert twice["memory_bytes"]["activations"] == pytest.approx(2 * own["memory_bytes"]["activations"], rel=0.01)


def test_memory_limit_decides_whether_it_fits(gpt: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (gpt, "--devices", "4", "--strategy", "ddp", "--memory-limit", "10MiB")
    assert main(["evaluate", *arguments, "--json"]) == 4
    d = json.loads(capsys.readouterr().out)
    assert (d["fits"], d["memory_limit_bytes"]) == (False, 10 * 2**20)
    assert main(["evaluate", *arguments]) == 4
    assert "DOES NOT FIT" in capsys.readouterr().out


@pytest.mark.parametrize("strategy", ["ddp", "zero1", "zero2", "zero3", "fsdp", "hsdp:shard=2"])
def test_residual_network_under_every_data_parallel_scheme(
    strategy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = written(tmp_path, "resnet", layers=18, batch=32, image=64)
    d = document(capsys, model, "--devices", "4", "--strategy", strategy, "--precision", "fp16")
    parameters = 11_689_512  # torchvision's ResNet-18
    weights = {"zero3": 4, "fsdp": 4, "hsdp:shard=2": 2}.get(strategy, 1)
    assert d["memory_bytes"]["weights"] == pytest.approx(2 * parameters / weights, abs=1)
    assert d["breakdown_s"]["tensor_collectives"] < 1e-4  # the mean of the loss alone


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("MISSING", "--devices", "4", "--strategy", "ddp"), 3, ("no such file", "absent.onnx")),
        (("MODEL", "--strategy", "ddp"), 2, ("--devices",)),
        (("MODEL", "--devices", "4", "--strategy", "ddp", "--batch", "6"), 2, ("multiple of dp=4", "found 6")),
        (("MODEL", "--devices", "6", "--strategy", "ddp"), 2, ("multiple of dp=6", "found 16")),
        (("MODEL", "--devices", "16", "--strategy", "megatron:pp=16"), 2, ("16 chunks", "4 layers")),
        (("MODEL", "--devices", "4", "--strategy", "alpa"), 2, ("ddp, zero1", "'alpa'")),
        (("MODEL", "--devices", "4", "--strategy", "ddp", "--hardware", "abacus"), 3, ("abacus",)),
    ],
)
def test_refusals_name_what_is_wrong(
    gpt: str, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], status: int, words: tuple[str, ...]
) -> None:
    names = {"MODEL": gpt, "MISSING": "absent.onnx"}
    assert main(["evaluate", *(names.get(a, a) for a in arguments)]) == status
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("planner evaluate: error: ")
    assert all(w in err for w in words), err


@pytest.mark.parametrize("what", [(), ("--strategy", "ddp", "--plan", "plan.json")])
def test_exactly_one_of_strategy_and_plan(gpt: str, what: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as e:
        main(["evaluate", gpt, "--devices", "4", *what])
    assert e.value.code == 2


def test_a_configuration_and_a_plan_of_it_do_as_much_a_second(
    gpt: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Samples, tokens, operations and MFU are those of the search, and without a model the one beside the plan is
    read."""
    asked = ("--devices", "4", "--strategy", "megatron:pp=2")
    known = document(capsys, gpt, *asked)
    assert main(["search", gpt, *asked, "--out", str(tmp_path / "plan"), "--json", "--no-cache"]) == 0
    found = json.loads(capsys.readouterr().out)
    priced = document(capsys, "--plan", str(tmp_path / "plan"))
    assert known["in_words"] == priced["in_words"] == found["in_words"]
    for key in ("samples_per_s", "tokens_per_s", "flops_per_s_per_device", "mfu"):
        assert known[key] == pytest.approx(found[key], rel=1e-12)
        assert priced[key] == pytest.approx(found[key], rel=1e-12)
    assert main(["evaluate", "--devices", "4", "--strategy", "ddp"]) == 2
    assert "missing MODEL" in capsys.readouterr().err
    assert main(["evaluate", "--plan", str(tmp_path / "plan"), "--batch", "17"]) == 2
    assert "micro-batches do not divide it" in capsys.readouterr().err


def test_frozen_weights_are_two_passes_of_work(gpt: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No gradients of weights are computed."""
    strategy = "megatron:dp=4,frozen="
    trained, frozen = (
        document(capsys, gpt, "--devices", "4", "--strategy", f"{strategy}{x}") for x in ("false", "true")
    )
    done = {name: d["flops_per_s_per_device"] * d["step_time_s"] for name, d in (("all", trained), ("less", frozen))}
    assert done["less"] == pytest.approx(done["all"] * 2 / 3)
    asked = ["--devices", "4", "--strategy", f"{strategy}true", "--no-cache", "--json"]
    assert main(["search", gpt, *asked, "--out", str(tmp_path / "plan")]) == 0
    found = json.loads(capsys.readouterr().out)
    priced = document(capsys, "--plan", str(tmp_path / "plan"))
    assert found["mfu"] == priced["mfu"] == pytest.approx(frozen["mfu"], rel=1e-12)
