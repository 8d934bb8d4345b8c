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
    assert found.displaced("tensor") is None


def test_shards_may_have_a_place_of_their_own_among_data_parallel_ranks(tmp_path: Path) -> None:
    pins = ("mesh=2x4", "*.c_fc.weight stored=[x,_]", "rest=data_parallel")
    found = scheme(tmp_path, "gpt_tiny.onnx", 8, *pins)
    assert found.displaced("data", "shards") == ("x", "y")
    assert found.displaced("shards", "data") is None
    assert found.displaced("data") is None


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


def test_a_norm_written_out_is_sequence_parallel_too(tmp_path: Path) -> None:
    pins = ("mesh=2x2", "input_ids layout=[x,_]", "labels layout=[x,_]", "*.q_proj.matmul b0=x n=y")
    assert not scheme(tmp_path / "a", "llama_tiny.onnx", 4, *pins, "*norm.reducemean d0=x").sequence
    assert scheme(tmp_path / "b", "llama_tiny.onnx", 4, *pins, "*norm.reducemean d0=x d1=y").sequence


def test_positions_of_inputs_are_context_parallel(tmp_path: Path) -> None:
    pins = ("mesh=2x4", "input_ids layout=[x,y]", "labels layout=[x,_]", "*.mlp.c_fc.matmul b0=x m=y")
    made = plan(tmp_path, "gpt_tiny.onnx", 8, *pins)
    assert scheme_of(made, "Megatron").uses == {"x": "data", "y": "context"}


def test_experts_may_be_divided_among_ranks_that_divide_samples(tmp_path: Path) -> None:
    made = plan(tmp_path, "moe_tiny.onnx", 4, "mesh=4", "reads=*.experts.* type=Einsum e=x", "rest=data_parallel")
    found = scheme_of(made, "Megatron")
    assert (found.data, found.expert, found.tensor) == (4, 4, 1)
    assert (found.sharded, found.whole) == ((), ())


def test_experts_divided_among_ranks_count_as_shards_over_these(tmp_path: Path) -> None:
    kept = [f"*{n}.weight stored=[x.y,_]" for n in ("_proj", ".gate", "embed_tokens", "lm_head")]
    pins = ("mesh=2x2", "input_ids layout=[x.y,_]", "labels layout=[x.y,_]", *kept, "*norm.weight stored=[x.y]",
            "reads=*.experts.* type=Einsum b=x e=y", "*.w[12].weight stored=[y,x,_]", "rest=data_parallel")  # fmt: skip
    found = scheme(tmp_path, "moe_tiny.onnx", 4, *pins)
    assert found.uses == {"x": "data", "y": "expert"}
    assert (found.sharded, found.shards) == (("x", "y"), 4)
    assert sorted(found.whole) == [f"model.layers.{k}.block_sparse_moe.experts.w3.weight" for k in range(2)]


@pytest.mark.parametrize(
    ("pins", "message"),
    [
        (("mesh=8", "lm_head.matmul n=x", "rest=data_parallel"), "axis x is data parallel at input input_ids"),
        (("mesh=2x4", "*.c_fc.matmul b0=x n=y", "*.mlp.gelu d0=y", "rest=data_parallel"), "axis y"),
        (("mesh=2x4", "*.c_fc.weight stored=[x,_]", "*.mlp.c_proj.weight stored=[x.y,_]", "rest=data_parallel"),
         "in shards by 2 ranks and .* by 8"),
        (("mesh=2x4", "*.ln_*.weight stored=[x]", "*.c_fc.weight stored=[y,_]", "rest=data_parallel"),
         r"by 2 ranks .*by 4 \(over x and over y\)"),
        (("mesh=2x4", *MEGATRON[1:-1], "transformer.wte.weight stored=[y,_]", "rest=data_parallel"),
         "wte.weight is stored in shards"),
        (("mesh=2x2x2", "*.c_fc.matmul b0=x n=y", "*.mlp.c_proj.matmul b0=x k=y", "*.c_attn.matmul b0=x n=z",
          "*.attn.c_proj.matmul b0=x k=z", "input_ids layout=[x,_]"),
         r"divided over [yz] and not over [yz], which divides others"),
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
