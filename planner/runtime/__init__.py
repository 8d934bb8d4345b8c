"""Programs on real devices: one process per rank, PyTorch for the operators, torch.distributed between them.

With `planner.torch`, which stands on it, all that needs PyTorch (the extra `torch`); importing this package does not
import it.

- `extra`: whether PyTorch is there, and what to do where it is not
- `workers`: processes that carry out the same calls in step
- `stage`: one rank's interpreter of a plan, event by event of its pipeline stage; `bound`: an operator on it;
  `lifetimes`, `buckets`: what may be let go, and what travels together; `traced`: a step as graphs of ATen operators;
  `rank`: a program on whole values
- `outputs`: what a step returns, whole; `placements`: state as DTensors, for checkpoints
- `registry`, `operators`: an operator as one function of local tensors; `fallback`: those that have none
- `collectives`: the steps of redistributions, and the sums inside operators
- `ready`, `started`: what is looked at before a run, and ranks that torchrun and mpirun start; `training`: weights,
  data, optimizer and checkpoints of `planner run`
- `watched`, `timed`: when each instruction of a step ran
- `measure`: microbenchmarks, the samples that `planner.cost_models.calibrate` fits a profile to
"""

from __future__ import annotations

__all__: list[str] = []
