"""Figures for papers and slides: what is drawn as data, and the drawing, which needs matplotlib."""

from planner.report.plots.data import KINDS, SCHEMA, Kind, Point, breakdown, pareto, scaling, timeline

__all__ = ["KINDS", "SCHEMA", "Kind", "Point", "breakdown", "pareto", "scaling", "timeline"]
