"""Proof by execution on virtual devices."""
