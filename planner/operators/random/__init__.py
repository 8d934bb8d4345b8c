"""Operators that draw random numbers."""
