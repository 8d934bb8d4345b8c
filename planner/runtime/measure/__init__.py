"""Microbenchmarks: samples of what operators and collectives take, for `cost_models.calibrate`."""
