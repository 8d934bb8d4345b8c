"""DeepSpeed itself reads our configuration, and trains by it on four gloo processes as one process does."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from planner.emit.deepspeed import emit_deepspeed
from planner.emit.names import NameRules
from planner.planning import PlanDocument
from tests.unit.launcher_plans import plan, planned

deepspeed = pytest.importorskip("deepspeed")
pytest.importorskip("transformers")
pytestmark = [pytest.mark.peer, pytest.mark.slow]

STEPS = Path(__file__).with_name("deepspeed_steps.py")


def write(made: PlanDocument, folder: Path) -> dict[str, Any]:
    names = NameRules().apply({n: tuple(p.shape) for n, p in made.parameters.items()})
    for name, content in emit_deepspeed(made, names).files.items():
        (folder / name).write_bytes(content)
    found: dict[str, Any] = json.loads((folder / "ds_config.json").read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("name", ["data", "zero", "tables whole", "head gathered", "tensor", "experts in shards"])
def test_the_configuration_is_understood(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from deepspeed import comm
    from deepspeed.runtime.config import DeepSpeedConfig

    made = plan(name)
    told = write(made, tmp_path)
    monkeypatch.setattr(comm, "get_rank", lambda *_: 0)
    monkeypatch.setattr(comm, "get_world_size", lambda *_: made.devices)
    found = DeepSpeedConfig(str(tmp_path / "ds_config.json"))
    assert found.zero_optimization_stage == (2 if "shards" in name or name == "zero" else 0)
    assert found.bfloat16_config.enabled
    if "tensor_parallel" in told:
        specs = found.tensor_parallel_config.get_partition_config_object()
        assert specs.strict_mode
        for parameter, p in made.parameters.items():
            spec = specs.find_matching_spec(parameter)
            axes = [bool(d) for d in p.compute[0].dims]
            if len(axes) == 2 and any(axes) and "emb" not in parameter and ".w" not in parameter[:20]:
                assert spec is not None
                assert spec.partition_type.value == ("column" if axes[1] else "row")
    if "expert_parallel" in told:
        assert (found.expert_parallel_config.enabled, found.expert_parallel_config.autoep_size) == (True, 4)


def trained(folder: Path, script: str) -> dict[str, Any]:
    """By one of our launch scripts, with this interpreter's launchers."""
    out = folder / "told.json"
    done = subprocess.run(
        ["bash", str(folder / script), str(STEPS), "--out", str(out)]
        + (["--deepspeed", "--deepspeed_config", str(folder / "ds_config.json")] if "deepspeed" not in script else []),
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1",
             "MASTER_PORT": "29517"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize(
    ("name", "script"),
    [("zero llama", "run_torchrun.sh"), ("head gathered", "run_torchrun.sh"), ("head gathered", "run_deepspeed.sh")],
)
def test_training_by_the_plan_is_training_on_one_process(name: str, script: str, tmp_path: Path) -> None:
    made = plan(name, "fp32")
    write(made, tmp_path)
    told = trained(tmp_path, script)
    for wanted, found in told["losses"]:
        assert math.isclose(wanted, found, rel_tol=2e-6)
    assert told["losses"][0][0] > told["losses"][-1][0] + 0.05
    assert told["zero"] == (2 if name == "zero llama" else 0)
    for parameter, shape in told["shapes"].items():
        p = made.parameters[parameter]
        shards = [math.prod(made.mesh.sizes[a] for a in d) for d in p.compute[0].dims]
        # The graph has matrices as products read them, PyTorch the other way round.
        local = [n // k for n, k in zip(p.shape, shards, strict=True)]
        turned = len(local) == 2 and "embed" not in parameter
        assert shape == (local[::-1] if turned else local), parameter


def test_gradients_of_micro_batches_are_accumulated(tmp_path: Path) -> None:
    made = planned("llama_tiny", 4, ("rest=zero",), precision="fp32", micro_batches=2)
    assert write(made, tmp_path)["gradient_accumulation_steps"] == 2
    told = trained(tmp_path, "run_torchrun.sh")
    assert all(math.isclose(wanted, found, rel_tol=2e-6) for wanted, found in told["losses"])
