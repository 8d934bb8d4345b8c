"""Sampling of a grid, and regions of interest."""
