"""`planner search --hardware NAME:COUNT+NAME:COUNT`: what it says, what it writes, and what it refuses by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner.builder import build
from planner.cli.main import main
from planner.requests.kinds import names_kinds

TWO = "h100:2+a100-80:2"
SIZES = {"layers": 8, "hidden": 2048, "heads": 16, "kv_heads": 16, "ffn": 4096, "vocab": 8192, "seq": 1024}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mixed") / "m.onnx"
    path.write_bytes(build("llama", {**SIZES, "batch": 64}).SerializeToString())
    return path


@pytest.fixture(scope="module")
def found(model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    """The document that is written, and the summary."""
    import contextlib
    import io

    folder, told = tmp_path_factory.mktemp("out"), io.StringIO()
    with contextlib.redirect_stdout(told):
        assert main(["search", str(model), "--devices", "4", "--hardware", TWO, "--out", str(folder)]) == 0
    return json.loads((folder / "configuration.json").read_text()), told.getvalue()


def test_the_document_says_which_stages_stand_where(found: tuple[dict[str, Any], str]) -> None:
    d, _ = found
    assert d["schema"] == "planner.mixed/1"
    assert d["plan"] is None
    assert (d["devices"], d["batch"], d["parallelism"]["pp"]) == (4, 64, len(d["stages"]))
    assert sum(s["layers"] for s in d["stages"]) == 8
    assert {k["hardware"]: k["devices"] for k in d["kinds"]} == {"h100": 2, "a100-80": 2}
    for kind in d["kinds"]:
        own = [s for s in d["stages"] if s["hardware"] == kind["hardware"]]
        assert sum(s["devices"] for s in own) == kind["devices"]
        assert max(s["peak_memory_bytes"] for s in own) == kind["peak_memory_bytes"] <= kind["memory_limit_bytes"]
    assert sum(d["step_parts_s"].values()) == pytest.approx(d["step_time_s"])
    assert 0 < d["step_time_lower_bound_s"] <= d["step_time_s"]
    assert d["gap"] == pytest.approx(1 - d["step_time_lower_bound_s"] / d["step_time_s"])
    assert d["tokens_per_s"] == pytest.approx(64 * 1024 / d["step_time_s"])


def test_mfu_is_against_the_sum_of_the_peaks(found: tuple[dict[str, Any], str]) -> None:
    d, _ = found
    assert d["mfu"] == pytest.approx(d["flops_per_s_per_device"] * 4 / (2 * 989e12 + 2 * 312e12))


def test_it_is_compared_with_each_kind_alone_and_with_homogeneous_assumptions(
    found: tuple[dict[str, Any], str],
) -> None:
    d, text = found
    told = {(c["what"], c["hardware"]): c["step_time_s"] for c in d["compared"]}
    assert list(told) == [
        ("alone", "h100"),
        ("alone", "a100-80"),
        ("all taken as the slowest, layers even", "a100-80"),
        ("this configuration, layers even", TWO),
    ]
    assert d["step_time_s"] < min(told.values())
    for words in (
        "2 x h100 alone",
        "2 x a100-80 alone",
        "all 4 treated as a100-80, equally many layers on every stage",
    ):
        assert words in text


def test_the_summary_says_it_in_words(found: tuple[dict[str, Any], str]) -> None:
    _, text = found
    assert "m: training on 2 x h100 + 2 x a100-80, batch 64, bf16" in text
    for words in ("stages      stage", "tokens/s", "MFU", "sum of all peaks", "h100 ", "bound       no pipeline"):
        assert words in text
    assert "no plan.json" in text


def test_the_same_request_gives_the_same_answer(
    model: Path, found: tuple[dict[str, Any], str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["search", str(model), "--devices", "4", "--hardware", TWO, "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    for document in (again, found[0]):
        document.pop("search_seconds")
    assert again == found[0]


def test_of_a_configuration_no_plan_is_read(
    model: Path, found: tuple[dict[str, Any], str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "configuration.json"
    path.write_text(json.dumps(found[0]))
    assert main(["verify", str(path), str(model)]) == 3
    assert "devices of several kinds, of which no plan is made yet" in capsys.readouterr().err


def test_where_one_kind_alone_is_faster_that_is_said(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two V100 hold two B200 up: even one layer of eight takes them longer than the others take for all."""
    arguments = ["--devices", "4", "--hardware", "b200:2+v100:2", "--precision", "fp16"]
    assert main(["search", str(model), *arguments]) == 0
    told = capsys.readouterr().out
    assert "FASTER" in told
    assert "advice      leave the others out: --hardware b200 --devices 2" in told


