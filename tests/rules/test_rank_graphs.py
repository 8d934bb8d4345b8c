"""What is written of an operator for a rank means what the operator means: every way of splitting it, by the cases that
prove the rules, run on ONNX Runtime in step and put together."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest

from planner.emit.onnx.domain import register
from planner.emit.onnx.ranks.index import entry_of, index_text
from planner.emit.onnx.ranks.model import model_of
from planner.emit.onnx.ranks.rank import RankGraph
from planner.emit.onnx.ranks.registry import lowered_types
from planner.errors import InputError
from planner.ir import DeviceMesh, Layout
from planner.lowering import Instruction, Load, Program, Redistribute, Run
from planner.redistribute import RedistributionStep, StepKind
from planner.rules import Rule, Strategy, rule_for, strategies
from planner.verify.reference import run_whole
from tests.rules.cases import FAMILIES
from tests.rules.cases.values import restart
from tests.rules.prover import Case, from_values
from tests.unit.rank_graphs import execute

register()

# ONNX Runtime 1.31 takes the process down on some of these as they are, whole.
CRASHES = {"com.microsoft::Attention"}
# It has no kernel for these; what is written for them is the text that `planner verify` runs.
LACKING = {"ai.onnx.preview::FlexAttention"} | {
    f"com.microsoft::{t}"
    for t in (
        "BatchNormInternal",
        "BiasSoftmax",
        "ConcatTraining",
        "GroupNorm",
        "SimplifiedLayerNormalization",
        "SliceGrad",
        "SoftmaxCrossEntropyLossInternal",
        "SplitTraining",
    )
}
MESHES = (DeviceMesh.of(2), DeviceMesh.of(2, 2), DeviceMesh.of(3))


def cases() -> dict[str, list[Case]]:
    found: dict[str, list[Case]] = {}
    for family in FAMILIES:
        restart()
        for subject in family():
            if subject.op.type == "SimplifiedLayerNormalization":  # of ONNX Runtime, in models of any operator set
                subject = from_values(replace(subject.op, opset=20), subject.inputs, subject.results, set())
            found.setdefault(subject.op.type, []).append(subject)
    return found


CASES = cases()


def program(subject: Case, rule: Rule, strategy: Strategy, mesh: DeviceMesh) -> Program:
    """Operands are loaded as they are read, pending ones made of whole ones, and the operator runs."""
    instructions: list[Instruction] = []
    for name, read in zip(subject.op.inputs, strategy.operands, strict=True):
        if not name:
            continue
        layout = read or Layout.replicated(subject.graph.tensors[name].rank)
        here = Layout(layout.dims)
        instructions.append(Load(name, here))
        steps = []
        for axis, reduction in layout.partial:
            there = Layout(here.dims, (*here.partial, (axis, reduction)))
            steps.append(RedistributionStep(StepKind.TO_PARTIAL, (axis,), here, there))
            here = there
        if steps:
            instructions.append(Redistribute(name, False, Layout(layout.dims), layout, tuple(steps)))
    name = subject.op.name
    instructions.append(Run(name))
    return Program(subject.graph, mesh, {name: rule}, {name: strategy}, tuple(instructions), frozenset(), {})


def written(subject: Case, made: Program) -> tuple[list[onnx.ModelProto], dict[str, Any]]:
    """A model per rank, and what ranks.json says of them."""

    def read(name: str) -> np.ndarray | None:
        return subject.graph.tensors[name].value

    ranks = [RankGraph(made, r, read) for r in range(made.mesh.devices)]
    models = [model_of(r) for r in ranks]
    return models, json.loads(index_text(made.mesh, subject.graph, [entry_of(r, "") for r in ranks]))


def runs_whole(subject: Case, values: dict[str, np.ndarray]) -> bool:
    """ONNX Runtime itself gives the expected results: only then does running parts prove anything."""
    try:
        found = run_whole(subject.graph, values)
    except Exception:  # the runtime raises what it likes
        return False
    pairs = zip(subject.op.outputs, subject.results, strict=True)
    return all(v is None or not n or not difference(subject, found[n], v) for n, v in pairs)


def difference(subject: Case, found: np.ndarray, wanted: np.ndarray) -> str:
    """What is wrong with a result, if anything."""
    if found.dtype != wanted.dtype or found.shape != wanted.shape:
        return f"{found.dtype}{found.shape} instead of {wanted.dtype}{wanted.shape}"
    if wanted.dtype.kind != "f":
        return "" if np.array_equal(found, wanted) else "other values"
    tolerance = 2e-2 if subject.half else 1e-4
    finite = wanted[np.isfinite(wanted)]
    scale = float(np.abs(finite).max()) if finite.size else 1.0
    if np.allclose(found, wanted, rtol=tolerance, atol=tolerance * max(scale, 1e-3), equal_nan=True):
        return ""
    return f"off by up to {np.nanmax(np.abs(found - wanted)):.3g}"


def proved(subject: Case) -> Iterator[str]:
    """Runs the strategies that split something, but for those that are refused: the text of each that has to know of
    its split, and an empty one of others."""
    rule = rule_for(subject.op, subject.graph)
    values = {n: v for n, v in zip(subject.op.inputs, subject.inputs, strict=True) if n and v is not None}
    if rule is None or not runs_whole(subject, values):
        return
    for mesh in MESHES:
        for s in (s for s in strategies(rule, mesh, training=False) if s.splits):
            try:
                models, index = written(subject, program(subject, rule, s, mesh))
            except InputError:
                continue
            found = execute(index, models, values)
            for name, wanted in zip(subject.op.outputs, subject.results, strict=True):
                if name and wanted is not None:
                    wrong = difference(subject, found[name], wanted)
                    assert not wrong, f"{subject.name}: mesh {mesh}, {s.text(mesh)}: {name}: {wrong}"
            yield s.text(mesh) if rule.aware(s.split) else ""


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(CASES.keys() - CRASHES))
def test_every_strategy_of_every_case_written_for_ranks_is_right(kind: str) -> None:
    found = [text for subject in CASES[kind] for text in proved(subject) if text]
    if kind in lowered_types():
        assert bool(found) != (kind in LACKING), f"{kind}: {len(found)} strategies prove what is written for it"


def test_every_type_that_is_written_with_collectives_has_cases() -> None:
    assert lowered_types() <= CASES.keys() - CRASHES


def test_models_written_for_ranks_pass_the_checker_with_shapes() -> None:
    for kind in ("Conv", "Gather", "LayerNormalization", "Slice", "SoftmaxCrossEntropyLoss", "planner::ExpertMatMul"):
        subject = CASES[kind][0]
        mesh = DeviceMesh.of(2)
        for s in strategies(subject.rule, mesh, training=False):
            (_, model), _ = written(subject, program(subject, subject.rule, s, mesh))
            onnx.checker.check_model(model, full_check=True)
