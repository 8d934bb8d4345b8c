"""Operators that create a tensor."""
