"""Measurements of one GPU, and predictions of them: what to run, in which order, says `campaign.sh`.

- `timing`: medians of times on the device, and JSON lines
- `kernels`: products, attention, small operators, copies, one at a time (plain PyTorch)
- `aligned`, `mixed`, `sustained`, `breakdown`: products by alignment, operators in the types of autocast, rates that
  are asked for seconds on end, where the time and the memory of a step go
- `models`, `steps`: training steps of models in plain PyTorch, with their memory
- `runtime`: the planner's own runtime on the device against the same on the CPU, and `planner calibrate`
- `predict`: what the planner predicts for the rows of `steps`; needs no GPU
"""
