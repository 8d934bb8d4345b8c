"""Operators that move elements and compute nothing."""
