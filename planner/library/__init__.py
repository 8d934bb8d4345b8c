"""`import planner`: what users of Python call, a thin layer over `planner.requests`, beside the command line.

`planner/__init__.py` lists the public names and loads each from here when it is first used.
"""
