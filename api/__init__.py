"""The HTTP service.  It imports `planner`; `planner` finds it through the entry-point group `planner.commands`."""
