"""Embeddings with their normalisation fused in."""
