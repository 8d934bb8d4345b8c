"""Which degrees of parallelism a plan has, and which plans have none."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.cli.main import main
from planner.emit.scheme import Scheme, scheme_of
from planner.errors import InputError
from planner.planning import PlanDocument, read_plan

SAMPLES = Path(__file__).parents[2] / "sample_graphs"
MEGATRON = (
    "mesh=2x4", "*.c_attn.matmul b0=x n=y", "*.attn.c_proj.matmul b0=x k=y", "*.c_fc.matmul b0=x n=y",
    "*.mlp.c_proj.matmul b0=x k=y", "*.mlp.c_fc.add d0=x d2=y", "rest=data_parallel",
)  # fmt: skip


def plan(folder: Path, model: str, devices: int, *pins: str) -> PlanDocument:
    options = [o for p in pins for o in ("--pin", p)]
    arguments = ["search", str(SAMPLES / model), "--devices", str(devices), "--no-cache", "--out", str(folder)]
    assert main([*arguments, *options]) == 0
    return read_plan(folder / "plan.json")


def scheme(folder: Path, model: str, devices: int, *pins: str) -> Scheme:
    return scheme_of(plan(folder, model, devices, *pins), "Megatron")


def test_megatrons_layout_is_data_and_tensor_parallel(tmp_path: Path) -> None:
    found = scheme(tmp_path, "gpt_tiny.onnx", 8, *MEGATRON)
    assert found.uses == {"x": "data", "y": "tensor"}
    assert (found.data, found.tensor, found.context, found.expert) == (2, 4, 1, 1)
    assert not found.sequence
    cuts = {n.removeprefix("transformer.h.0."): c for n, c in found.cuts.items()}
    assert cuts["attn.c_attn.weight"] == cuts["mlp.c_fc.weight"] == "column"
    assert cuts["attn.c_proj.weight"] == cuts["mlp.c_proj.weight"] == "row"
    assert cuts["mlp.c_fc.bias"] == "follows"
    assert cuts["ln_1.weight"] == cuts["transformer.wte.weight"] == "whole"
    assert found.displaced("data", "tensor") is None
    assert found.displaced("tensor", "data") == ("x", "y")


def test_stored_shards_are_counted_and_what_stays_whole_is_named(tmp_path: Path) -> None:
    found = scheme(tmp_path, "gpt_tiny.onnx", 8, "*.ln_1.bias stored=replicated", "rest=zero")
    assert (found.data, found.shards) == (8, 8)
    assert found.whole == ("transformer.h.0.ln_1.bias", "transformer.h.1.ln_1.bias")


def test_a_tied_table_is_divided_along_the_vocabulary_by_both_readers(tmp_path: Path) -> None:
    pins = ("mesh=2x4", "transformer.wte.gather i0=x v=y", "lm_head.matmul b0=x n=y", "rest=data_parallel")
    assert scheme(tmp_path, "gpt_tiny.onnx", 8, *pins).cuts["transformer.wte.weight"] == "vocabulary"


def test_positions_of_norms_are_sequence_parallel(tmp_path: Path) -> None:
    pins = (*MEGATRON[:-1], "*.ln_?.layernormalization d0=x d1=y", "rest=data_parallel")
    assert scheme(tmp_path, "gpt_tiny.onnx", 8, *pins).sequence


def test_positions_of_inputs_are_context_parallel(tmp_path: Path) -> None:
    pins = ("mesh=2x4", "input_ids layout=[x,y]", "labels layout=[x,_]", "*.mlp.c_fc.matmul b0=x m=y")
    made = plan(tmp_path, "gpt_tiny.onnx", 8, *pins)
    assert scheme_of(made, "Megatron").uses == {"x": "data", "y": "context"}


def test_experts_may_be_divided_among_ranks_that_divide_samples(tmp_path: Path) -> None:
    made = plan(tmp_path, "moe_tiny.onnx", 4, "mesh=4", "reads=*.experts.* type=Einsum e=x", "rest=data_parallel")
    found = scheme_of(made, "Megatron")
    assert (found.data, found.expert, found.tensor) == (4, 4, 1)


@pytest.mark.parametrize(
    ("pins", "message"),
    [
        (("mesh=8", "lm_head.matmul n=x", "rest=data_parallel"), "axis x is data parallel at input input_ids"),
        (("mesh=2x4", "*.c_fc.matmul b0=x n=y", "*.mlp.gelu d0=y", "rest=data_parallel"), "axis y"),
        (("mesh=2x4", "*.c_fc.weight stored=[x,_]", "*.mlp.c_proj.weight stored=[x.y,_]", "rest=data_parallel"),
         "in shards by 2 ranks and .* by 8"),
        (("mesh=2x4", *MEGATRON[1:-1], "transformer.wte.weight stored=[y,_]", "rest=data_parallel"),
         "wte.weight is kept in shards"),
    ],
)  # fmt: skip
def test_what_degrees_cannot_say_is_refused(tmp_path: Path, pins: tuple[str, ...], message: str) -> None:
    made = plan(tmp_path, "gpt_tiny.onnx", 8, *pins)
    with pytest.raises(InputError, match=message):
        scheme_of(made, "Megatron")


def test_devices_that_do_the_same_are_refused(tmp_path: Path) -> None:
    found = scheme(tmp_path, "gpt_tiny.onnx", 8, "rest=replicated", "mesh=8")
    assert found.uses == {"x": "idle"}
    with pytest.raises(InputError, match="8 devices do the same"):
        found.check_busy("Megatron")
