"""Gather, scatter and top-k."""
