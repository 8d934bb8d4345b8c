"""From a module to a graph: torch.export's view of a step, written as an ONNX model without weights.

- `exported`: the step as torch.export has it
- `known`: values that nothing fed or trained enters
- `registry`, `operators`: how each ATen operator is written
- `writer`: the ONNX nodes; `captured`: the walk; `result`: what it makes, which leads back to the module
- `returned`: where the loss is in what the module returns

A plan for the captured model is a plan like any other: the commands and the service read it.
"""

from __future__ import annotations

from planner.torch.capture.captured import capture
from planner.torch.capture.registry import aten
from planner.torch.capture.result import BufferUpdate, Capture
from planner.torch.capture.writer import Value, Writer

__all__ = ["BufferUpdate", "Capture", "Value", "Writer", "aten", "capture"]
