"""Logical meshes of a cluster."""

from __future__ import annotations

from planner.errors import UsageError
from planner.ir import DeviceMesh

__all__ = ["logical_meshes", "parse_mesh"]


def logical_meshes(devices: int) -> tuple[DeviceMesh, ...]:
    """All one- and two-dimensional meshes over the devices, either axis first (the first crosses servers).

    Meshes of three and more axes multiply the strategies of every operator; they are searched when asked for.
    """
    pairs = [(a, devices // a) for a in range(2, devices) if devices % a == 0]
    return (DeviceMesh.of(devices), *(DeviceMesh.of(*p) for p in pairs))


def parse_mesh(text: str, devices: int) -> DeviceMesh:
    """`4x2` → mesh; UsageError unless its sizes multiply to `devices`."""
    try:
        sizes = tuple(int(s) for s in text.lower().split("x"))
    except ValueError:
        sizes = ()
    if not sizes or any(s < 1 for s in sizes) or len(sizes) > 4:
        raise UsageError(f"--mesh {text!r}: expected up to four sizes joined by x, such as 4x2")
    mesh = DeviceMesh.of(*sizes)
    if mesh.devices != devices:
        raise UsageError(f"--mesh {text}: has {mesh.devices} devices, --devices says {devices}; make them agree")
    return mesh
