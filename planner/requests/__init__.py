"""What is asked of the planner, and what answers it: the same for the command line and the service."""
