"""Resizing."""
