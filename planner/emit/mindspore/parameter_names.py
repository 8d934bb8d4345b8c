"""Names that MindSpore's checkpoint tools can tell from the pipeline stages before them."""

from __future__ import annotations

from collections.abc import Mapping

from planner.emit.names import Name
from planner.errors import InputError

__all__ = ["check_parameter_names"]


def check_parameter_names(names: Mapping[str, Name]) -> None:
    """InputError where a name has a `-`: merged strategy files have parameters as STAGE-NAME, and
    `transform_checkpoints` and `rank_list_for_transform` (mindspore/parallel/_parallel_serialization.py) take whatever
    is before a `-` for the number of a stage, in every file."""
    odd = next((n for n in names if "-" in names[n].name), None)
    if odd is not None:
        raise InputError(
            f"plan: parameter {odd} is called {names[odd].name!r} in the network, and MindSpore's strategy files have "
            "pipeline stages before a `-`, so that transform_checkpoints and rank_list_for_transform would refuse the "
            "file; say with --names what the network calls it, or give its Parameter a name without `-`"
        )
