"""Tests.  The planner is imported before any of them: ONNX Runtime, which some import by themselves, reads when it is
imported that it is to send nothing home."""

import planner  # noqa: F401
