"""Exact elimination of variables over tables of classes of states."""
