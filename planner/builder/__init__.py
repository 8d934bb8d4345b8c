"""Model graphs of any size, without weights: for samples, tests, benchmarks and what-if questions."""

from planner.builder.architectures import ARCHITECTURES, build
from planner.builder.sizes import Sizes

__all__ = ["ARCHITECTURES", "Sizes", "build"]
