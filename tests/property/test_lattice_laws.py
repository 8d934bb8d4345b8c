"""A lattice that is cut out of one that many tensors have in common is the one that would be found by itself."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from planner.ir import DeviceMesh, Reduction
from planner.redistribute import RedistributionStep
from planner.redistribute.lattice import Lattice, lattice_of

MESHES = [DeviceMesh.of(4), DeviceMesh.of(2, 3), DeviceMesh.of(4, 2), DeviceMesh.of(2, 1, 2), DeviceMesh.of(2, 2, 4)]
SHAPES = st.lists(st.sampled_from([0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 96]), max_size=4).map(tuple)
REDUCTIONS = st.sampled_from([Reduction.SUM, Reduction.MAX])


def arcs(lattice: Lattice, mesh: DeviceMesh) -> dict[tuple[int, int], tuple[int, RedistributionStep]]:
    """All steps by where they lead, with the axes that split what their groups work on."""
    found: dict[tuple[int, int], tuple[int, RedistributionStep]] = {}
    for a in lattice.arcs(tuple(x.size for x in mesh.axes if x.size > 1)):
        for u, v, remaining in zip(a.u.tolist(), a.v.tolist(), a.remaining.tolist(), strict=True):
            step = lattice.step(u, v)
            assert (u, v) not in found
            assert (step.kind, step.axes) == (a.kind, a.axes)
            found[u, v] = remaining, step
    return found


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(MESHES), SHAPES, REDUCTIONS, st.booleans())
def test_a_lattice_within_another_is_the_one_found_by_itself(
    mesh: DeviceMesh, shape: tuple[int, ...], reduction: Reduction, in_parts: bool
) -> None:
    parts = tuple((2, 3) if size % 6 == 0 and size else () for size in shape) if in_parts else ()
    within = lattice_of(shape, mesh, reduction, parts)
    alone = Lattice(within.names, within.pattern, reduction)
    assert within.layouts == alone.layouts
    assert within.ordered == alone.ordered
    assert arcs(within, mesh) == arcs(alone, mesh)
