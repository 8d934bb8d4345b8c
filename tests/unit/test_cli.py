"""The command line as its users meet it: results, files, exit statuses, messages."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from planner.cli.main import main
from planner.errors import UsageError
from planner.requests.values import bindings, byte_size
from tests.unit.frontends_models import INT64, node, serialised, value
from tests.unit.semantics_model import transformer

SEARCH_KEYS = {
    "plan", "devices", "mesh", "batch", "objective_s", "objective_lower_bound_s", "gap", "step_time_s", "status",
    "peak_memory_bytes", "memory_limit_bytes", "search_seconds", "operators",
    "operators_replicated_for_want_of_a_rule", "collectives", "solver", "step_time_lower_bound_s", "parallelism",
    "tokens_per_s", "mfu",
}  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "transformer.onnx"
    path.write_bytes(transformer())
    return path


def run(*arguments: object) -> int:
    """Exit status; argparse leaves by an exception."""
    try:
        return main([str(a) for a in arguments])
    except SystemExit as e:
        return int(e.code or 0)


def search(model: Path, folder: Path, capsys: pytest.CaptureFixture[str], *extra: object) -> dict[str, object]:
    assert run("search", model, "--out", folder, "--json", *extra) == 0
    return json.loads(capsys.readouterr().out)


def test_search_writes_a_plan_that_verifies(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = search(model, tmp_path, capsys, "--devices", 4)
    assert found.keys() >= SEARCH_KEYS
    assert found["objective_s"] == found["objective_lower_bound_s"]
    assert 0 <= found["gap"] < 1  # type: ignore[operator]  # a number
    assert sum(found["step_parts_s"].values()) == pytest.approx(found["step_time_s"])  # type: ignore[attr-defined]
    assert found["operators_replicated_for_want_of_a_rule"] == []
    assert run("verify", found["plan"], model, "--json") == 0
    verdict = json.loads(capsys.readouterr().out)
    assert verdict["ok"]
    assert verdict["devices"] == 4
    assert verdict["checked"] == ["forward", "gradients"]
    assert verdict["max_error"] < 1e-5
    assert json.loads(Path(str(found["plan"])).read_text())["verification"] == "full"


@pytest.mark.parametrize(
    ("strategy", "degrees"),
    [
        ("megatron:tp=2,pp=2,zero=1,micro_batch=1", {"dp": 2, "tp": 2, "pp": 2, "zero": 1, "schedule": "1f1b"}),
        ("fsdp", {"dp": 8, "tp": 1, "pp": 1, "zero": 3, "schedule": "none", "micro_batches": 1}),
        (None, {"tp": 1, "pp": 1, "cp": 1, "ep": 1, "recompute": "none"}),
    ],
)
def test_the_degrees_of_a_plan_are_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], strategy: str | None, degrees: dict[str, object]
) -> None:
    llama = Path(__file__).parents[2] / "sample_graphs" / "llama_tiny.onnx"
    found = search(llama, tmp_path, capsys, "--devices", 8, *([] if strategy is None else ["--strategy", strategy]))
    stated = found["parallelism"]
    assert isinstance(stated, dict)
    assert degrees.items() <= stated.items(), stated
    assert all(isinstance(stated[n], int) for n in ("dp", "tp", "pp", "cp", "ep", "zero", "micro_batches"))
    assert 0 < stated["share"] <= 1


def test_equal_searches_write_equal_bytes(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plans = []
    for name in ("a", "b"):
        found = search(model, tmp_path / name, capsys, "--devices", 8, "--reproducible")
        plans.append(Path(str(found["plan"])).read_bytes())
    assert plans[0] == plans[1]


def test_both_solvers_find_the_same_objective(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    objectives = {
        solver: search(model, tmp_path, capsys, "--devices", 2, "--solver", solver)["objective_s"]
        for solver in ("dp", "ilp", "auto")
    }
    assert len(set(objectives.values())) == 1


def test_a_tampered_plan_is_refused_or_fails(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Dropping one gradient reduction must not go unnoticed."""
    found = search(model, tmp_path, capsys, "--devices", 4, "--mesh", "2x2", "--hardware", "alpha-beta")
    path = Path(str(found["plan"]))
    plan = json.loads(path.read_text())
    moves = [r for r in plan["redistributions"] if r["direction"] == "gradient" and r["tensor"] in plan["parameters"]]
    assert moves, "operators must split under this profile, so parameter gradients are reduced"
    plan["redistributions"].remove(moves[0])
    path.write_text(json.dumps(plan))
    assert run("verify", path, model) == 1
    said = capsys.readouterr().out
    assert said.startswith("FAILED")
    assert "where it is stored" in said


