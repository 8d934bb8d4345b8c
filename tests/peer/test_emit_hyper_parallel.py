"""HyperParallel (mindspore-ai/hyper-parallel at fdd0a80, on PyTorch) runs our files on 2x2 gloo processes.

The result and the gradients are those of one process, and every parameter lies as plan and .layout file say."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from functools import reduce
from itertools import pairwise
from operator import add
from pathlib import Path
from typing import Any

import pytest

from planner.builder import build
from planner.cost_models import load_profile
from planner.emit.hyper_parallel import emit_hyper_parallel
from planner.emit.names import NameRules
from planner.frontends import import_bytes
from planner.planning import PlanDocument, Request, describe, make_plan
from planner.planning.constraints import parse_pin
from planner.pricing import Settings

os.environ.setdefault("HYPER_PARALLEL_PLATFORM", "torch")
torch = pytest.importorskip("torch")
pytest.importorskip("hyper_parallel")
pytestmark = [pytest.mark.peer, pytest.mark.slow]

SIZES = {"features": 32, "hidden": 64, "layers": 3, "classes": 16, "batch": 16}
COLUMNS_ROWS = (
    "mesh=2x2", "layers.0.matmul m=x n=y", "layers.0.add d0=x d1=y", "relu d0=x d1=y", "layers.1.matmul m=x k=y",
    "rest=data_parallel",
)  # fmt: skip
PLANS = {
    "data": ("mesh=2x2", "rest=data_parallel"),
    "columns": ("mesh=2x2", "type=MatMul m=x n=y", "*.add d0=x d1=y", "rest=data_parallel"),
    "rows": ("mesh=2x2", "type=MatMul m=x k=y", "rest=data_parallel"),
    "columns, then rows": COLUMNS_ROWS,
}


def network() -> Any:
    torch.manual_seed(0)
    layers: list[Any] = []
    widths = [SIZES["features"], *[SIZES["hidden"]] * (SIZES["layers"] - 1), SIZES["classes"]]
    for i, (a, b) in enumerate(pairwise(widths)):
        layers += [torch.nn.Linear(a, b)] + [torch.nn.ReLU()] * (i < len(widths) - 2)
    return torch.nn.Sequential(*layers)


def plan(pins: tuple[str, ...]) -> PlanDocument:
    graph = import_bytes(build("mlp", SIZES).SerializeToString(), name="mlp")
    constraints = reduce(add, map(parse_pin, pins))
    request = Request(4, load_profile("cpu"), Settings(training=True, precision="fp32"), constraints=constraints)
    return describe(make_plan(graph, request), bind={}, batch=None)


def files(folder: Path, pins: tuple[str, ...]) -> Path:
    made = plan(pins)
    shapes = {n: tuple(p.shape) for n, p in made.parameters.items()}
    listed = [(n, tuple(p.shape)) for n, p in network().named_parameters()]
    names = NameRules(network=listed).apply(shapes)
    square = [n for n, s in shapes.items() if len(s) == 2 and s[0] == s[1]]
    names |= {n: type(names[n])(names[n].name, transposed=True) for n in square}
    for name, content in emit_hyper_parallel(made, names).files.items():
        (folder / name).write_bytes(content)
    return folder / "parallel.py"


def rank_main(rank: int, module: str, store: str, gradients: bool) -> None:
    os.environ.update({"RANK": str(rank), "WORLD_SIZE": "4", "LOCAL_RANK": str(rank)})
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=4)
    spec = importlib.util.spec_from_file_location("generated_parallel", module)
    assert spec is not None
    assert spec.loader is not None
    applied = importlib.util.module_from_spec(spec)
    sys.modules["generated_parallel"] = applied
    spec.loader.exec_module(applied)
    from hyper_parallel import DTensor

    generator = torch.Generator().manual_seed(1)
    x = torch.randn(SIZES["batch"], SIZES["features"], generator=generator)
    y = torch.randn(SIZES["batch"], SIZES["classes"], generator=generator)
    one, mesh = network(), applied.device_mesh("cpu")
    expected = one(x)
    torch.nn.functional.mse_loss(expected, y).backward()
    net = applied.parallelize(network(), mesh)
    whole = applied._placements(["replicate"] * len(applied.SIZES))
    out = net(DTensor.from_local(x, mesh, whole))
    torch.testing.assert_close(out.redistribute(mesh, whole).to_local(), expected)
    told = json.loads(Path(module).with_name("rank0.layout").read_text(encoding="utf-8"))["0"]
    for n, p in net.named_parameters():
        assert tuple(p.placements) == applied._placements(applied.PARAMETERS[0][n])
        found = p.layout.to_dict()
        for key in ("mesh_shape", "tensor_map", "rank_list"):
            assert list(found[key]) == told[n][key]
        assert list(p.shape) == told[n]["full_shape"]
    if gradients:
        parts = SIZES["batch"] // out.to_local().shape[0]
        own = y.chunk(parts)[rank * parts // 4]
        loss = ((out.to_local() - own) ** 2).sum() / y.numel() / out.layout.repeat_num()
        loss.backward()
        for n, p in one.named_parameters():
            found, cut = net.get_parameter(n).grad, p.grad
            for axis, word in enumerate(applied.PARAMETERS[0][n]):
                if word.startswith("shard"):
                    at = rank // 2 if axis == 0 else rank % 2
                    cut = cut.chunk(2, dim=int(word[6:-1]))[at]
            torch.testing.assert_close(found.to_local() if isinstance(found, DTensor) else found, cut)
    applied.save_layout(Path(store).parent / "saved", rank)
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("name", PLANS)
def test_the_result_is_that_of_one_process(tmp_path: Path, name: str) -> None:
    """Gradients as well, but where a gather between modules has to go back: torch's own does not on groups of gloo."""
    module = files(tmp_path, PLANS[name])
    (tmp_path / "saved").mkdir()
    arguments = (str(module), str(tmp_path / "store"), name != "columns")
    torch.multiprocessing.spawn(rank_main, args=arguments, nprocs=4)
    from hyper_parallel.core.checkpoint.layout import combine_layout

    combined = combine_layout(tmp_path / "saved")
    assert set(combined) == {"0", "1", "2", "3"}
    assert combined["0"] == combined["3"]