def test_where_all_taken_as_the_slowest_are_faster_that_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Convolutions that exchange little and make few layers: data parallelism leaves no bubble."""
    path = tmp_path / "m.onnx"
    path.write_bytes(build("resnet", {"batch": 256}).SerializeToString())
    assert main(["search", str(path), "--devices", "8", "--hardware", "h100:4+a100-80:4"]) == 0
    assert "advice      take all of them as a100-80: --hardware a100-80 --devices 8" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("hardware", "devices", "words"),
    [
        ("h100:2+a100-80:2", "8", "expected 4, since --hardware h100:2+a100-80:2 names so many in all"),
        ("h100:2+a100-80:2", "4,8", "expected 4"),
        ("h100:2+a100-80", "4", "expected NAME:COUNT in 'a100-80'"),
        ("h100:0+a100-80:2", "2", "expected NAME:COUNT in 'h100:0'"),
        ("h100:2+h100:2", "4", "names h100 twice; add its counts up"),
        ("h100:4", "4", "names one kind; write --hardware h100 --devices 4"),
        ("h100:1+h200:1+a100-80:1+v100:1+l40s:1", "5", "expected at most 4 kinds of devices, found 5"),
    ],
)
def test_clusters_are_refused_by_name(
    model: Path, hardware: str, devices: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["search", str(model), "--devices", devices, "--hardware", hardware]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("hardware", "words"),
    [("h100:2+nosuch:2", "expected one of"), ("h100:2+alpha-beta:2", "describes no device and links of its own")],
)
def test_profiles_are_refused_by_name(
    model: Path, hardware: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["search", str(model), "--devices", "4", "--hardware", hardware]) == 3
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    "options",
    [
        ["--mesh", "2x2"],
        ["--pin", "* x=m"],
        ["--strategy", "ddp"],
        ["--solver", "ilp"],
        ["--emit", "torch"],
        ["--target", "megatron"],
        ["--mode", "inference"],
        ["--space", "operators"],
        ["--nodes", "2"],
    ],
)
def test_options_without_a_meaning_are_refused_by_name(
    model: Path, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["search", str(model), "--devices", "4", "--hardware", TWO, *options]) == 2
    assert f"{options[0]}" in capsys.readouterr().err


def test_too_little_memory_is_said_by_kind(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--devices", "4", "--hardware", TWO, "--memory-limit", "100MiB"]
    assert main(["search", str(model), *arguments]) == 4
    told = capsys.readouterr().err
    assert "are too large for a device (memory of a device: h100 0.10 GiB, a100-80 0.10 GiB)" in told


def test_counts_that_leave_no_pipeline_are_refused(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of 7 and 4 devices stages would have one each, and the model has 8 layers."""
    assert main(["search", str(model), "--devices", "11", "--hardware", "h100:7+a100-80:4"]) == 5
    assert "at most 1 (the greatest common divisor of the counts)" in capsys.readouterr().err


def test_other_commands_know_one_kind(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(model), "--devices", "4", "--strategy", "ddp", "--hardware", TWO]) == 2
    assert "found a cluster of several kinds of devices, which `planner search` alone knows" in capsys.readouterr().err


def test_files_are_no_clusters(tmp_path: Path) -> None:
    path = tmp_path / "a+b:3"
    path.write_text("")
    assert not names_kinds(str(path))
    assert not names_kinds("h100")
    assert names_kinds("h100:8")
