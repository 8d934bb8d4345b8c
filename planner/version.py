"""The version of this package, which `planner` itself says too: modules inside read it here, and do not import what
stands above them."""

__version__ = "0.1.0"
