"""Certificates of bounds, and how they are made: whoever has one need not trust a solver."""
