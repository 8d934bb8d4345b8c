"""Layouts as DTensor's placements: one per mesh axis, `Shard(d)` or `Replicate()`."""

from __future__ import annotations

from planner.ir import DeviceMesh, Layout

__all__ = ["placements"]


def placements(layout: Layout, mesh: DeviceMesh) -> list[int | None]:
    """For every mesh axis, outermost first, the dimension that it splits, None where it repeats.

    Raises:
        ValueError: a pending sum, or axes that split one dimension in another order than the mesh has them: DTensor
            always cuts by outer axes first.
    """
    if layout.partial:
        raise ValueError(f"{layout} is a pending sum, which no parameter and no input can be")
    for axes in layout.dims:
        real = [a for a in axes if mesh.sizes[a] > 1]
        if real != sorted(real, key=mesh.names.index):
            raise ValueError(
                f"{layout} cuts a dimension by {'.'.join(real)}; DTensor cuts by the axes in the order of the mesh, "
                f"{'.'.join(mesh.names)}"
            )
    where = {a: d for d, axes in enumerate(layout.dims) for a in axes}
    return [where.get(name) for name in mesh.names]
