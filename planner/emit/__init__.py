"""Files that runtimes load, made from a plan; one package per target."""

from planner.emit.emission import Emission
from planner.emit.names import Name, NameRules, read_names

__all__ = ["TARGETS", "Emission", "Name", "NameRules", "read_names"]

TARGETS = ("mindspore", "torch", "onnx")
