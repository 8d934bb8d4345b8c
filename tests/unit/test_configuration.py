"""A configuration made from another is held to what a new one is held to."""

from __future__ import annotations

import random
from dataclasses import fields
from typing import Any

import pytest

from planner.clock import Configuration
from planner.errors import UsageError

# Values of every field, of which some go together and some do not.
VALUES: dict[str, tuple[Any, ...]] = {
    "dp": (1, 2, 4, 0), "tp": (1, 2, 0), "pp": (1, 2, 4, -1), "cp": (1, 2), "context": ("ring", "all-to-all"),
    "ep": (1, 2, 3), "zero": (0, 3), "shard_ranks": (None, 2, 3), "sequence_parallel": (False, True),
    "recompute": ("none", "full"), "recompute_blocks": (1.0, 0.5, 1.5), "offload": (0.0, 0.5, -0.1),
    "recompute_layers": (None, (1, 1)), "offload_layers": (None, (1, 1), (1, -1)), "micro_batch": (1, 2, 0),
    "micro_batches": (1, 3, 4), "copies": (1, 2), "schedule": ("1f1b", "zb-v", "zb-h1"), "virtual_stages": (1, 2, 0),
    "stage_layers": (None, (3, 1), (4, 0)), "precision": ("bf16", "fp32"), "matrix_type": (None, "fp8"),
    "cast_gathers": (False, True), "parameter_bytes": (None, 4), "gradient_bytes": (4, 2),
    "attention": ("fused", "native"), "frozen": (False, True), "loss": ("fused", "softmax"), "fuse": (True, False),
    "overlap_gradients": (False, True), "overlap_parameters": (False, True), "overlap_tensor": (False, True),
    "overlap_pipeline": (False, True), "optimizer": ("adam", "sgd"),
}  # fmt: skip


def test_every_field_has_values_here() -> None:
    assert VALUES.keys() == {f.name for f in fields(Configuration)}


def made(values: dict[str, Any]) -> Configuration | None:
    try:
        return Configuration(**values)
    except UsageError:
        return None


def test_a_changed_configuration_is_refused_where_a_new_one_is() -> None:
    dice = random.Random(0)
    refused = admitted = 0
    while min(refused, admitted) < 500:
        some = dice.sample(sorted(VALUES), dice.randint(0, 8))
        base = {name: dice.choice(VALUES[name]) for name in some}
        before = made(base)
        if before is None:
            continue
        changes = {name: dice.choice(VALUES[name]) for name in dice.sample(sorted(VALUES), dice.randint(1, 3))}
        after = made({**base, **changes})
        if after is None:
            refused += 1
            with pytest.raises(UsageError):
                before.with_(**changes)
        else:
            admitted += 1
            assert before.with_(**changes) == after
            assert hash(before.with_(**changes)) == hash(after)


def test_what_is_no_field_is_refused_by_its_name() -> None:
    with pytest.raises(TypeError, match="no stages_layers"):
        Configuration().with_(stages_layers=(1, 2))
