"""Programs on real devices: one process per rank, PyTorch for the operators, torch.distributed between them.

The only part of the planner that needs PyTorch (`pip install graph-planner[torch]`); importing this package does not
import it.

- `extra`: whether PyTorch is there, and what to do where it is not
- `workers`: processes that carry out the same calls in step
- `rank`: one rank's interpreter of a `Program`, forward and backward
- `registry`, `operators`: an operator as one function of local tensors; `fallback`: those that have none
- `collectives`: the steps of redistributions, and the sums inside operators
- `measure`: microbenchmarks, the samples that `planner.cost_models.calibrate` fits a profile to
"""

from __future__ import annotations

__all__: list[str] = []
