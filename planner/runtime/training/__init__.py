"""Training of an ONNX model under a plan: what `planner run` does when it is given steps, weights or data.

- `options`: what is asked for, without PyTorch; `driver`: the loop, on the process that reports
- `rank`: weights, optimizer and a step on one rank; `finite`: which tensor is the first that is not finite
- `stored`: tensors of files that are not read yet; `weights`: where weights come from; `data`: batches of a folder
- `checkpoint`: what is saved and loaded, under plain names
"""

from __future__ import annotations

__all__: list[str] = []
