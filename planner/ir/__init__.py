"""Frozen values that everything else computes with; no behaviour beyond small algebra."""

from planner.ir.graph import Graph, Op
from planner.ir.layout import Layout, Reduction
from planner.ir.mesh import DeviceMesh, MeshAxis
from planner.ir.tensor import Role, Tensor

__all__ = ["DeviceMesh", "Graph", "Layout", "MeshAxis", "Op", "Reduction", "Role", "Tensor"]
