"""Compiled kernels of the solvers and of the simulation of pipelines, and the library that holds them."""
