"""The integer program."""
