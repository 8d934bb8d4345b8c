"""Microbenchmarks: samples of what operators and collectives take, for `planner.cost_models.calibrate`."""