def test_memory_limit_too_small_names_one_that_suffices(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("search", model, "--devices", 2, "--memory-limit", "4kB", "--out", tmp_path) == 4
    message = capsys.readouterr().err
    sufficient = int(message.split(" bytes) suffices")[0].rsplit("(", 1)[1])
    bound = int(message.split(" bytes), as is proven")[0].rsplit("(", 1)[1])
    assert bound <= sufficient
    found = search(model, tmp_path, capsys, "--devices", 2, "--memory-limit", f"{sufficient}B")
    assert int(str(found["peak_memory_bytes"])) <= sufficient
    alone = ("--space", "operators", "--out", tmp_path)
    assert run("search", model, "--devices", 2, "--memory-limit", f"{bound - 1}B", *alone, "--force") == 4


def test_devices_that_divide_nothing_get_a_plan_and_a_warning(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("search", model, "--devices", 7, "--out", tmp_path) == 0
    assert "7 devices do not divide 4 (tokens dimension 0)" in capsys.readouterr().err


def test_the_summary_fits_a_screen(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("search", model, "--devices", 4, "--out", tmp_path) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 12
    text = "\n".join(lines)
    for part in ("plan ", "step ", "samples/s", "TFLOP/s per device (MFU ", "memory ", "gap "):
        assert part in text
    assert run("search", model, "--devices", 4, "--out", tmp_path, "--details") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 45
    text = "\n".join(lines)
    for part in ("mesh", "strategy", "parameters stored", "collectives"):
        assert part in text


def test_several_counts_of_devices_are_a_table(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("search", model, "--devices", "2,4", "--out", tmp_path) == 0
    head, *rows = capsys.readouterr().out.splitlines()[-3:]
    assert head.split() == ["devices", "step", "speed-up", "efficiency", "samples/s", "MFU", "GiB", "plan"]
    assert [row.split()[0] for row in rows] == ["2", "4"]
    assert "1.00" in rows[0].split()


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["search", "MODEL"], 2, "--devices"),
        (["search", "MODEL", "--devices", "0"], 2, "positive integer"),
        (["search", "MODEL", "--devices", "4,x"], 2, "positive integer"),
        (["search", "MODEL", "--devices", "99999999"], 2, "at most"),
        (["search", "MODEL", "--devices", "2", "--out", "/proc/nowhere"], 3, "cannot be written"),
        (["search", "MODEL", "--devices", "4", "--mesh", "3x2"], 2, "6 devices"),
        (["search", "MODEL", "--devices", "4", "--mesh", "two"], 2, "4x2"),
        (["search", "MODEL", "--devices", "4", "--nodes", "3"], 2, "divisor"),
        (["search", "MODEL", "--devices", "16", "--nodes", "1"], 2, "at least 2 nodes"),
        (["search", "MODEL", "--devices", "4", "--bind", "batch"], 2, "DIM=SIZE"),
        (["search", "MODEL", "--devices", "4", "--bind", "batch=3"], 2, "no such dimension"),
        (["search", "MODEL", "--devices", "4", "--memory-limit", "lots"], 2, "64GiB"),
        (["search", "MODEL", "--devices", "4", "--time-limit", "1", "--reproducible"], 2, "--time-limit"),
        (["search", "MODEL", "--devices", "4", "--hardware", "abacus"], 3, "a100-80"),
        (["search", "missing.onnx", "--devices", "4"], 3, "no such file"),
        (["verify", "MODEL", "MODEL"], 3, "plan"),
        (["verify", "missing.json", "MODEL"], 3, "plan.json"),
        (["hardware", "abacus"], 3, "a100-80"),
        (["conquer"], 2, "unknown command conquer"),
    ],
)
def test_bad_input_says_what_to_do(
    arguments: list[str], status: int, says: str, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*[str(model) if a == "MODEL" else a for a in arguments]) == status
    message = capsys.readouterr().err
    assert says in message
    assert len(message.splitlines()) <= 24, "one screen"


def test_a_model_of_which_nothing_is_left_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The length of a split tensor follows from its shape: all is folded."""
    nodes = [node("SplitToSequence", "x", "s", axis=0), node("SequenceLength", "s", "y")]
    path = tmp_path / "length.onnx"
    path.write_bytes(serialised(nodes, [value("x", [4, 2])], [value("y", [], INT64)]))
    assert main(["search", str(path), "--devices", "2", "--no-cache", "--out", str(tmp_path / "out")]) == 3
    assert "nothing is left to plan" in capsys.readouterr().err


def test_another_model_than_the_planned_one_is_refused(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = search(model, tmp_path, capsys, "--devices", 2)["plan"]
    other = tmp_path / "other.onnx"
    other.write_bytes(transformer(layers=1))
    assert run("verify", plan, other) == 3
    assert "another" in capsys.readouterr().err


def test_help_is_light() -> None:
    """Nothing heavy is imported before a command is chosen."""
    code = "import sys, planner.cli.main as m; m.main([]); print([n for n in sys.modules if n in HEAVY])"
    heavy = "HEAVY = {'numpy', 'onnx', 'onnxruntime', 'ortools', 'networkx', 'pydantic', 'fastapi'}\n"
    done = subprocess.run([sys.executable, "-c", heavy + code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_search_is_loaded_without_solvers_that_few_need() -> None:
    code = (
        "import sys, planner.requests.searcher, planner.requests.uniform; print([n for n in sys.modules if n in HEAVY])"
    )
    heavy = "HEAVY = {'ortools.sat.python.cp_model', 'ortools.math_opt', 'pandas', 'networkx'}\n"
    done = subprocess.run([sys.executable, "-c", heavy + code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_every_command_says_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    told = capsys.readouterr().out
    assert "serve" in told
    assert "submit" in told
    assert "offered by" not in told


def test_hardware_shows_every_value_with_its_source(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("hardware") == 0
    assert "ascend-910b" in capsys.readouterr().out
    assert run("hardware", "a100-80", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["device"]["memory_bytes"] == 80 * 2**30
    assert all(shown["sources"].values())
    assert run("hardware", "a100-80") == 0
    assert "None" not in [line.partition(" = ")[2] for line in capsys.readouterr().out.splitlines() if " = " in line]


def test_inspect_shows_blocks_and_rules(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("inspect", model, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["loss"] == "loss"
    assert found["operators_without_rule"] == []
    assert run("inspect", model) == 0
    assert "2 x a block" in capsys.readouterr().out


def test_sizes_and_bindings() -> None:
    assert byte_size("64GiB") == 64 * 2**30
    assert byte_size("80e9") == 80 * 10**9
    assert byte_size("1.5 MB") == 1_500_000
    assert bindings(["batch=8", "x.1=3"]) == {"batch": 8, "x.1": 3}
    with pytest.raises(UsageError, match="two sizes"):
        bindings(["batch=8", "batch=4"])
