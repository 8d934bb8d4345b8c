"""Which pieces of tensors lie where, and what has to move so that they lie otherwise: geometry alone, no file, no
device."""

from planner.transfer.holders import fewest
from planner.transfer.overlaps import Overlaps, overlaps
from planner.transfer.pieces import Pieces, laid_out, whole

__all__ = ["Overlaps", "Pieces", "fewest", "laid_out", "overlaps", "whole"]
