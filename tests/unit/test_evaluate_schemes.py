"""Strategies by name: every key, every default, every refusal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import UsageError
from planner.evaluate import Configuration
from planner.planning.schemes import KEYS, SCHEMES, parse_strategy, spelled

VALUES = {
    "dp": ("2", 2), "tp": ("4", 4), "pp": ("4", 4), "cp": ("2", 2), "ep": ("2", 2), "micro_batch": ("2", 2),
    "vpp": ("3", 3), "stage_layers": ("3-1", (3, 1)), "copies": ("2", 2), "context": ("all-to-all", "all-to-all"),
    "shard": ("2", 2), "zero": ("2", 2), "sp": ("no", False), "recompute": ("full", "full"),
    "recompute_blocks": ("0.25", 0.25), "offload": ("0.5", 0.5),
    "recompute_layers": ("3-0", (3, 0)), "offload_layers": ("0-2", (0, 2)),
    "schedule": ("gpipe", "gpipe"), "matrix": ("fp8", "fp8"),
    "attention": ("native", "native"), "parameter_bytes": ("4", 4), "gradient_bytes": ("2", 2),
    "cast_gathers": ("1", True), "fuse": ("false", False),
    "loss": ("softmax", "softmax"), "frozen": ("true", True), "overlap_gradients": ("no", False),
    "overlap_parameters": ("False", False), "overlap_tensor": ("1", True), "overlap_pipeline": ("0", False),
}  # fmt: skip


def test_the_table_names_every_key() -> None:
    assert set(VALUES) == set(KEYS)
    assert {k.field for k in KEYS.values()} <= set(Configuration.__dataclass_fields__)


@pytest.mark.parametrize("key", VALUES)
def test_every_key_sets_its_field(key: str) -> None:
    text, value = VALUES[key]
    devices = {"dp": 2, "shard": 8}.get(key, 16)
    staged = "pp=2," if key == "vpp" or key.endswith("_layers") else ""
    staged += "cp=2," if key == "context" else ""
    staged += "recompute=full," if key == "recompute_layers" else ""
    c = parse_strategy(f"megatron:{staged}{key}={text}", devices=devices, batch=64)
    assert parse_strategy(spelled(c), devices=devices, batch=64) == c
    assert getattr(c, KEYS[key].field) == value
    assert c.devices == devices
    assert c.global_batch == 64


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_has_its_level_of_zero_and_its_overlap(scheme: str) -> None:
    c = parse_strategy(scheme + (":shard=4" if scheme == "hsdp" else ""), devices=8, batch=32)
    levels = {"ddp": 0, "zero1": 1, "zero2": 2, "zero3": 3, "fsdp": 3, "hsdp": 3, "megatron": 1}
    assert c.zero == levels[scheme]
    assert c.overlap_gradients
    assert c.overlap_parameters == (scheme != "ddp")
    assert (c.micro_batch, c.micro_batches) == ((1, 4) if scheme == "megatron" else (4, 1))


def test_megatron_divides_the_sequence_with_the_tensors_and_zb_v_has_two_chunks() -> None:
    assert parse_strategy("megatron:tp=2", devices=8, batch=8).sequence_parallel
    assert not parse_strategy("megatron:pp=2", devices=8, batch=8).sequence_parallel
    assert parse_strategy("megatron:pp=2,schedule=zb-v", devices=8, batch=8).virtual_stages == 2


@given(
    st.sampled_from((1, 2, 4)), st.sampled_from((1, 2)), st.sampled_from((1, 2)), st.integers(1, 4), st.integers(1, 4)
)
def test_degrees_multiply_to_the_devices(tp: int, pp: int, cp: int, dp: int, m: int) -> None:
    c = parse_strategy(f"megatron:tp={tp},pp={pp},cp={cp}", devices=tp * pp * cp * dp, batch=dp * m)
    assert (c.dp, c.micro_batches) == (dp, m)


@pytest.mark.parametrize(
    ("text", "devices", "batch", "words"),
    [
        ("deepspeed", 8, 8, ("ddp, zero1", "found 'deepspeed'")),
        ("megatron:tensor=2", 8, 8, ("'tensor=2'", "KEY=VALUE", "tp")),
        ("megatron:tp", 8, 8, ("'tp'", "KEY=VALUE")),
        ("megatron:tp=2,tp=4", 8, 8, ("tp is given twice",)),
        ("megatron:tp=0", 8, 8, ("tp: expected a positive integer", "'0'")),
        ("megatron:tp=two", 8, 8, ("tp: expected a positive integer", "'two'")),
        ("megatron:zero=4", 8, 8, ("zero: expected 0, 1, 2 or 3", "'4'")),
        ("megatron:sp=maybe", 8, 8, ("sp: expected true or false", "'maybe'")),
        ("megatron:recompute=all", 8, 8, ("recompute: expected none, selective", "'all'")),
        ("megatron:recompute_blocks=2", 8, 8, ("recompute_blocks: expected a fraction", "'2'")),
        ("megatron:recompute_blocks=nan", 8, 8, ("recompute_blocks: expected a fraction", "'nan'")),
        ("megatron:pp=2,recompute=full,recompute_layers=1-x", 8, 8, ("recompute_layers: expected blocks", "'1-x'")),
        ("megatron:pp=2,recompute_layers=1-1", 8, 8, ("recompute_layers=1-1", "recompute=full")),
        ("megatron:schedule=zigzag", 8, 8, ("schedule: expected gpipe, 1f1b", "'zigzag'")),
        ("megatron:matrix=int4", 8, 8, ("matrix: expected fp32", "'int4'")),
        ("megatron:attention=flash", 8, 8, ("attention: expected unfused, fused", "'flash'")),
        ("megatron:gradient_bytes=8", 8, 8, ("gradient_bytes: expected 2 or 4", "'8'")),
        ("megatron:tp=3", 8, 8, ("tp · pp · cp = 3", "8 devices")),
        ("megatron:tp=2,dp=2", 8, 8, ("dp · tp · pp · cp = 4", "8 devices")),
        ("ddp", 8, 12, ("expected a multiple of dp=8", "found 12")),
        ("ddp:micro_batch=3", 8, 64, ("micro_batch=3", "8 samples")),
        ("hsdp", 8, 8, ("hsdp needs shard=N",)),
        ("hsdp:shard=3", 8, 8, ("shard_ranks=3", "divisor of dp * cp = 8")),
        ("megatron:ep=3", 8, 8, ("ep=3", "divisor of dp * cp = 8")),
        ("megatron:pp=2,schedule=gpipe,vpp=2", 8, 8, ("vpp: gpipe runs 1 chunk", "found 2")),
        ("megatron:pp=2,schedule=zb-v,vpp=3", 8, 8, ("vpp: zb-v runs 2 chunk", "found 3")),
    ],
)
def test_refusals_name_the_strategy_and_what_was_expected_and_found(
    text: str, devices: int, batch: int, words: tuple[str, ...]
) -> None:
    with pytest.raises(UsageError) as e:
        parse_strategy(text, devices=devices, batch=batch)
    message = str(e.value)
    assert f"--strategy {text!r}" in message
    assert all(w in message for w in words), message
