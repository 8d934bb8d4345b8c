"""One module a format: where the arrays of a file lie, and how a file is laid out that will have such arrays."""
