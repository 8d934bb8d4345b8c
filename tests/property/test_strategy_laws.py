"""Laws of the expansion of rules over meshes, for products, convolutions and reshapes of random sizes."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from planner.ir import DeviceMesh, Graph, Layout, Op, Role, Tensor
from planner.rules import Rule, bind, rule_for, strategies
from planner.rules.notation import expand
from planner.rules.reshape import reshape_text

MESHES = st.sampled_from([(2,), (3,), (4,), (2, 2), (2, 3), (4, 2), (2, 2, 2)]).map(lambda s: DeviceMesh.of(*s))
SIZES = st.sampled_from([1, 2, 3, 4, 6, 8, 12])


def bound(type: str, operands: list[tuple[int, ...]], result: tuple[int, ...], **attributes: object) -> Rule:
    names = tuple(f"x{i}" for i in range(len(operands)))
    tensors = {n: Tensor(n, s, "float32", Role.INPUT) for n, s in zip(names, operands, strict=True)}
    tensors["y"] = Tensor("y", result, "float32", Role.ACTIVATION)
    op = Op("y", type, names, ("y",), attributes, 20)
    rule = rule_for(op, Graph((op,), tensors, names, ("y",)))
    assert rule is not None
    assert not rule.text.startswith("whole:")
    return rule


@st.composite
def rules(draw: st.DrawFn) -> tuple[Rule, list[tuple[int, ...]]]:
    """A rule and the shapes of its operands and results."""
    a, b, c, d = (draw(SIZES) for _ in range(4))
    kind = draw(st.sampled_from(["MatMul", "Gemm", "Add", "Conv", "ReduceMean", "Reshape"]))
    shapes: list[tuple[int, ...]]
    attributes: dict[str, object] = {}
    if kind == "MatMul":
        shapes = [(a, b, c), (c, d), (a, b, d)]
    elif kind == "Gemm":
        shapes = [(a, b), (b, c), (c,), (a, c)]
    elif kind == "Add":
        shapes = [(a, b), (a, 1), (a, b)]
    elif kind == "Conv":
        shapes, attributes = [(a, b * c, 4), (b * d, c, 2), (a, b * d, 3)], {"group": b}
    elif kind == "ReduceMean":
        return bound("ReduceMean", [(a, b)], (1, 1)), [(a, b), (1, 1)]
    else:
        shapes = [(a, b, c, d), (4,), (a * b, c * d)]
        return bound("Reshape", shapes[:-1], shapes[-1]), shapes
    return bound(kind, shapes[:-1], shapes[-1], **attributes), shapes


def layouts(found: tuple[Layout | None, ...]) -> list[Layout]:
    return [x for x in found if x is not None]


@settings(deadline=None, max_examples=60)
@given(rules(), MESHES, st.booleans())
def test_every_layout_fits_its_tensor_and_names_each_axis_once(
    subject: tuple[Rule, list[tuple[int, ...]]], mesh: DeviceMesh, training: bool
) -> None:
    rule, shapes = subject
    for s in strategies(rule, mesh, training=training):
        for forward, backward, shape in zip(
            (*s.operands, *s.results), (*s.operand_gradients, *s.result_gradients), shapes, strict=True
        ):
            for layout in layouts((forward, backward)):
                layout.local_shape(shape, mesh)
                axes = [*layout.split_axes, *layout.partial_axes]
                assert len(axes) == len(set(axes))


@settings(deadline=None, max_examples=60)
@given(rules(), MESHES)
def test_full_replication_is_always_offered(subject: tuple[Rule, list[tuple[int, ...]]], mesh: DeviceMesh) -> None:
    found = strategies(subject[0], mesh, training=False)
    assert any(all(x.is_replicated for x in layouts((*s.operands, *s.results))) for s in found)


@settings(deadline=None, max_examples=60)
@given(rules(), MESHES)
def test_split_is_dual_to_split_and_an_axis_is_never_partial_both_ways(
    subject: tuple[Rule, list[tuple[int, ...]]], mesh: DeviceMesh
) -> None:
    """A tensor and its gradient are cut alike; where one is a pending sum, the other is whole."""
    for s in strategies(subject[0], mesh, training=True):
        pairs = zip((*s.operands, *s.results), (*s.operand_gradients, *s.result_gradients), strict=True)
        for forward, backward in pairs:
            if forward is None or backward is None:
                continue
            assert forward.dims == backward.dims
            assert not set(forward.partial_axes) & set(backward.partial_axes)


@settings(deadline=None, max_examples=60)
@given(rules(), MESHES)
def test_work_is_divided_among_no_more_ranks_than_split_it(
    subject: tuple[Rule, list[tuple[int, ...]]], mesh: DeviceMesh
) -> None:
    for s in strategies(subject[0], mesh, training=False):
        assert s.parallelism == math.prod(mesh.size(axes) for axes in s.split.values())
        assert mesh.devices % s.parallelism == 0


@settings(deadline=None, max_examples=60)
@given(rules(), st.sampled_from([DeviceMesh.of(2, 2), DeviceMesh.of(2, 3)]))
def test_strategies_of_one_axis_remain_when_another_axis_replicates(
    subject: tuple[Rule, list[tuple[int, ...]]], mesh: DeviceMesh
) -> None:
    rule = subject[0]
    line = DeviceMesh((mesh.axes[0],))
    for s in strategies(rule, line, training=False):
        replicate = next(r for r in strategies(rule, line, training=False)[-1].roles if r.kind == "replicate")
        wide = bind(rule, mesh, (*s.roles, replicate))
        assert wide is not None
        assert (wide.operands, wide.results) == (s.operands, s.results)


@given(st.lists(SIZES, min_size=1, max_size=4))
def test_reshapes_cover_both_shapes(source: list[int]) -> None:
    """The factors of every dimension multiply to its size, and those that may be split lie on both sides."""
    target = [math.prod(source[: len(source) // 2]), math.prod(source[len(source) // 2 :])]
    for a, b in ((source, target), (target, source), (source, list(reversed(source)))):
        left, right, sizes = reshape_text(tuple(a), tuple(b))
        e = expand(f"{left} -> {right}", [tuple(a)], [tuple(b)], sizes)
        operand, result = e.operands[0], e.results[0]
        assert operand is not None
        assert result is not None
        for dims, shape in ((operand, a), (result, b)):
            assert [math.prod(e.factors[f] for f in d) for d in dims] == list(shape)
        free = {f for f, n in e.factors.items() if n > 1} - e.whole
        assert free <= {f for d in operand for f in d} & {f for d in result for f in d}
