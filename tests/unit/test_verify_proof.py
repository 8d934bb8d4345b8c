"""Execution beside the whole model: what is wrong is named where it arises, what says nothing is no verdict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from planner.ir import DeviceMesh, Graph, Layout, Op, Role, Tensor
from planner.lowering import Load, Program, Redistribute, Run, Seed
from planner.pricing import active_tensors, bind_rules
from planner.redistribute import RedistributionStep, StepKind
from planner.rules.strategy import AxisRole, bind
from planner.verify.check import verify_program

MESH = DeviceMesh.of(2)
WHOLE, ROWS = Layout.replicated(2), Layout((("x",), ()))


def graph(*ops: Op, loss: str | None = None, **shapes: tuple[tuple[int, ...], Role]) -> Graph:
    tensors = {n: Tensor(n, shape, "float32", role) for n, (shape, role) in shapes.items()}
    made = {t for op in ops for t in op.outputs}
    fed = tuple(n for n, (_, role) in shapes.items() if role is Role.INPUT)
    last = [o for o in made if not any(o in op.inputs for op in ops)]
    return Graph(tuple(ops), tensors, fed, tuple(last), "test", loss)


def op(kind: str, inputs: str, output: str, **attributes: Any) -> Op:
    return Op(output, kind, tuple(inputs.split()), (output,), attributes, opset=20)


def relu(bias: np.ndarray | None = None) -> Graph:
    g = graph(
        op("Add", "h b", "a"),
        op("Relu", "a", "y"),
        h=((8, 4), Role.INPUT),
        b=((4,), Role.CONSTANT),
        a=((8, 4), Role.ACTIVATION),
        y=((8, 4), Role.ACTIVATION),
    )
    if bias is None:
        return g
    tensors = {**g.tensors, "b": replace(g.tensors["b"], value=bias.astype(np.float32))}
    return replace(g, tensors=tensors)


def rows(g: Graph, training: bool = False) -> Program:
    """Every operator's first factor that its first result has first is split."""
    rules, _ = bind_rules(g)
    active = active_tensors(g, rules) if training else frozenset[str]()
    strategies = {}
    for o in g.ops:
        (factor, *_), *_ = rules[o.name].results[0] or ()
        found = bind(rules[o.name], MESH, (AxisRole("split", factor=factor),))
        assert found is not None
        strategies[o.name] = found
    out: list[Any] = []
    for o in g.ops:
        out += [
            Load(t, strategies[o.name].operands[i] or Layout.replicated(g.tensors[t].rank))
            for i, t in enumerate(o.inputs)
            if t not in g.producers
        ]
        out.append(Run(o.name))
    return Program(g, MESH, rules, strategies, tuple(out), active, {})


def test_operators_that_respond_are_ok() -> None:
    verdict = verify_program(rows(relu()))
    assert verdict.verdict == "ok"
    assert (verdict.values, verdict.failures, verdict.unproved) == (2, (), ())


def test_terms_that_cancel_round_on_their_own_scale() -> None:
    g = graph(op("Mul", "h c", "y"), h=((8, 4), Role.INPUT), c=((1,), Role.CONSTANT), y=((8, 4), Role.ACTIVATION))
    g = replace(g, tensors={**g.tensors, "c": replace(g.tensors["c"], value=np.zeros(1, np.float32))})
    rules, _ = bind_rules(g)
    mesh = DeviceMesh.of(4)
    strategy = bind(rules["y"], mesh, (AxisRole("linear", group=1),))
    assert strategy is not None
    assert strategy.operands[1].partial
    loads = (Load("h", WHOLE), Load("c", strategy.operands[1]))
    verdict = verify_program(Program(g, mesh, rules, {"y": strategy}, (*loads, Run("y")), frozenset(), {}))
    assert verdict.verdict == "ok", verdict.failures


