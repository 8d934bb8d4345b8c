"""MindFormers reads our YAML: its own classes say where every layer is and which run again.

On a CPU no model is compiled; how its layers divide their weights is taken from its source
(planner/emit/mindformers/emitter.py)."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from planner.emit.mindformers import emit_mindformers
from planner.planning import PlanDocument
from tests.unit.emit_plans import MEGATRON, deepened, search, staged

os.environ.setdefault("LOG_MF_PATH", tempfile.gettempdir())  # it logs to the working directory otherwise
mindspore = pytest.importorskip("mindspore")
pytest.importorskip("mindformers")
pytestmark = [pytest.mark.peer, pytest.mark.slow]


@pytest.fixture(scope="module")
def tensor(tmp_path_factory: pytest.TempPathFactory) -> PlanDocument:
    return search(tmp_path_factory.mktemp("tp"), "llama_tiny.onnx", 8, *MEGATRON, recompute="blocks")


def read(plan: PlanDocument, folder: Path, layers: int) -> Any:
    """A user's YAML that takes ours as its base, as MindFormers reads it."""
    from mindformers.core.parallel_config import build_parallel_config
    from mindformers.tools import MindFormerConfig

    for name, content in emit_mindformers(plan).files.items():
        (folder / name).write_bytes(content)
    own = folder / "own.yaml"
    own.write_text(
        "base_config: [mindformers.yaml]\nrun_mode: train\nrunner_config: {epochs: 2}\nmodel: {model_config: "
        f"{{num_layers: {layers}, hidden_size: 64, num_attention_heads: 4}}}}\n",
        encoding="utf-8",
    )
    config = MindFormerConfig(str(own))
    build_parallel_config(config)
    return config


def settings(config: Any, parallel: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """LayerSetting of the model's configuration, under the parallel context of the file."""
    from mindformers.core.context.parallel import ParallelOperator
    from mindformers.parallel_core.training_graph.transformer import utils
    from mindformers.parallel_core.transformer_config_utils import convert_to_transformer_config
    from mindformers.tools.utils import PARALLEL_MODE

    told = dict(config.model.model_config)
    told["parallel_config"] = config.parallel_config.to_dict()
    model = convert_to_transformer_config(told)
    mindspore.reset_auto_parallel_context()
    ParallelOperator._set_ms_auto_parallel_context(
        **{**parallel, "parallel_mode": PARALLEL_MODE[parallel["parallel_mode"]]}
    )
    monkeypatch.setattr(utils, "is_legacy_model", lambda: config.use_legacy)  # what its context has of the file
    chunks = model.virtual_pipeline_model_parallel_size or 1
    return model, utils.LayerSetting(model.num_layers, model.offset, model, chunks)


@pytest.mark.parametrize(
    ("where", "again"),
    [
        ([0, 0], {0, 1}),
        ([0, 0, 1, 1, 1, 1], {0, 2, 3}),
        ([0, 1, 2, 2], {0, 3}),
        ([0, 0, 1, 0, 1, 1], {0, 1, 4}),
    ],
)
def test_every_layer_is_where_the_plan_has_it(
    tensor: PlanDocument, tmp_path: Path, where: list[int], again: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    stages = max(where) + 1
    plan = staged(deepened(tensor, len(where)), where, micro_batches=4)
    document = plan.model_dump(by_alias=True)
    document["schedule"]["recompute"] = [b for i, b in enumerate(document["schedule"]["recompute"]) if i in again]
    plan = PlanDocument.model_validate(document)
    config = read(plan, tmp_path, len(where))
    parallel = {k: v for k, v in dict(config.parallel).items() if k not in ("search_mode", "strategy_ckpt_save_file")}
    model, setting = settings(config, {**parallel, "device_num": plan.devices, "pipeline_stages": stages}, monkeypatch)
    assert (model.data_parallel_size, model.tensor_model_parallel_size) == (4, 2)
    assert model.pipeline_model_parallel_size == stages
    assert [int(s) for s in setting.pp_ids] == where
    counts: dict[tuple[int, int], int] = {}
    for i in range(len(where)):
        place = (int(setting.interleave_ids[i]), where[i])
        counts[place] = counts.get(place, 0) + (i in again)
    found: dict[tuple[int, int], int] = {}
    for i in range(len(where)):
        place = (int(setting.interleave_ids[i]), where[i])
        found[place] = found.get(place, 0) + bool(setting._check_layer_rule(i))
    assert found == counts
    shape = next(iter(plan.inputs.values())).shape
    assert shape is not None
    assert config.runner_config.batch_size * 4 == shape[0]
    assert mindspore.get_auto_parallel_context("parallel_mode") == "semi_auto_parallel"
    assert mindspore.get_auto_parallel_context("dataset_strategy")[0] == [4, 1]


def test_optimizer_shards_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = search(tmp_path / "plan", "gpt_tiny.onnx", 8, "mesh=8", "rest=zero")
    config = read(plan, tmp_path, 2)
    parallel = {k: v for k, v in dict(config.parallel).items() if k not in ("search_mode", "strategy_ckpt_save_file")}
    settings(config, {**parallel, "device_num": 8}, monkeypatch)
    assert mindspore.get_auto_parallel_context("enable_parallel_optimizer")
    assert mindspore.get_auto_parallel_context("optimizer_weight_shard_size") == 8
