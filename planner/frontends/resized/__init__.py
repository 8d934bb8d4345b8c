"""The same graph in other sizes: another batch, fewer layers, smaller dimensions."""
