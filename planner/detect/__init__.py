"""Which accelerators this machine has, and which hardware profile describes them (`planner hardware --detect`)."""
