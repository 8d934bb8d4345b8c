"""Checkpoints follow the plan: from any layout to any other, between the formats of several frameworks."""
