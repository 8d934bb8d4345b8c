"""What the strategy of an operator makes one device do: kernels with their sizes, said once, from the rule."""
