"""Files that runtimes load, made from a plan, and such files read back; one package per target."""

from planner.emit.emission import Emission
from planner.emit.names import Name, NameRules, read_names
from planner.emit.registry import FORMATS, TARGETS, Given, emit, read, unsupported

__all__ = ["FORMATS", "TARGETS", "Emission", "Given", "Name", "NameRules", "emit", "read", "read_names", "unsupported"]
