"""Tensors in files: formats that are read and written range by range, and the copying of ranges between them."""
