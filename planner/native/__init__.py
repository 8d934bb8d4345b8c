"""Compiled kernels of the solvers, and the library that holds them."""
