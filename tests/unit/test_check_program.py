"""A program checked without data: whatever is left out of it is missed, gradients that nobody reads included."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import pytest

from planner.cost_models import load_profile
from planner.frontends import load_model
from planner.ir import Layout
from planner.lowering import Instruction, Load, Program, Redistribute, Run
from planner.lowering.check import check_program
from planner.planning import Request, make_plan
from planner.pricing import Settings

SAMPLES = Path(__file__).resolve().parents[2] / "sample_graphs"
NAMES = ("mlp", "gpt_tiny", "moe_tiny", "resnet18_tiny")


@lru_cache
def program(name: str) -> Program:
    """Heavy operators must split on this profile, so that much is redistributed."""
    request = Request(4, load_profile("alpha-beta"), Settings(training=True))
    return make_plan(load_model(SAMPLES / f"{name}.onnx"), request).program


def without(whole: Program, index: int) -> Program:
    left = whole.instructions[:index] + whole.instructions[index + 1 :]
    return replace(whole, instructions=left)


@pytest.mark.parametrize("name", NAMES)
def test_a_program_of_the_planner_is_right(name: str) -> None:
    assert check_program(program(name)) == []


@pytest.mark.parametrize("name", NAMES)
def test_every_instruction_that_is_left_out_is_missed(name: str) -> None:
    whole = program(name)
    before: set[Instruction] = set()
    missed = 0
    for i, instruction in enumerate(whole.instructions):
        wrong = check_program(without(whole, i))
        assert wrong or superfluous(whole, instruction, before), f"{instruction} is not missed"
        missed += isinstance(instruction, Redistribute) and instruction.gradient
        before.add(replace(instruction, reader="") if isinstance(instruction, Redistribute) else instruction)
    assert missed, "the case shows nothing"


def superfluous(whole: Program, instruction: Instruction, before: set[Instruction]) -> bool:
    """Whether the numbers do not need it: a copy that another reader has made, a shape that is stated anew for shards,
    an output of the graph."""
    graph = whole.graph
    if isinstance(instruction, Redistribute):
        return replace(instruction, reader="") in before
    if isinstance(instruction, Load):
        readers = graph.consumers.get(instruction.tensor, ())
        return all(whole.rules[op.name].shape_operand == slot for op, slot in readers)
    if isinstance(instruction, Run) and not instruction.backward:
        return not any(t in graph.consumers for t in graph.op(instruction.op).outputs)
    return False


def test_a_gradient_that_nobody_reads_is_named() -> None:
    whole = program("mlp")
    index = next(i for i, c in enumerate(whole.instructions) if isinstance(c, Redistribute) and c.gradient)
    left = whole.instructions[index]
    assert isinstance(left, Redistribute)
    wrong = check_program(without(whole, index))
    assert f"gradient of {left.tensor} is left in {left.source}, where nobody reads it" in wrong


def test_a_parameter_without_a_gradient_is_named() -> None:
    whole = program("mlp")
    name = next(iter(whole.final_gradients))
    final = {n: x for n, x in whole.final_gradients.items() if n != name}
    assert f"gradient of {name} comes to no layout, though it is trained" in check_program(
        replace(whole, final_gradients=final)
    )


def test_a_final_gradient_is_no_pending_sum() -> None:
    whole = program("gpt_tiny")
    index, left = next(
        (i, c)
        for i, c in enumerate(whole.instructions)
        if isinstance(c, Redistribute) and c.gradient and c.tensor in whole.final_gradients and c.source.partial
    )
    final: dict[str, Layout] = {**whole.final_gradients, left.tensor: left.source}
    wrong = check_program(replace(without(whole, index), final_gradients=final))
    assert f"gradient of {left.tensor} stays a pending sum, {left.source}" in wrong


def test_a_layout_of_an_operator_that_fits_no_tensor_is_named() -> None:
    whole = program("mlp")
    op = next(o for o in whole.graph.ops if o.type in ("MatMul", "Gemm"))
    given = whole.strategies[op.name]
    axis = given.results[0].split_axes[0]
    twice = replace(given.results[0], dims=((axis,), (axis,)))
    wrong = check_program(replace(whole, strategies={**whole.strategies, op.name: replace(given, results=(twice,))}))
    assert wrong[0] == f"{op.outputs[0]}: layout {twice} names an axis twice or one that the mesh does not have"
    assert wrong.count(wrong[0]) == 1
