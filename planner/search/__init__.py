"""Solvers over plain arrays; nothing here knows of tensors."""
