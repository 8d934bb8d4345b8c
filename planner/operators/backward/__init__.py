"""Gradient operators that exporters of training graphs write."""
