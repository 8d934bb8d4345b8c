"""The presolved problem: what is left to decide, and equal arrays held once."""