@pytest.mark.parametrize("experts", ["0 0 0 0 0 0 0 1", "0 1 2 3 3 2 1 0", "0 0 1 1 2 2 3 3"])
@pytest.mark.parametrize("devices", [2, 4])
def test_rows_go_where_values_send_them_however_uneven(experts: str, devices: int) -> None:
    shapes = {"h": ((8, 4), Role.INPUT), "w": ((4, 6, 4), Role.PARAMETER), "i": ((8,), Role.CONSTANT)}
    g = graph(op("planner::ExpertMatMul", "h w i", "y", transB=1), **shapes, y=((8, 6), Role.ACTIVATION))
    chosen = replace(g.tensors["i"], dtype="int64", value=np.array(experts.split(), np.int64))
    g = replace(g, tensors={**g.tensors, "i": chosen})
    rules, _ = bind_rules(g)
    mesh = DeviceMesh.of(devices)
    strategy = bind(rules["y"], mesh, (AxisRole("split", factor="t0&e"),))
    assert strategy is not None
    loads = [Load(t, layout) for t, layout in zip("hwi", strategy.operands, strict=False) if layout is not None]
    program = Program(g, mesh, rules, {"y": strategy}, (*loads, Run("y")), frozenset(), {})
    assert verify_program(program).failures == ()
    less = replace(strategy, inner=tuple(replace(c, elements=c.elements // 2) for c in strategy.inner))
    (wrong,) = verify_program(replace(program, strategies={"y": less})).failures
    assert "exchange by value" in wrong


def test_a_result_that_is_cut_off_everywhere_is_no_verdict() -> None:
    verdict = verify_program(rows(relu(np.full(4, -1e6))))
    assert verdict.verdict == "no verdict"
    assert not verdict.ok
    assert verdict.unproved == ("Relu y: it is zero everywhere on these values",)


def test_a_result_that_is_no_number_is_no_verdict() -> None:
    g = relu()
    broken = replace(g, ops=(g.ops[0], replace(g.ops[1], type="Log")), tensors=g.tensors)
    verdict = verify_program(rows(broken))
    assert verdict.verdict == "no verdict"
    assert any("not a number" in line for line in verdict.unproved)


def test_an_operator_without_a_kernel_is_no_verdict() -> None:
    g = relu()
    strange = replace(g, ops=(g.ops[0], replace(g.ops[1], type="nowhere::Strange")))
    verdict = verify_program(replace(rows(g), graph=strange))
    assert verdict.verdict == "no verdict"
    assert "nowhere::Strange" in verdict.unproved[0]


def slices(**changed: Any) -> Program:
    """x is loaded in rows and gathered before it is added to itself."""
    g = graph(
        op("Add", "h h", "y"),
        h=((8, 4), Role.INPUT),
        y=((8, 4), Role.ACTIVATION),
    )
    rules, _ = bind_rules(g)
    strategy = bind(rules["y"], MESH, (AxisRole("replicate"),))
    assert strategy is not None
    gather = Redistribute("h", False, ROWS, WHOLE, (RedistributionStep(StepKind.ALL_GATHER, ("x",), ROWS, WHOLE, 0),))
    out = (Load("h", ROWS), replace(gather, **changed), Run("y"))
    return Program(g, MESH, rules, {"y": strategy}, out, frozenset(), {})


def test_a_redistribution_is_run_and_compared() -> None:
    verdict = verify_program(slices())
    assert (verdict.verdict, verdict.redistributions) == ("ok", 1)


@pytest.mark.parametrize(
    "steps",
    [
        (),
        (RedistributionStep(StepKind.ALL_GATHER, ("x",), ROWS, WHOLE, 1),),
        (RedistributionStep(StepKind.PERMUTE, ("x",), ROWS, ROWS),),
    ],
    ids=["no step", "another dimension", "another collective"],
)
def test_a_wrong_redistribution_is_named_where_it_stands(steps: tuple[RedistributionStep, ...]) -> None:
    verdict = verify_program(slices(steps=steps))
    assert verdict.verdict == "failed"
    assert len(verdict.failures) == 1, "what reads it goes on from the right value"
    assert verdict.failures[0].startswith("h from [x,_] to [_,_]")


def trained() -> Program:
    g = graph(
        op("MatMul", "h w", "y"),
        op("ReduceMean", "y", "l", keepdims=0),
        loss="l",
        h=((8, 4), Role.INPUT),
        w=((4, 6), Role.PARAMETER),
        y=((8, 6), Role.ACTIVATION),
        l=((), Role.ACTIVATION),
    )
    rules, _ = bind_rules(g)
    active = active_tensors(g, rules)
    product = bind(rules["y"], MESH, (AxisRole("split", factor=next(iter(rules["y"].factors))),))
    mean = bind(rules["l"], MESH, (AxisRole("split", factor=next(iter(rules["l"].factors))),))
    assert product is not None
    assert mean is not None
    pending = product.operand_gradients[1]
    assert pending is not None
    assert pending.partial
    reduce = RedistributionStep(StepKind.ALL_REDUCE, ("x",), pending, WHOLE)
    (partial,) = mean.results
    assert partial is not None
    out = (
        Load("h", ROWS), Load("w", WHOLE), Run("y"), Run("l"),
        Redistribute(
            "l", False, partial, Layout(()), (RedistributionStep(StepKind.ALL_REDUCE, ("x",), partial, Layout(())),)
        ),
        Seed("l", Layout(())), Run("l", True), Run("y", True),
        Redistribute("w", True, pending, WHOLE, (reduce,)),
    )  # fmt: skip
    return Program(g, MESH, rules, {"y": product, "l": mean}, out, active, {"w": WHOLE})


def without(kind: Callable[[Any], bool]) -> Program:
    program = trained()
    return replace(program, instructions=tuple(i for i in program.instructions if not kind(i)))


def test_gradients_arrive_where_they_are_stored() -> None:
    verdict = verify_program(trained())
    assert verdict.verdict == "ok", (verdict.failures, verdict.unproved)
    assert (verdict.parameters, verdict.checked) == (1, ("forward", "gradients"))


def test_a_gradient_that_is_never_reduced_is_an_error() -> None:
    verdict = verify_program(without(lambda i: isinstance(i, Redistribute) and i.gradient))
    assert verdict.failures == (
        "gradient of w: the program never brings it to [_,_]",
        "gradient of w as [_,_]+x: nothing uses it",
    )


def test_a_gradient_without_a_place_is_an_error() -> None:
    verdict = verify_program(replace(trained(), final_gradients={}))
    assert "gradient of w: the program has no place for it" in verdict.failures


def test_a_contribution_made_twice_is_an_error() -> None:
    program = trained()
    i = program.instructions.index(Run("y", True))
    doubled = (*program.instructions[: i + 1], Seed("y", ROWS), Run("y", True), *program.instructions[i + 1 :])
    assert verify_program(replace(program, instructions=doubled)).verdict == "failed"


def test_a_wrong_vector_jacobian_product_is_noticed_by_finite_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole and sharded model share it, so that only a second witness can."""
    from planner.kernels import gradients

    assert "MatMul" in gradients.differentiable_types()
    right = gradients._REGISTRY["MatMul"]
    monkeypatch.setitem(gradients._REGISTRY, "MatMul", lambda c: [None if g is None else g / 2 for g in right(c)])
    verdict = verify_program(trained())
    assert any("finite differences of the operator disagree" in line for line in verdict.failures)
