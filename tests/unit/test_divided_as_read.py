"""What is made of weights alone, for all that read it in parts, is made in parts: biases of positions of T5."""

from __future__ import annotations

import pytest

from planner.builder import build
from planner.clock import Configuration
from planner.cost_models import load_profile
from planner.evaluate import program_of_configuration
from planner.frontends import import_bytes
from planner.lowering import Program
from planner.verify.check import verify_program

from .exported_attention import HEADS, exported

H100 = load_profile("h100")
# The dimension of the bias, of samples, heads, queries and keys, that ranks divide.
CASES = {
    "DP": (Configuration(dp=2, micro_batch=2), 0),
    "DP, ZeRO": (Configuration(dp=2, micro_batch=2, zero=1), 0),
    "TP": (Configuration(tp=2, micro_batch=2), 1),
    "TP, SP": (Configuration(tp=2, micro_batch=2, sequence_parallel=True), 1),
    "CP": (Configuration(cp=2, micro_batch=2, zero=1), 2),
    "CP by heads": (Configuration(cp=2, context="all-to-all", micro_batch=2, zero=1), 1),
}


def program_of(c: Configuration) -> Program:
    graph = import_bytes(exported(c.micro_batch * c.dp, HEADS, biased=True), name="exported")
    return program_of_configuration(graph, c, H100)


@pytest.mark.parametrize("case", CASES)
def test_a_bias_is_made_as_it_is_read(case: str) -> None:
    c, dimension = CASES[case]
    program = program_of(c)
    for name in ("masked", "clone"):
        result = program.strategies[name].results[0]
        assert result is not None
        assert result.dims[dimension], name
    assert verify_program(program).ok


@pytest.mark.parametrize("case", CASES)
def test_gradients_of_a_bias_of_all_samples_do_not_travel(case: str) -> None:
    program = program_of(CASES[case][0])
    travels = {
        i.tensor for i in program.redistributions() if i.gradient and not all("slice" in str(s) for s in i.steps)
    }
    assert not travels & {"masked", "clone", "block0.biased"}


def test_two_gradients_are_not_put_together_in_place_of_one() -> None:
    """Four ranks hold two heads of keys whole, and take a part of them into attention.  The gradient of the sum of
    their rotary embedding is gathered, and not those of both of its parts."""
    sizes = {"layers": 2, "hidden": 64, "heads": 8, "kv_heads": 2, "ffn": 128, "vocab": 64, "seq": 32}
    model = build("llama", {**sizes, "attention": "fused", "batch": 2}).SerializeToString()
    program = program_of_configuration(import_bytes(model, name="llama"), Configuration(tp=4, micro_batch=2), H100)
    for name in ("add_1", "mul_2", "mul_3"):
        result = program.strategies[f"model.layers.0.self_attn.{name}"].results[0]
        assert result is not None
        assert result.is_replicated, name
