"""The checker of certificates: exact integers, and no code shared with the solvers."""
